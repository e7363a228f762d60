"""The cost of a call through vcuda's libcuda.so.1, compared with the same call of the emulated driver behind it.

library/programs/overhead.c makes both calls alternately in one process, so that other load on the machine affects
both; its result is the median of the differences. It runs several times for each case, and the median is printed:
`unlimited_extra_ns` is a launch without limits, `limited_extra_ns` one with a limit that is not reached,
`alloc_free_extra_ns` an allocation and its release under a memory limit. Other figures: graphs, the time of the
driver's own call, and the worst run.

Nanoseconds are of this machine in this hour. So the same turns also time an indirect call of an empty function
(`indirect_call_ns`) and a read of CLOCK_MONOTONIC (`clock_read_ns`), and the costs are printed as multiples of them:
`unlimited_calls`, `limited_clock_reads`, `alloc_free_clock_reads`, and the same of graphs.

    python -m benchmarks.library [--output json] [--runs N] [--short]
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import ends_in_one_sentence, make, options, scratch_folder, show
from sandbox.shared_gpu import SharedGpu, SharingContainer

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = REPOSITORY / "library"
EMULATED = REPOSITORY / "emulator/build/libcuda.so.1"
FREE, NOT_REACHED = 100, 90
SHORT = ("--pairs", 3, "--calls", 10)
CASES = {
    "unlimited": ("launch", FREE),
    "limited": ("launch", NOT_REACHED),
    "alloc_free": ("memory", FREE),
    "unlimited_graph": ("graph", FREE),
    "limited_graph": ("graph", NOT_REACHED),
}


MACHINE = {"indirect_call": "call_ns", "clock_read": "clock_ns"}
UNITS = {
    "unlimited": ("call_ns", "calls"),
    "unlimited_graph": ("call_ns", "calls"),
    "limited": ("clock_ns", "clock_reads"),
    "limited_graph": ("clock_ns", "clock_reads"),
    "alloc_free": ("clock_ns", "clock_reads"),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each case, alternating (default: %(default)s)")
    given = parser.parse_args()
    show(measure(1, SHORT) if given.short else measure(given.runs), given.output)


def measure(runs: int, more: Sequence[object] = ()) -> dict[str, float]:
    """`more` are options of the measuring program."""
    make(LIBRARY)
    with scratch_folder() as base:
        built = LIBRARY / "build"
        gpu = SharedGpu(base, built / "interposer", EMULATED)
        containers = {cores: gpu.container(cores) for cores in (FREE, NOT_REACHED)}
        results: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
        for _ in range(runs):
            for name, (what, cores) in CASES.items():
                results[name].append(overhead(built / "programs/overhead", containers[cores], what, *more))
    machine = {f"{name}_ns": of_the_machine(results, key) for name, key in MACHINE.items()}
    return {key: value for name, runs_of in results.items() for key, value in summary(name, runs_of).items()} | machine


def overhead(program: Path, container: SharingContainer, what: str, *more: object) -> dict[str, float]:
    with container.start(program, what, *more) as running:
        result = running.result()
    return {key: float(value) for key, value in result.items() if key != "what"}


def summary(name: str, results: list[dict[str, float]]) -> dict[str, float]:
    extra = [run["extra_ns"] for run in results]
    unit, many = UNITS[name]
    return {
        f"{name}_{many}": round(statistics.median(run["extra_ns"] / run[unit] for run in results), 2),
        f"{name}_extra_ns": round(statistics.median(extra), 2),
        f"{name}_direct_ns": round(statistics.median(run["direct_ns"] for run in results), 2),
        f"{name}_worst_extra_ns": round(max(extra), 2),
    }


def of_the_machine(results: dict[str, list[dict[str, float]]], key: str) -> float:
    return round(statistics.median(run[key] for runs_of in results.values() for run in runs_of), 2)


if __name__ == "__main__":
    ends_in_one_sentence(main)
