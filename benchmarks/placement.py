"""The time of a placement decision: `place` on link topologies that exist and on random ones.

    python -m benchmarks.placement [--output json] [--short]

In: nothing. Out: milliseconds of processor time for one decision, including the explanation for every other GPU; the
best of several runs, because the machine may be busy. A benchmark, not a test.
"""

import json
import random
import time
import timeit
from collections.abc import Iterator, Sequence
from itertools import combinations

from benchmarks.command import ends_in_one_sentence, options
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.placement.node_state import node_state
from deviceplugin.placement.pod import place
from deviceplugin.placement.snapshot import Snapshot
from sandbox.gpu_links import ALL_LINKS, NVLINK, SYS, Shape, cube_mesh, nvswitch, pcie_tree, topology, two_halves

RUNS = 7
RANDOM_NODES = 60
CASES = [(16, 2), (16, 8), (16, 12), (64, 8), (64, 32)]
SHORT = (CASES[:1], 1, 2)


def snapshot(count: int, shape: Shape) -> Snapshot:
    """A node of free GPUs."""
    gpus = tuple(Gpu(GpuUuid(f"GPU-{minor}"), minor, minor, "Test", 320 * BLOCK_BYTES) for minor in range(count))
    return node_state("node", Inventory(gpus, topology(count, shape), Driver("", (0, 0))), ()).snapshot


def named_nodes(count: int) -> Iterator[tuple[str, Snapshot]]:
    for shape in (nvswitch, two_halves, pcie_tree, cube_mesh):
        yield shape.__name__, snapshot(count, shape)
    yield "hypercube", snapshot(count, lambda a, b: NVLINK if (a ^ b).bit_count() == 1 else SYS)
    yield "ring", snapshot(count, lambda a, b: NVLINK if b - a in (1, count - 1) else SYS)


def random_nodes(count: int, seeds: int) -> Iterator[Snapshot]:
    for seed in range(seeds):
        drawn = random.Random(seed)
        palette = drawn.choices(ALL_LINKS, k=drawn.randint(2, 8))
        links = {pair: drawn.choice(palette) for pair in combinations(range(count), 2)}
        yield snapshot(count, lambda a, b, links=links: links[a, b])  # type: ignore[misc]


def milliseconds(request: Request, node: Snapshot, runs: int) -> float:
    took = timeit.repeat(lambda: place(request, node), timer=time.process_time, number=1, repeat=runs)
    return round(min(took) * 1000, 2)


def measure(cases: Sequence[tuple[int, int]], runs: int, seeds: int) -> Iterator[dict[str, object]]:
    for count, size in cases:
        request = Request(size * 100, 0)
        for name, node in named_nodes(count):
            yield {"gpus": count, "asked": size, "links": name, "ms": milliseconds(request, node, runs)}
        drawn = sorted(milliseconds(request, node, runs) for node in random_nodes(count, seeds))
        yield {"gpus": count, "asked": size, "links": f"random, median of {len(drawn)}", "ms": drawn[len(drawn) // 2]}
        yield {"gpus": count, "asked": size, "links": f"random, worst of {len(drawn)}", "ms": drawn[-1]}


def main() -> None:
    given = options(__doc__).parse_args()
    rows = list(measure(*(SHORT if given.short else (CASES, RUNS, RANDOM_NODES))))
    if given.output == "json":
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['asked']:>2} of {row['gpus']:>2}  {row['ms']:>7.2f} ms  {row['links']}")


if __name__ == "__main__":
    ends_in_one_sentence(main)
