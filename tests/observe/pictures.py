"""Nodes to draw: of any size, with any tenants."""

from collections.abc import Iterable

from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import ContainerUse, Driver, Gpu, GpuSample, GpuUuid, Health, Inventory
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import MIB, Resource
from deviceplugin.observe.node_view import NodePicture

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
DRIVER = Driver("550.54.15", (12, 4))


def uuid(minor: int) -> GpuUuid:
    return GpuUuid(f"GPU-{minor:08d}")


def gpu(
    minor: int,
    *,
    index: int | None = None,
    model: str = A100,
    mib: int = 81920,
    mig: bool = False,
    numa: int | None = None,
) -> Gpu:
    index = minor if index is None else index
    return Gpu(uuid(minor), index, minor, model, mib * MIB, numa=numa, mig_enabled=mig)


def by_groups(count: int, *groups: tuple[Level, int], nvlinks: int = 0) -> Topology:
    """Minor numbers 0..count-1; two in the same group of that size meet at its level, the nearest one wins."""
    links = {}
    for a in range(count):
        for b in range(a + 1, count):
            level = next((level for level, size in groups if a // size == b // size), None)
            links[a, b] = Link(level, nvlinks)
    return Topology(tuple(range(count)), links)


def grant(
    name: str,
    *minors: int,
    cores: int = 100,
    blocks: int = 320,
    role: ContainerRole = ContainerRole.APP,
    proved: bool = True,
    uid: str = "",
    shares: Iterable[GpuShare] | None = None,
) -> Grant:
    """`name` is namespace/pod/container; the same of each minor."""
    namespace, pod, container = name.split("/")
    held = tuple(shares) if shares is not None else tuple(GpuShare(uuid(minor), cores, blocks) for minor in minors)
    total = Request(cores=cores * len(minors), blocks=blocks * len(minors))
    owner = ContainerRef(PodRef(PodUid(uid or f"uid-{namespace}-{pod}"), namespace, pod), container)
    allocation = Allocation(owner=owner, role=role, request=total, shares=held)
    both = frozenset({Resource.CORE, Resource.MEMORY})
    return Grant(GrantId(f"g-{name.replace('/', '-')}"), allocation, both, Source.PODS, proved, 1_760_000_000.5)


def node(
    gpus: Iterable[Gpu],
    topology: Topology,
    *grants: Grant,
    name: str = "gpu-7",
    samples: dict[GpuUuid, GpuSample] | None = None,
    health: dict[GpuUuid, Health] | None = None,
    uses: dict[str, ContainerUse] | None = None,
    xids: dict[tuple[GpuUuid, str], int] | None = None,
    critical_errors: dict[GpuUuid, int] | None = None,
) -> NodePicture:
    """`uses` are keyed as `grant` is named."""
    inventory = Inventory(tuple(gpus), topology, DRIVER, health or {})
    used = {GrantId(f"g-{key.replace('/', '-')}"): use for key, use in (uses or {}).items()}
    errors = critical_errors or {}
    return NodePicture(name, inventory, grants, samples or {}, used, xids=xids or {}, critical_errors=errors)


def hgx(*grants: Grant, **more: dict[GpuUuid, Health]) -> NodePicture:
    """Eight GPUs, all joined by NVLink."""
    topology = by_groups(8, (Level.PXB, 2), (Level.NODE, 4), (Level.SYS, 8), nvlinks=12)
    return node([gpu(minor) for minor in range(8)], topology, *grants, health=more.get("health"))


def pcie(count: int, *grants: Grant, health: dict[GpuUuid, Health] | None = None) -> NodePicture:
    """Two sockets, pairs below a switch."""
    topology = by_groups(
        count, (Level.PIX, 2), (Level.PXB, 4), (Level.PHB, 8), (Level.NODE, max(1, count // 2)), (Level.SYS, count)
    )
    return node([gpu(minor) for minor in range(count)], topology, *grants, health=health)
