"""The share of a GPU's time that containers get, compared with their limits.

The workloads of library/programs/workload.c: alone at 25, 50 and 75 %, two containers on one GPU, eight processes in
one container. Each runs for some seconds after a warm-up. `achieved` is GPU time over elapsed time, in percent, by the
clock of the GPU. The emulated driver knows the cost of a kernel. On a real GPU (--driver, --uuid) each workload first
runs without the library, and `achieved` is its rate over that rate.

    python -m benchmarks.sharing [--output json] [--seconds S] [--short] [--driver LIBCUDA --uuid UUID]
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from benchmarks.command import ends_in_one_sentence, make, options, scratch_folder
from deviceplugin.model.gpu import GpuUuid
from sandbox.shared_gpu import UUID, RunningProgram, SharedGpu

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = REPOSITORY / "library"
EMULATED = REPOSITORY / "emulator/build/libcuda.so.1"
ALONE = ("small", "medium", "gemm", "step", "graph")
LIMITS = (25, 50, 75)
PAIRS = ((30, 70), (50, 50), (25, 75), (25, 25))
BESIDE = (("medium", "medium"), ("gemm", "graph"), ("step", "small"))
EIGHT = ("medium", "gemm")
SHORT_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Share:
    """Percent of the GPU."""

    workload: str
    limit: int
    achieved: float


@dataclass(frozen=True, slots=True)
class Bench:
    gpu: SharedGpu
    programs: Path
    seconds: float
    native: dict[str, float]
    """Iterations per second without the library; empty if costs are known."""

    def start(self, stack: ExitStack, limit: int, kinds: Sequence[str]) -> list[RunningProgram]:
        container = self.gpu.container(limit)
        return [stack.enter_context(container.start(*self.command(kind))) for kind in kinds]

    def command(self, kind: str) -> list[object]:
        return [self.programs / "workload", kind, "--seconds", self.seconds, "--warmup", 1]

    def achieved(self, kind: str, running: RunningProgram) -> float:
        printed = running.result(timeout=self.seconds + 60)
        if self.native:
            return 100 * float(printed["per_second"]) / self.native[kind]
        return float(printed["share_percent"])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each measurement (default: %(default)s)")
    parser.add_argument("--driver", type=Path, help="a real libcuda.so.1 (default: the emulated one)")
    parser.add_argument("--uuid", type=GpuUuid, default=UUID, help="UUID of the real GPU")
    given = parser.parse_args()
    measured = []
    seconds = SHORT_SECONDS if given.short else given.seconds
    for share in measure(seconds, given.driver, given.uuid, short=given.short):
        measured.append(share)
        if given.output == "text":
            print(f"{share.workload:28} {share.limit:3d} % {share.achieved:8.2f} %", flush=True)
    if given.output == "json":
        print(json.dumps([asdict(share) for share in measured]))
    else:
        worst = max(measured, key=lambda share: abs(share.achieved - share.limit))
        print(f"furthest off: {worst.workload} at {worst.limit} %, {worst.achieved - worst.limit:+.2f} points")


def measure(seconds: float, driver: Path | None, uuid: GpuUuid, *, short: bool = False) -> Iterator[Share]:
    make(LIBRARY)
    with scratch_folder() as base:
        built = LIBRARY / "build"
        gpu = SharedGpu(base, built / "interposer", driver or EMULATED, uuid)
        bench = Bench(gpu, built / "programs", seconds, {})
        if driver is not None:
            bench.native.update(native_pace(bench))
        if short:
            yield from islice(alone(bench), 1)
            yield from islice(beside(bench), 2)
            return
        yield from alone(bench)
        yield from beside(bench)
        yield from together(bench)


def native_pace(bench: Bench) -> dict[str, float]:
    pace = {}
    for kind in ALONE:
        command = list(map(str, bench.command(kind)))
        done = subprocess.run(command, env=bench.gpu.native, capture_output=True, text=True, check=True)
        pace[kind] = float(json.loads(done.stdout)["per_second"])
    return pace


def alone(bench: Bench) -> Iterator[Share]:
    for kind in ALONE:
        for limit in LIMITS:
            with ExitStack() as stack:
                (running,) = bench.start(stack, limit, [kind])
                yield Share(kind, limit, bench.achieved(kind, running))


def beside(bench: Bench) -> Iterator[Share]:
    for limits in PAIRS:
        for kinds in BESIDE:
            with ExitStack() as stack:
                running = [
                    one for limit, kind in zip(limits, kinds, strict=True) for one in bench.start(stack, limit, [kind])
                ]
                achieved = [bench.achieved(kind, one) for kind, one in zip(kinds, running, strict=True)]
            for place in (0, 1):
                name = f"{kinds[place]} beside {kinds[1 - place]} {limits[1 - place]}"
                yield Share(name, limits[place], achieved[place])


def together(bench: Bench) -> Iterator[Share]:
    for kind in EIGHT:
        for limit in LIMITS:
            with ExitStack() as stack:
                running = bench.start(stack, limit, [kind] * 8)
                yield Share(f"8 x {kind}", limit, sum(bench.achieved(kind, one) for one in running))


if __name__ == "__main__":
    ends_in_one_sentence(main)
