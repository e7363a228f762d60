"""Nodes for the tests of placement: shapes that exist, shapes that are drawn, and snapshots of them."""

from collections.abc import Callable, Mapping
from itertools import combinations

from hypothesis import strategies as st

from deviceplugin.model.gpu import ComputeMode, Gpu, GpuUuid, Health
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.placement.snapshot import GpuView, Snapshot

Shape = Callable[[int, int], Link]

PIX, PXB, PHB, NODE, SYS = (Link(level) for level in (Level.PIX, Level.PXB, Level.PHB, Level.NODE, Level.SYS))
NVLINK = Link(Level.SYS, nvlinks=4)
APART = Link(None)


def t6(a: int, b: int) -> Link:
    """The topology of the worked cases: PIX pairs, PHB over the first four, SOC over all."""
    return PIX if a // 2 == b // 2 else PHB if max(a, b) < 4 else NODE


def nvswitch(_a: int, _b: int) -> Link:
    return NVLINK


def two_halves(a: int, b: int) -> Link:
    return NVLINK if a // 8 == b // 8 else SYS


def pcie_tree(a: int, b: int) -> Link:
    if a // 2 == b // 2:
        return PIX
    return PXB if a // 4 == b // 4 else NODE if a // 8 == b // 8 else SYS


_MESH = {(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7)}
_MESH |= {(4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)}


def cube_mesh(a: int, b: int) -> Link:
    """The DGX-1's hybrid cube mesh, twice on 16 GPUs: NVLink joins all, but not each pair, so no tree tells it all."""
    if a // 8 != b // 8:
        return SYS
    if (a % 8, b % 8) in _MESH:
        return NVLINK
    return PIX if a // 2 == b // 2 else NODE if a // 4 == b // 4 else SYS


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


def topology(count: int, shape: Shape) -> Topology:
    return Topology(tuple(range(count)), {(a, b): shape(a, b) for a, b in combinations(range(count), 2)})


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


ALL_LINKS = (NVLINK, Link(Level.INTERNAL), PIX, PXB, PHB, NODE, SYS, APART)


@st.composite
def snapshots(draw: st.DrawFn, *, at_least: int = 1, at_most: int = 9) -> Snapshot:
    """Any links, also such as no tree has; some GPUs used, ill, closed or of another size."""
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
