"""How GPUs of a node are linked: one function from a pair of minors to its link for each shape that exists.

In: nothing. Out: shapes, and `topology`, which applies one to so many GPUs. Used by tests and benchmarks of placement.
"""

from collections.abc import Callable
from itertools import combinations

from deviceplugin.model.topology import Level, Link, Topology

Shape = Callable[[int, int], Link]

PIX, PXB, PHB, NODE, SYS = (Link(level) for level in (Level.PIX, Level.PXB, Level.PHB, Level.NODE, Level.SYS))
NVLINK = Link(Level.SYS, nvlinks=4)
APART = Link(None)
ALL_LINKS = (NVLINK, Link(Level.INTERNAL), PIX, PXB, PHB, NODE, SYS, APART)


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


def topology(count: int, shape: Shape) -> Topology:
    return Topology(tuple(range(count)), {(a, b): shape(a, b) for a, b in combinations(range(count), 2)})
