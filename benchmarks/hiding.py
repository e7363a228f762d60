"""What a container loses to neighbours on its GPU that hide what they use, in real time on the emulated driver.

In: containers of library/programs/workload.c that write into their activity files, without pause, that nothing of them
runs. Out: the GPU time of the one beside them, in percent, while all are honest (and how many are accused of hiding),
while they hide and nobody watches, and from half a minute after the agent began to watch (and how many are found). The
agent's part is its own code: activity file and driver are read each second, `LimitMonitor` judges, neighbours are told.

    python -m benchmarks.hiding [--output json] [--seconds S] [--short]
"""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.command import ends_in_one_sentence, make, options, scratch_folder
from benchmarks.sharing import EMULATED, LIBRARY
from deviceplugin.container import activity
from deviceplugin.container.limit_monitor import DEFAULT_TOLERANCE, GpuReading, GpuTotals, LimitMonitor, Tolerance
from deviceplugin.model.gpu import Gpu
from sandbox.shared_gpu import UUID, RunningProgram, SharedGpu, SharingContainer

CASES = ((2, 10, 50), (4, 10, 60), (7, 10, 30), (10, 5, 50))
FOUND_WITHIN_S = 30
_SLOTS_IN_USE_AT = activity.LIMITS_AT - 4


@contextmanager
def turns_hidden(rows: Sequence[Path]) -> Iterator[None]:
    """Until the end, these rows say that no slot is in use."""
    with ExitStack() as files:
        opened = [files.enter_context(row.open("r+b", buffering=0)) for row in rows]

        def hide() -> None:
            for file in opened:
                os.pwrite(file.fileno(), bytes(4), _SLOTS_IN_USE_AT)

        files.enter_context(again_and_again(hide, every_s=0.005))
        yield


@contextmanager
def again_and_again(call: Callable[[], None], *, every_s: float) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_s):
            call()

    working = threading.Thread(target=work)
    working.start()
    try:
        yield
    finally:
        over.set()
        working.join()


@dataclass(slots=True)
class Watched:
    """A container as the agent knows it. `told`: what its neighbours are told, at each reading."""

    container: SharingContainer
    limit: int
    running: RunningProgram
    monitor: LimitMonitor
    told: list[int] = field(default_factory=list)
    before: activity.Activity | None = None

    def look(self, loads: Mapping[int, float]) -> None:
        process = self.running.process
        load = loads.get(process.pid, 0.0) if process.poll() is None else 0.0
        row = self.container.base / f"state/{self.container.uuid}{activity.SUFFIX}"
        now = activity.read(row, grant=self.container.grant)
        shown = activity.shown_percent(now, self.before) if self.before is not None else None
        self.before = now
        gpu = Gpu(self.container.uuid, 0, 0, "GPU", 80 << 30)
        reading = GpuReading("a/b/c", gpu, 1 << 40, self.limit, 0, None, load, shown)
        self.monitor.check((reading,), now=time.monotonic())
        self.told.append(self.monitor.assumed_cores().get(self.container.uuid, 0))
        self.container.assume(self.told[-1])


@contextmanager
def watched(
    gpu: SharedGpu,
    containers: Sequence[tuple[SharingContainer, int, RunningProgram]],
    *,
    tolerance: Tolerance = DEFAULT_TOLERANCE,
    every_s: float = 1.0,
) -> Iterator[list[Watched]]:
    """What the agent does in each sample period, for containers with their limits and one program each."""
    totals = GpuTotals()
    seen = [
        Watched(one, limit, running, LimitMonitor(tolerance=tolerance, totals=totals))
        for one, limit, running in containers
    ]

    def look() -> None:
        loads = loads_of(gpu)
        for each in seen:
            each.look(loads)

    with again_and_again(look, every_s=every_s):
        yield seen


def loads_of(gpu: SharedGpu) -> dict[int, float]:
    """Percent of the GPU's time of each process, as the driver says."""
    command = [str(gpu.driver.parent / "vcuda-emulator"), "show", "--json"]
    shown = json.loads(subprocess.run(command, env=gpu.environment, check=True, capture_output=True).stdout)
    return {each["pid"]: float(each["sm"]) for each in shown["gpus"][0]["processes"]}


@dataclass(frozen=True, slots=True)
class Bench:
    root: Path
    seconds: float
    found_within_s: float

    def share(self, case: tuple[int, int, int], *, hide: bool, watch: bool) -> tuple[float, int]:
        """What the honest one gets, and of how many others neighbours are told at the end."""
        count, limit, own = case
        gpu = SharedGpu(Path(tempfile.mkdtemp(dir=self.root)) / "gpu", LIBRARY / "build/interposer", EMULATED, UUID)
        warmup = self.found_within_s if watch else min(3.0, self.found_within_s)
        program = LIBRARY / "build/programs/workload"
        others, one = [gpu.container(limit) for _ in range(count)], gpu.container(own)
        with ExitStack() as stack:
            long = ("--seconds", warmup + self.seconds + 30)
            beside = [stack.enter_context(each.start(program, "medium", *long)) for each in others]
            timed = ("--seconds", self.seconds, "--warmup", warmup)
            running = stack.enter_context(one.start(program, "medium", *timed))
            if hide:
                stack.enter_context(turns_hidden([each.base / f"state/{UUID}{activity.SUFFIX}" for each in others]))
            all_of_them = [*((each, limit, it) for each, it in zip(others, beside, strict=True)), (one, own, running)]
            seen = stack.enter_context(watched(gpu, all_of_them)) if watch else []
            achieved = float(running.result(timeout=warmup + self.seconds + 60)["share_percent"])
            return achieved, sum(bool(each.told and each.told[-1]) for each in seen)


def measure(bench: Bench, cases: Sequence[tuple[int, int, int]]) -> Iterator[dict[str, object]]:
    for count, limit, own in cases:
        honest, accused = bench.share((count, limit, own), hide=False, watch=True)
        unwatched, _ = bench.share((count, limit, own), hide=True, watch=False)
        watched, found = bench.share((count, limit, own), hide=True, watch=True)
        yield {
            "hiding": f"{count} x {limit}",
            "limit": own,
            "honest": honest,
            "accused": accused,
            "unwatched": unwatched,
            "watched": watched,
            "found": found,
        }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of each measurement (default: %(default)s)"
    )
    given = parser.parse_args()
    make(LIBRARY)
    with scratch_folder() as root:
        bench = Bench(root, 0.3, 0.5) if given.short else Bench(root, given.seconds, FOUND_WITHIN_S)
        measured = []
        for figures in measure(bench, CASES[:1] if given.short else CASES):
            measured.append(figures)
            if given.output == "text":
                print(*(f"{name} {value}" for name, value in figures.items()), sep=", ", flush=True)
        if given.output == "json":
            print(json.dumps(measured))


if __name__ == "__main__":
    ends_in_one_sentence(main)
