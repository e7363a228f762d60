"""Writes the example trace of the documentation: a small cluster and its tasks, drawn at random.

    python -m benchmarks.traces.example

In: nothing. Out: example-nodes.csv and example-pods.csv beside this file, always the same bytes. The columns are those
of the openb trace; the numbers are not copied from it. There are few CPUs for each GPU and many shares that do not
divide a GPU, so that the policies differ.
"""

import csv
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
SEED = 20260
NODES = (("train", 8, 8, 96, 768, "A100"), ("serve", 14, 4, 32, 256, "A10"), ("small", 20, 2, 24, 192, "T4"))
TASKS = 210
SHARES = (150, 200, 300, 350, 450, 600, 700, 800)
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")


def nodes() -> Iterator[tuple[object, ...]]:
    for name, count, gpus, cpus, gib, model in NODES:
        for number in range(count):
            yield (f"{name}-{number:02}", cpus * 1000, gib * 1024, gpus, model)


def pods() -> Iterator[tuple[object, ...]]:
    drawn = random.Random(SEED)
    for number in range(TASKS):
        gpus, milli = _size(drawn)
        part = gpus * milli / 1000 or 0.5
        cpus = max(1, round(part * drawn.choice((4, 8, 8, 12))))
        models = drawn.choice(("", "", "", "A100", "A10|T4")) if gpus < 8 else ""
        yield (f"task-{number:03}", cpus * 1000, cpus * drawn.choice((2, 4, 8)) * 1024, gpus, milli, models)


def _size(drawn: random.Random) -> tuple[int, int]:
    match drawn.choices(("share", "whole", "several", "none"), weights=(58, 32, 3, 7))[0]:
        case "share":
            return 1, drawn.choice(SHARES)
        case "whole":
            return 1, 1000
        case "several":
            return drawn.choice((2, 2, 4, 8)), 1000
        case _:
            return 0, 0


def write(path: Path, columns: Sequence[str], rows: Iterator[tuple[object, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


def main(folder: Path = HERE) -> None:
    write(folder / "example-nodes.csv", NODE_COLUMNS, nodes())
    write(folder / "example-pods.csv", POD_COLUMNS, pods())


if __name__ == "__main__":
    main()
