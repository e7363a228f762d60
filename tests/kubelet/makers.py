"""Short ways to make the values that the tests of the kubelet edge need."""

from pathlib import Path
from tempfile import mkdtemp

from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import BLOCK_BYTES, Resource


def fresh(base: Path) -> Path:
    """A directory of its own below, with a short name: unix sockets lie in it."""
    return Path(mkdtemp(dir=base, prefix=""))


def gpu(minor: int, *, blocks: int = 64, numa: int | None = None) -> Gpu:
    return Gpu(GpuUuid(f"GPU-{minor}"), minor, minor, "Test GPU", blocks * BLOCK_BYTES, numa=numa)


def inventory(count: int, *, blocks: int = 64, unhealthy: tuple[int, ...] = ()) -> Inventory:
    gpus = tuple(gpu(minor, blocks=blocks, numa=minor // 2) for minor in range(count))
    links = {(a, b): Link(Level.PHB) for a in range(count) for b in range(a)}
    health = {GpuUuid(f"GPU-{minor}"): Health(healthy=False, reason="XID 79") for minor in unhealthy}
    return Inventory(gpus, Topology(tuple(range(count)), links), Driver("550.54.15", (12, 4)), health)


def pod(
    name: str,
    *containers: tuple[str, int, int],
    init: tuple[tuple[str, int, int], ...] = (),
    sidecars: tuple[str, ...] = (),
    state: ContainerState = ContainerState.UNKNOWN,
    **fields: object,
) -> Pod:
    """Containers are (name, cores, blocks); `sidecars` names the init containers that restart always."""
    ref = PodRef(PodUid(f"uid-{name}"), "default", name)

    def role(listed: str, inits: bool) -> ContainerRole:
        if not inits:
            return ContainerRole.APP
        return ContainerRole.SIDECAR if listed in sidecars else ContainerRole.INIT

    made = tuple(
        PodContainer(ContainerRef(ref, each[0]), role(each[0], inits), index, each[1], each[2], state=state)
        for inits, group in ((True, init), (False, containers))
        for index, each in enumerate(group)
    )
    return Pod(ref, made, **fields)  # type: ignore[arg-type]


def grant(container: PodContainer, *shares: tuple[int, int, int], grant_id: str = "g-1", **fields: object) -> Grant:
    """Shares are (minor, cores, blocks)."""
    allocation = Allocation(
        container.ref,
        container.role,
        Request(container.cores, container.blocks),
        tuple(GpuShare(GpuUuid(f"GPU-{minor}"), cores, blocks) for minor, cores, blocks in shares),
        container.index,
    )
    values: dict[str, object] = {"answered": frozenset({Resource.CORE}), "source": Source.PODS, "proved": False}
    return Grant(GrantId(grant_id), allocation, created=1.0, **(values | fields))  # type: ignore[arg-type]
