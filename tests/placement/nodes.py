"""Nodes for the tests of placement: shapes that exist, shapes that are drawn, and snapshots of them."""

from collections.abc import Iterable, Mapping
from itertools import combinations

from hypothesis import strategies as st

from deviceplugin.model.allocation import Allocation, ContainerRole, PodUid
from deviceplugin.model.gpu import ComputeMode, Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.placement.snapshot import GpuView, Snapshot, free_for_next_container, snapshot_for
from sandbox.gpu_links import ALL_LINKS, Shape, t6, topology


def gpu(
    minor: int,
    *,
    blocks: int = 320,
    mode: ComputeMode = ComputeMode.DEFAULT,
    mig: bool = False,
    numa: int | None = None,
) -> Gpu:
    uuid = GpuUuid(f"GPU-{minor}")
    return Gpu(uuid, minor, minor, "Test", blocks * BLOCK_BYTES, numa=numa, compute_mode=mode, mig_enabled=mig)


def snapshot(
    count: int,
    shape: Shape = t6,
    *,
    used: Mapping[int, tuple[int, int]] | None = None,
    processes: Mapping[int, int] | None = None,
    ill: Mapping[int, str] | None = None,
    gpus: Mapping[int, Gpu] | None = None,
) -> Snapshot:
    """`used` has cores and blocks that are taken, by minor."""
    views = []
    for minor in range(count):
        card = (gpus or {}).get(minor) or gpu(minor)
        cores, blocks = (used or {}).get(minor, (0, 0))
        health = Health(healthy=False, reason=ill[minor]) if ill and minor in ill else Health()
        running = (processes or {}).get(minor, 0)
        views.append(GpuView(card, 100 - cores, card.blocks - blocks, running, health))
    return Snapshot(tuple(views), topology(count, shape))


def node_of(count: int, blocks: int, *, health: dict[GpuUuid, Health] | None = None) -> Inventory:
    """As an agent reads it."""
    cards = tuple(gpu(minor, blocks=blocks) for minor in range(count))
    return Inventory(cards, topology(count, t6), Driver("550.54.15", (12, 4)), health or {})


def view_of(node: Snapshot, uuid: GpuUuid) -> GpuView:
    return next(view for view in node.gpus if view.gpu.uuid == uuid)


def free_for(
    inventory: Inventory,
    allocations: Iterable[Allocation],
    pod: PodUid,
    role: ContainerRole = ContainerRole.APP,
    index: int = 0,
) -> Snapshot:
    """What a further container of the pod may have."""
    held = list(allocations)
    own = [each for each in held if each.owner.pod.uid == pod]
    others = snapshot_for(inventory, (each for each in held if each.owner.pod.uid != pod))
    return free_for_next_container(others, own, role=role, index=index)


@st.composite
def snapshots(draw: st.DrawFn, *, at_least: int = 1, at_most: int = 9) -> Snapshot:
    """Any links, also such as no tree has; some GPUs used, unhealthy, closed or of another size."""
    count = draw(st.integers(at_least, at_most))
    palette = draw(st.lists(st.sampled_from(ALL_LINKS), min_size=1, max_size=4))
    links = {pair: draw(st.sampled_from(palette)) for pair in combinations(range(count), 2)}
    rarely = st.sampled_from([False] * 7 + [True])
    modes = st.sampled_from([ComputeMode.DEFAULT] * 6 + [ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED])
    gpus = {
        minor: gpu(minor, blocks=draw(st.sampled_from([64, 64, 160, 320])), mode=draw(modes), mig=draw(rarely))
        for minor in range(count)
    }
    used = {minor: (draw(st.integers(1, 100)), draw(st.integers(0, 64))) for minor in range(count) if draw(rarely)}
    ill = {minor: "XID 79" for minor in range(count) if draw(rarely)}
    processes = {minor: draw(st.integers(0, 3)) for minor in range(count)}
    return snapshot(count, lambda a, b: links[a, b], used=used, processes=processes, ill=ill, gpus=gpus)
