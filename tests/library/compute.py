"""The pure half of library/interposer/cuda/compute, without a clock or a GPU: in parts, and as a whole in a simulation.

In: times and amounts that a test chose. Out: what the library's own code says. Not here: hooks and threads.
native/compute_sim/main.c describes the words of a simulation, native/compute_ranks/main.c those of a job of several
ranks.
"""

import ctypes
import json
import subprocess
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.library.compiler import MEMORY_ERRORS_FATAL, compiled, kept
from tests.library.machine import LIBRARY

PURE = (
    "admission",
    "borrow",
    "budget",
    "claim",
    "interval_set",
    "edges",
    "estimates",
    "foreign_work",
    "guesses",
    "harvest",
    "stream_queue",
    "limiter",
    "neighbours",
    "presence",
    "settle",
    "timebase",
    "waits",
)
_COMPUTE = LIBRARY / "interposer/cuda/compute"
_NATIVE = Path(__file__).parent / "native"

MS = 1_000_000
SECOND = 1000 * MS
WHOLE = 100_000


_PLAIN = ("-fPIC",)


def _build(output: Path, sources: str, checks: Sequence[str], *words: str) -> Path:
    """The library's own code is compiled once for all programs with the same `checks`."""
    flags = (f"-I{LIBRARY}/interposer", *checks)
    pure = kept("pure.o", *flags, "-r", "-nostdlib", *(_COMPUTE / f"{name}.c" for name in PURE))
    return compiled(output, *flags, *words, *sorted(_NATIVE.glob(sources)), pure)


def build_parts(directory: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(_build(directory / "compute.so", "compute_access.c", _PLAIN, "-shared")))
    for name in ("access_refill", "access_balance"):
        getattr(library, name).restype = ctypes.c_int64
    for name in ("budget_wait", "access_share", "access_reach", "access_estimate", "access_guess"):
        getattr(library, name).restype = ctypes.c_uint64
    for made in ("budget", "presence", "estimates", "interval_set", "claim", "neighbours"):
        getattr(library, f"access_{made}").restype = ctypes.c_void_p
    library.access_free.restype = None
    library.access_taken.restype = ctypes.c_double
    library.budget_cap.restype = ctypes.c_int64
    return library


def allocated(parts: ctypes.CDLL, what: str, *words: int | bytes) -> ctypes.c_void_p:
    """One of the library's structures, freed with the pointer to it."""
    memory = ctypes.c_void_p(getattr(parts, f"access_{what}")(*words))
    weakref.finalize(memory, parts.access_free, ctypes.c_void_p(memory.value))
    return memory


def build_simulation(directory: Path, *, checked: bool) -> Path:
    """`checked`: every memory error and undefined behaviour is fatal, and a run takes three times as long."""
    return _build(directory / "compute_sim", "compute_sim/*.c", MEMORY_ERRORS_FATAL if checked else _PLAIN)


def build_ranks(directory: Path, *, checked: bool) -> Path:
    return _build(directory / "compute_ranks", "compute_ranks/*.c", MEMORY_ERRORS_FATAL if checked else _PLAIN)


def build_rows(directory: Path) -> Path:
    return _build(directory / "compute_rows", "compute_rows.c", MEMORY_ERRORS_FATAL)


@dataclass(frozen=True, slots=True)
class Simulated:
    """One container after a simulation. Shares are percent of the GPU between the end of the warm-up and the end.

    `waits_ns` and `launched`: of each process, the longest time that a launch was held back, and how many went.
    """

    share: float
    processes: tuple[float, ...]
    tenths: tuple[float, ...]
    longest_stall_ns: int
    charged: float
    throttled_ns: int
    launches: int
    waits_ns: tuple[int, ...]
    launched: tuple[int, ...]

    def most_above(self, limit: float) -> float:
        """The most GPU time above the limit in any window of whole tenths, in seconds."""
        worst = above = 0.0
        for tenth in self.tenths:
            above = max(0.0, above + (tenth - limit) / 1000)
            worst = max(worst, above)
        return worst


@dataclass(frozen=True, slots=True)
class Simulation:
    program: Path

    def run(self, *words: str) -> list[Simulated]:
        done = subprocess.run([str(self.program), *words], capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 0, f"{words}: {done.returncode} {done.stderr}"
        return [
            Simulated(
                share=told["share"],
                processes=tuple(told["processes"]),
                tenths=tuple(told["tenths"]),
                longest_stall_ns=told["longest_stall_ns"],
                charged=told["charged"],
                throttled_ns=told["throttled_ns"],
                launches=told["launches"],
                waits_ns=tuple(told["waits_ns"]),
                launched=tuple(told["launched"]),
            )
            for told in json.loads(done.stdout)["containers"]
        ]


Share = tuple[str, int]
"""A workload and a limit."""


def shares(
    simulation: Simulation, workloads: Iterable[str], limits: Iterable[int], *words: str, copies: int = 1
) -> dict[Share, Simulated]:
    """A container alone on the GPU, with each workload (in `copies` processes) under each limit."""
    return {
        (workload, limit): simulation.run(*words, f"c:{limit}", *[f"p:{workload}"] * copies)[0]
        for workload, limit in product(workloads, limits)
    }


def beyond(told: dict[Share, Simulated], bounds: Callable[[int], tuple[float, float]]) -> dict[Share, float]:
    """The shares that are not between the bounds of their limit."""
    limits = {each: bounds(each[1]) for each in told}
    return {each: one.share for each, one in told.items() if not limits[each][0] <= one.share <= limits[each][1]}


def off(told: dict[Share, Simulated], by: float) -> dict[Share, float]:
    """The shares that are further from their limit than `by` percent of the GPU."""
    return beyond(told, lambda limit: (limit - by, limit + by))


@dataclass(frozen=True, slots=True)
class Job:
    """A job of several ranks after a simulation: how long each step took, and each rank's longest wait for a launch."""

    steps_ms: tuple[float, ...]
    pauses_ms: tuple[float, ...]

    @property
    def settled_ms(self) -> float:
        """The mean of the second half of its steps."""
        late = self.steps_ms[len(self.steps_ms) // 2 :]
        return sum(late) / len(late)


@dataclass(frozen=True, slots=True)
class Ranks:
    program: Path

    def run(self, cores: Sequence[int], *words: str) -> Job:
        command = [str(self.program), *(f"r:{limit}" for limit in cores), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 0, f"{command}: {done.returncode} {done.stderr}"
        told = json.loads(done.stdout)
        return Job(
            steps_ms=tuple(step / MS for step in told["steps"]),
            pauses_ms=tuple(rank["longest_pause_ns"] / MS for rank in told["ranks"]),
        )
