"""gpu-manager on a node: its two device plugins, its directories, and what it leaves when it goes.

In: a `GpuNode` whose agent does not run. Out: pods that run as gpu-manager started them, until the context ends; their
directories and kubelet's checkpoint stay. Facts kept: device IDs are the resource's name and a number; only the plugin
of cores answers with something; the answer has the device nodes of its GPUs, nvidiactl and nvidia-uvm (allocateOne in
tkestack/gpu-manager, pkg/services/allocator/nvidia/allocator.go); it mounts a directory named after the pod, for all
its containers, and the driver's files from the same two names as vcuda's mirror. A container gets the first pending
request of so many cores.
Not here: `vcuda.sock`, choosing GPUs (everything is on the first ones), annotations.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from deviceplugin.model.allocation import DRIVER_MOUNT, GRANT_MOUNT
from deviceplugin.model.gpu import Gpu
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.simulate.gpu_profile import parse_profile
from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.barenode import BarePlugin
from sandbox.gpunode import GpuNode
from sandbox.station import Json

LIBRARY = "libcuda-control.so"


@asynccontextmanager
async def gpu_manager(node: GpuNode) -> AsyncIterator[None]:
    """Serves both resources of all GPUs."""
    gpus = parse_profile(node.gpus.profile.read_bytes()).inventory.gpus
    counts = {
        node.names.core: CORES_PER_GPU * len(gpus),
        node.names.memory: sum(gpu.blocks for gpu in gpus),
    }
    _install(node)
    answers = _Answers(node, gpus)
    async with AsyncExitStack() as stack:
        for resource, socket in ((node.names.core, "vcore.sock"), (node.names.memory, "vmemory.sock")):
            plugin = BarePlugin(
                resource,
                node.kubelet.options.plugin_dir / socket,
                {f"{resource}-{number}": -1 for number in range(counts[resource])},
                preferred=False,
                answer=answers.of_cores if resource == node.names.core else lambda _: pb.ContainerAllocateResponse(),
            )
            await stack.enter_async_context(plugin)
            await plugin.register(node.kubelet.options.kubelet_socket)
        await node.kubelet.wait_registered(*counts)
        yield


def _install(node: GpuNode) -> None:
    """Real directories, where vcuda has links."""
    for flavour in ("nvidia", "origin"):
        libraries = node.home / "vdriver" / flavour / "lib64"
        libraries.mkdir(parents=True)
        (libraries / ("libcuda.so.1" if flavour == "origin" else LIBRARY)).touch()


class _Answers:
    def __init__(self, node: GpuNode, gpus: Sequence[Gpu]) -> None:
        self._node = node
        self._gpus = gpus
        self._answered: set[tuple[str, str]] = set()

    def of_cores(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        uid, blocks = next(self._waiting(len(ids)))
        directory = self._node.grants / uid
        directory.mkdir(parents=True, exist_ok=True)
        held = self._gpus[: max(1, len(ids) // CORES_PER_GPU)]
        devices = [*(gpu.device_path for gpu in held), "/dev/nvidiactl", "/dev/nvidia-uvm"]
        flavour = "nvidia" if len(ids) < CORES_PER_GPU else "origin"
        return pb.ContainerAllocateResponse(
            devices=[
                pb.DeviceSpec(container_path=path, host_path=f"{self._node.home}/host{path}", permissions="rwm")
                for path in devices
            ],
            envs={
                "NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in held),
                "LD_LIBRARY_PATH": f"{DRIVER_MOUNT}/lib64",
            },
            mounts=[
                pb.Mount(container_path=DRIVER_MOUNT, host_path=str(self._node.home / "vdriver" / flavour)),
                pb.Mount(container_path=GRANT_MOUNT, host_path=str(directory), read_only=True),
            ],
            annotations={self._node.names.core: str(len(ids)), self._node.names.memory: str(blocks * BLOCK_BYTES)},
        )

    def _waiting(self, cores: int) -> Iterator[tuple[str, int]]:
        """UID and blocks."""
        for pod in self._node.server.store.objects("pods"):
            for container in pod["spec"]["containers"]:
                key, asked = (pod["metadata"]["uid"], container["name"]), self._asked(container)
                if key not in self._answered and asked[0] == cores:
                    self._answered.add(key)
                    yield key[0], asked[1]

    def _asked(self, container: Json) -> tuple[int, int]:
        limits = container["resources"]["limits"]
        names = self._node.names
        return int(limits.get(names.core, 0)), int(limits.get(names.memory, 0))
