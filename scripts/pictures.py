"""Draws what the policies do into the pages that explain them.

In: small scenes, and the placement code of the cluster. Out: the text from `<!-- picture: NAME -->` to the end of
the code block below it, in every page with such a mark; with --check an exit status that says whether the pages agree
with the code. scripts/docs runs it. No answer is written here: `placement` decides who gets which place and what is
left.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.placement.capacity_after import capacities_of, free_cores
from deviceplugin.placement.fragmentation import ASSUMED, NO_NEEDS, Fragmentation, by_count, stranded
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.snapshot import GpuView, Snapshot, snapshot_for

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/policies.md",)
_BLOCKS = 64
_TENTHS = 10
_USED, _POD, _FREE = "█", "▓", "░"
_MARK = re.compile(r"(<!-- picture: ([\w-]+) -->\n```\n).*?(```\n)", re.DOTALL)

Pieces = dict[GpuUuid, str]
"""How full each GPU is, one sign for each tenth."""


def pod(cores: int, *, parts: int = 1) -> PodRequest:
    """Its share of memory is its share of cores."""
    blocks = 0 if cores >= CORES_PER_GPU * parts else cores * _BLOCKS // CORES_PER_GPU // parts * parts
    request = Request(cores, blocks, parts)
    return PodRequest(PodRef(PodUid("pod"), "", "pod"), (ContainerRequest("main", ContainerRole.APP, 0, request),))


def node(name: str, *used: int, links: Mapping[tuple[int, int], Level] | None = None) -> NodeState:
    """`used`: allocated cores of each GPU."""
    gpus = tuple(Gpu(GpuUuid(f"{name}/{at}"), at, at, "A100", _BLOCKS * BLOCK_BYTES) for at in range(len(used)))
    pairs = {pair: Link((links or {}).get(pair, Level.SYS)) for pair in combinations(range(len(used)), 2)}
    empty = snapshot_for(Inventory(gpus, Topology(tuple(range(len(used))), pairs), Driver("", (0, 0))), ())
    views = tuple(
        GpuView(view.gpu, CORES_PER_GPU - taken, _BLOCKS - taken * _BLOCKS // CORES_PER_GPU)
        for view, taken in zip(empty.gpus, used, strict=True)
    )
    return NodeState(name, Snapshot(views, empty.topology))


def pieces(nodes: Sequence[NodeState]) -> Pieces:
    return {
        view.gpu.uuid: _USED * _tenths(CORES_PER_GPU - view.free_cores) for each in nodes for view in each.snapshot.gpus
    }


def _tenths(cores: int) -> int:
    return -(-cores * _TENTHS // CORES_PER_GPU)


def arrive(asked: PodRequest, sign: str, nodes: list[NodeState], drawn: Pieces, policy: NodePolicy) -> bool:
    """Places the pod as the policy does; returns whether there was room."""
    choice = NodeScorer(node_policy=policy).choose(asked, nodes)
    if choice.placed is None:
        return False
    nodes[:] = [
        each.with_pod(choice.placed.allocations, needs=NO_NEEDS) if each.name == choice.node else each for each in nodes
    ]
    for share in (share for each in choice.placed.allocations for share in each.shares):
        drawn[share.uuid] += sign * _tenths(share.cores)
    return True


def columns(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, first: str = "") -> str:
    """Lines of a label and one cell below each heading."""
    label = max(len(first), *(len(name) for name, _ in rows)) + 2
    widths = [max(len(head[at]), *(len(cells[at]) for _, cells in rows if cells)) for at in range(len(head))]
    lines = [(first, head), *rows]
    shown = (
        f"{name:<{label}}" + "   ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False))
        for name, cells in lines
    )
    return "".join(line.rstrip() + "\n" for line in shown)


def node_policies(*asked: tuple[str, PodRequest], scene: Sequence[NodeState]) -> str:
    """The same pods by each policy, and what is left."""
    after: list[tuple[list[NodeState], Pieces, str]] = []
    for policy in NodePolicy:
        nodes, drawn = list(scene), pieces(scene)
        wait = "".join(sign for sign, each in asked if not arrive(each, sign, nodes, drawn, policy))
        after.append((nodes, drawn, wait))
    rows: list[tuple[str, Sequence[str]]] = [
        (each.name, [" ".join(_bar(drawn, view) for view in each.snapshot.gpus) for _, drawn, _ in after])
        for each in scene
    ]
    rows += [("", ()), ("GPUs left whole", [_whole(nodes) for nodes, _, _ in after])]
    rows.append(("useless cores", [_useless(nodes) for nodes, _, _ in after]))
    if any(wait for _, _, wait in after):
        rows.append(("pending", [wait or "nobody" for _, _, wait in after]))
    return columns([policy.value for policy in NodePolicy], rows)


def _bar(drawn: Pieces, view: GpuView) -> str:
    return f"{drawn[view.gpu.uuid]:{_FREE}<{_TENTHS}}"


def _whole(nodes: Sequence[NodeState]) -> str:
    counts = [sum(view.capacity.is_whole for view in each.snapshot.gpus) for each in nodes]
    return f"{sum(counts)}, {max(counts)} on one node"


def _useless(nodes: Sequence[NodeState]) -> str:
    """Free cores that the next pod of an assumed workload cannot use."""
    measure = Fragmentation(ASSUMED, weigh=by_count)
    lost = sum(stranded(measure, capacities_of(each), None) for each in nodes) // measure.weight
    return f"{lost} of {sum(free_cores(capacities_of(each)) for each in nodes)} free"


def gpu_policies(asked: PodRequest, scene: NodeState, tree: Sequence[str]) -> str:
    """One node; `tree` is drawn before the GPUs, one line for each."""
    after = [pieces([scene]) for _ in GpuPolicy]
    for policy, drawn in zip(GpuPolicy, after, strict=True):
        for share in place_pod(asked, scene, policy=policy).allocations[0].shares:
            drawn[share.uuid] += _POD * _tenths(share.cores)
    rows = [
        (f"{branch} GPU {view.gpu.minor}", [_bar(drawn, view) for drawn in after])
        for branch, view in zip(tree, scene.snapshot.gpus, strict=True)
    ]
    return columns([policy.value for policy in GpuPolicy], rows)


_PAIRS = {(at, at + 1): Level.PIX for at in range(0, 8, 2)}
_HALVES = {(a, b): Level.PHB for half in (0, 4) for a, b in combinations(range(half, half + 4), 2)} | _PAIRS
SIX = node("gpu-7", 20, 50, 60, 80, 0, 90, links=_PAIRS)
EIGHT = node("gpu-8", 50, 0, 0, 0, 0, 0, 0, 0, links=_HALVES)
SIX_TREE = ("one switch ┬", "           └") * 3
EIGHT_TREE = (
    "┬ one switch ┬", "│            └", "└ one switch ┬", "             └",
    "┬ one switch ┬", "│            └", "└ one switch ┬", "             └",
)  # fmt: skip
THREE = (node("node-a", 100, 40), node("node-b", 50, 0), node("node-c", 0, 0))
FOUR = tuple(node(f"node-{letter}", 0, 0) for letter in "abcd")
DAY = (("a", 40), ("b", 100), ("c", 70), ("d", 20), ("e", 60), ("f", 60), ("g", 60), ("h", 200), ("i", 100))

PICTURES: Mapping[str, Callable[[], str]] = {
    "node-policies": lambda: node_policies((_POD, pod(50)), scene=THREE),
    "node-policies-day": lambda: node_policies(*((sign, pod(cores)) for sign, cores in DAY), scene=FOUR),
    "gpu-policies": lambda: gpu_policies(pod(60, parts=2), SIX, SIX_TREE),
    "gpu-policies-share": lambda: gpu_policies(pod(20), SIX, SIX_TREE),
    "gpu-policies-several": lambda: gpu_policies(pod(200), EIGHT, EIGHT_TREE),
}


def drawn_page(text: str) -> str:
    return _MARK.sub(lambda mark: f"{mark[1]}{PICTURES[mark[2]]()}{mark[3]}", text)


def marks(text: str) -> Iterator[str]:
    return (found[2] for found in _MARK.finditer(text))


def main(*, check: bool) -> int:
    """Draws into the pages, or compares them; the status is that of the process."""
    status = 0
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        if (new := drawn_page(text)) == text:
            continue
        if check:
            print(f"docs: the pictures of {name} are stale; run scripts/docs", file=sys.stderr)
            status = 1
        else:
            (ROOT / name).write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main(check="--check" in sys.argv[1:]))
