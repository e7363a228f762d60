"""How long a decision takes: `place` on shapes that exist and on links drawn at random.

    python -m benchmarks.placement [--output json]

In: nothing. Out: milliseconds of processor time for one decision, explanation of every other GPU included; the best of
several runs, because the machine may be busy with other work. A benchmark, never a test.
"""

import argparse
import json
import random
import time
import timeit
from collections.abc import Iterator
from itertools import combinations

from deviceplugin.model.request import Request
from deviceplugin.placement.place import place
from deviceplugin.placement.snapshot import Snapshot
from tests.placement.nodes import ALL_LINKS, NVLINK, SYS, cube_mesh, nvswitch, pcie_tree, snapshot, two_halves

RUNS = 7
RANDOM_NODES = 60
CASES = [(16, 2), (16, 8), (16, 12), (64, 8), (64, 32)]


def named_nodes(count: int) -> Iterator[tuple[str, Snapshot]]:
    for shape in (nvswitch, two_halves, pcie_tree, cube_mesh):
        yield shape.__name__, snapshot(count, shape)
    yield "hypercube", snapshot(count, lambda a, b: NVLINK if (a ^ b).bit_count() == 1 else SYS)
    yield "ring", snapshot(count, lambda a, b: NVLINK if b - a in (1, count - 1) else SYS)


def random_nodes(count: int) -> Iterator[Snapshot]:
    for seed in range(RANDOM_NODES):
        drawn = random.Random(seed)
        palette = drawn.choices(ALL_LINKS, k=drawn.randint(2, 8))
        links = {pair: drawn.choice(palette) for pair in combinations(range(count), 2)}
        yield snapshot(count, lambda a, b, links=links: links[a, b])  # type: ignore[misc]


def milliseconds(request: Request, node: Snapshot) -> float:
    runs = timeit.repeat(lambda: place(request, node), timer=time.process_time, number=1, repeat=RUNS)
    return round(min(runs) * 1000, 2)


def measure() -> Iterator[dict[str, object]]:
    for count, size in CASES:
        request = Request(size * 100, 0)
        for name, node in named_nodes(count):
            yield {"gpus": count, "asked": size, "links": name, "ms": milliseconds(request, node)}
        drawn = sorted(milliseconds(request, node) for node in random_nodes(count))
        yield {"gpus": count, "asked": size, "links": f"random, median of {len(drawn)}", "ms": drawn[len(drawn) // 2]}
        yield {"gpus": count, "asked": size, "links": f"random, worst of {len(drawn)}", "ms": drawn[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", choices=["text", "json"], default="text")
    rows = list(measure())
    if parser.parse_args().output == "json":
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['asked']:>2} of {row['gpus']:>2}  {row['ms']:>7.2f} ms  {row['links']}")


if __name__ == "__main__":
    main()
