"""Whether agent, kubelet and containers of a node agree on who has which GPU.

In: a node with its agent's usage document. Out: pods as API server, kubelet and container runtime show them without the
agent, and what is wrong, in sentences. Not here: waiting until a change has arrived everywhere.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from deviceplugin.observe.usage import ContainerUsage, Usage
from sandbox.gpunode import GpuNode
from sandbox.kubelet import ContainerView
from sandbox.kubelet.podspec import Container, Role, parse_pod

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
LIMITS = "/etc/vcuda/vcuda.config"
LIMITS_BYTES = 8240
GRANT_MOUNT = "/etc/vcuda"
DEVICE = "/dev/nvidia"


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

    @property
    def grant_mount(self) -> str:
        mounts = (mount.host_path for mount in self.view.mounts if mount.container_path == GRANT_MOUNT)
        return next(mounts, "nothing")


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


def look(node: GpuNode, name: str, *, namespace: str) -> SeenPod:
    raw = node.server.store.get("pods", name, namespace=namespace)
    parsed = parse_pod(raw)
    started = [item for item in parsed.containers if node.kubelet.started(parsed.uid, item.name)]
    containers = tuple(_container(node, parsed.uid, item) for item in started)
    return SeenPod(parsed.name, parsed.uid, parsed.phase, raw["status"].get("message", ""), containers)


def minors(view: ContainerView) -> list[int]:
    """The GPUs whose device nodes a container has."""
    names = (node.container_path.removeprefix(DEVICE) for node in view.devices)
    return [int(name) for name in names if name.isdecimal()]


def wrong_answers(pods: Iterable[SeenPod], usage: Usage) -> list[str]:
    """Where a container sees other GPUs than the ledger has for it, or a limits file or grant of another."""
    entries = {(entry.uid, entry.container): entry for entry in usage.containers}
    containers = [(pod, container) for pod in pods for container in pod.containers]
    wrong: list[str] = []
    for pod, container in containers:
        entry = entries.get((pod.uid, container.name))
        if entry is not None:
            wrong += [f"{pod.name}/{container.name} {fault}" for fault in _faults(container, entry)]
        elif not container.init:
            wrong.append(f"{pod.name}/{container.name} runs and is not in the ledger")
    grants = Counter(container.grant_mount for _, container in containers)
    return wrong + [f"{times} containers mount {path}" for path, times in grants.items() if times > 1]


def given_twice(usage: Usage) -> list[str]:
    """GPUs with more than 100 cores or their own blocks given, or with sums that disagree with their holders."""
    wrong: list[str] = []
    for gpu in usage.gpus:
        cores, blocks = _taken(usage, gpu.uuid)
        if cores > 100 or blocks > gpu.blocks:
            wrong.append(f"GPU {gpu.minor} has given {cores} cores and {blocks} blocks of {gpu.blocks}")
        if (cores, blocks) != (gpu.cores_allocated, gpu.blocks_allocated):
            wrong.append(f"GPU {gpu.minor} reports {gpu.cores_allocated} cores, its holders have {cores}")
    return wrong


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


def _faults(container: SeenContainer, entry: ContainerUsage) -> Iterable[str]:
    visible = container.view.env.get("NVIDIA_VISIBLE_DEVICES")
    uuids = ",".join(share.uuid for share in entry.gpus)
    if sorted((visible or "").split(",")) != sorted(uuids.split(",")):
        yield f"sees {visible!r}, the ledger says {uuids!r}"
    if sorted(container.gpus) != sorted(share.minor for share in entry.gpus if share.minor is not None):
        yield f"has the device nodes of GPUs {container.gpus}, not the ledger's"
    if not container.grant_mount.endswith(f"/{entry.grant}"):
        yield f"mounts {container.grant_mount!r}, not its grant {entry.grant}"
    if (entry.cores, entry.blocks) != (container.cores, container.blocks):
        yield f"asked for {container.cores}/{container.blocks}, the ledger has {entry.cores}/{entry.blocks}"
    if (container.core_ids, container.memory_ids) != (container.cores, container.blocks):
        yield f"holds {container.core_ids} core and {container.memory_ids} memory IDs at kubelet"
    if container.limits_file_bytes != LIMITS_BYTES:
        yield f"has a limits file of {container.limits_file_bytes} bytes that names it, not {LIMITS_BYTES}"


def _taken(usage: Usage, uuid: str) -> tuple[int, int]:
    """What pods hold of one GPU: cores and blocks."""
    pods: dict[str, list[ContainerUsage]] = {}
    for entry in usage.containers:
        pods.setdefault(entry.uid, []).append(entry)
    held = [_held_by_pod(entries, uuid) for entries in pods.values()]
    return sum(cores for cores, _ in held), sum(blocks for _, blocks in held)


def _held_by_pod(entries: Iterable[ContainerUsage], uuid: str) -> tuple[int, int]:
    """Init containers run before the others: the larger of the largest init container and the sum of the others."""
    shares = [(entry.role == "init", share) for entry in entries for share in entry.gpus if share.uuid == uuid]
    cores = sum(share.cores for init, share in shares if not init)
    blocks = sum(share.blocks for init, share in shares if not init)
    for share in (share for init, share in shares if init):
        cores, blocks = max(cores, share.cores), max(blocks, share.blocks)
    return cores, blocks
