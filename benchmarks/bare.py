"""The plugin to which the agent is compared: same messages, no decisions, no disk, no identity.

In: kubelet's directory and the sizes of the node. Out: one process that serves both resources, with answers of the
agent's size, until it is ended.
"""

import asyncio
import sys
from pathlib import Path

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.barenode import BarePlugin

RESOURCES = {"tencent.com/vcuda-core": "vcore.sock", "tencent.com/vcuda-memory": "vmemory.sock"}


def full_answer(empty: Path) -> pb.ContainerAllocateResponse:
    """An answer of the agent's size; `empty` is a directory to mount."""
    return pb.ContainerAllocateResponse(
        envs={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "NVIDIA_VISIBLE_DEVICES": "GPU-" + "0" * 36},
        mounts=[
            pb.Mount(container_path="/etc/vcuda", host_path=str(empty), read_only=True),
            pb.Mount(container_path="/usr/local/nvidia", host_path=str(empty), read_only=True),
        ],
        devices=[
            pb.DeviceSpec(container_path=f"/dev/x{i}", host_path="/dev/null", permissions="rwm") for i in range(3)
        ],
        annotations={f"tencent.com/vcuda-{name}": "12345678" for name in ("core", "memory", "device")},
    )


async def serve(directory: Path, counts: tuple[int, int]) -> None:
    answer = full_answer(directory / "empty")
    (directory / "empty").mkdir()
    plugins = [
        BarePlugin(resource, directory / socket, {f"{resource[-1]}{i:08d}": -1 for i in range(count)}, answer=respond)
        for (resource, socket), count, respond in zip(
            RESOURCES.items(), counts, (lambda _: answer, lambda _: pb.ContainerAllocateResponse()), strict=True
        )
    ]
    for plugin in plugins:
        await plugin.serve()
        await plugin.register(directory / "kubelet.sock")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), (int(sys.argv[2]), int(sys.argv[3]))))
