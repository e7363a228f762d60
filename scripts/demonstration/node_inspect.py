"""Looks at a node's pods without the agent: the API server's phase, kubelet's device IDs, the container's view.

In: a node and the name of a pod. Out: `SeenPod`s.
"""

from dataclasses import dataclass

from sandbox.gpunode import GpuNode
from sandbox.kubelet import ContainerView
from sandbox.kubelet.podspec import Container, Role, parse_pod
from scripts.demonstration.pods import CORE, MEMORY, NAMESPACE, Json

LIMITS = "/etc/vcuda/vcuda.config"
PREFIX = "/dev/nvidia"


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """One started container: what it asked for, how many device IDs kubelet holds for it, and what it sees."""

    name: str
    init: bool
    cores: int
    blocks: int
    core_ids: int
    memory_ids: int
    view: ContainerView

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted(minors(self.view)))

    @property
    def limits_file_bytes(self) -> int:
        """Size of the limits file if it names this pod and this container, else 0."""
        content = self.view.files.get(LIMITS, b"")
        return len(content) if self.view.uid.encode() in content and self.name.encode() in content else 0


@dataclass(frozen=True, slots=True)
class SeenPod:
    """One pod; `message` says why it was refused."""

    name: str
    uid: str
    phase: str
    message: str
    containers: tuple[SeenContainer, ...]

    @property
    def gpus(self) -> tuple[int, ...]:
        """Of the containers that stay, by minor."""
        return tuple(sorted({gpu for each in self.containers if not each.init for gpu in each.gpus}))


def pod(node: GpuNode, name: str, *, namespace: str = NAMESPACE) -> SeenPod:
    raw: Json = node.server.store.get("pods", name, namespace=namespace)
    parsed = parse_pod(raw)
    started = [item for item in parsed.containers if node.kubelet.started(parsed.uid, item.name)]
    containers = tuple(_container(node, parsed.uid, item) for item in started)
    return SeenPod(parsed.name, parsed.uid, parsed.phase, raw["status"].get("message", ""), containers)


def waiting(node: GpuNode, name: str) -> str:
    """Why the containers of a pod do not start."""
    status: Json = node.server.store.get("pods", name, namespace=NAMESPACE)["status"]
    states = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    held = [item["state"]["waiting"] for item in states if "waiting" in item["state"]]
    return "; ".join(f"{item['reason']}: {item['message']}" for item in held) or "kubelet has not looked at it"


def minors(view: ContainerView) -> list[int]:
    names = (node.container_path.removeprefix(PREFIX) for node in view.devices)
    return [int(name) for name in names if name.isdecimal()]


def _container(node: GpuNode, uid: str, item: Container) -> SeenContainer:
    held = node.kubelet.devices_of(uid, item.name)
    return SeenContainer(
        name=item.name,
        init=item.role is Role.INIT,
        cores=item.limits.get(CORE, 0),
        blocks=item.limits.get(MEMORY, 0),
        core_ids=len(held.get(CORE, ())),
        memory_ids=len(held.get(MEMORY, ())),
        view=node.kubelet.container_view(uid, item.name),
    )
