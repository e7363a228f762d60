"""The processes of containers as the host sees them, and gpu-manager's client's call on their behalf.

In: a container's id or socket. Out: PIDs; files written by the agent. Not here: what ought to be in them.
Invariant: processes are found by the id in /proc/PID/cgroup, another way than the agent's first one.
"""

from collections.abc import Set
from pathlib import Path

import grpc

from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc


def processes_of(container_id: str) -> set[int]:
    """`container_id` as the pod's status has it, with the runtime's name."""
    wanted = container_id.partition("://")[2].encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                groups = (entry / "cgroup").read_bytes()
            except OSError:
                continue
            if wanted in groups:
                found.add(int(entry.name))
    return found


def first_and_child(pids: Set[int]) -> tuple[int, int]:
    """One that has a child among them, and that child. PIDs wrap, so a lower one is not older."""
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    child = next(pid for pid, parent in parents.items() if parent in pids)
    return parents[child], child


def register(socket: Path, container_id: str) -> None:
    """As the client in the container does it at its first CUDA call."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        request = pb.VDeviceRequest(pod_uid="", container_id=container_id.partition("://")[2])
        rpc.VCUDAServiceStub(channel).RegisterVDevice(request, timeout=60, wait_for_ready=True)
