"""Whether a pod may run here: kubelet's admit handlers, in their order.

In: one pod at a time, in the order in which kubelet heard of them. Out: nothing, or a `RefusalError` with the reason
and message that end up in the pod's status. Order: sysctls, then devices (so Allocate runs before the
node-fit check), then node fit, after which a refused pod's devices are simply forgotten. Nobody tries it again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandbox.kubelet.allocation import Allocator
from sandbox.kubelet.choosing import AllocationError
from sandbox.kubelet.devices import DeviceStore
from sandbox.kubelet.podspec import Pod, Role

# pkg/kubelet/sysctl/safe_sysctls.go, on a kernel that has all of them (4.15 and newer).
SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)


class RefusalError(Exception):
    """The pod is refused and never tried again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Admission:
    """The chain of handlers."""

    allocator: Allocator
    store: DeviceStore
    cpu_cores: int

    async def admit(self, pod: Pod, *, others: Iterable[Pod], running: Callable[[str], bool]) -> None:
        """`running` says which containers to leave alone, while kubelet has just restarted."""
        self._sysctls(pod)
        for container in pod.containers:
            try:
                await self.allocator.allocate(pod, container, skip=running(container.name))
            except AllocationError as error:
                message = f"Allocate failed due to {error}, which is unexpected"
                raise RefusalError("UnexpectedAdmissionError", message) from error
        self._node_fit(pod, others)

    def _sysctls(self, pod: Pod) -> None:
        for name in pod.sysctls:
            if name not in SAFE_SYSCTLS:
                raise RefusalError("SysctlForbidden", f'forbidden sysctl: "{name}" not allowlisted')

    def _node_fit(self, pod: Pod, others: Iterable[Pod]) -> None:
        """Resources that no plugin has registered are not counted, as kubelet drops unknown ones."""
        capacity = self.cpu_cores * 1000
        used = sum(_cpu(other) for other in others if other.uid != pod.uid)
        if _cpu(pod) + used > capacity:
            raise RefusalError(
                "OutOfcpu",
                f"Node didn't have enough resource: cpu, requested: {_cpu(pod)}, used: {used}, capacity: {capacity}",
            )


def _cpu(pod: Pod) -> int:
    apps = sum(container.cpu_milli for container in pod.of_role(Role.APP, Role.SIDECAR))
    return max([apps, *(container.cpu_milli for container in pod.of_role(Role.INIT))])
