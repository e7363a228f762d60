"""The pure half of library/interposer/cuda/compute, without a clock or a GPU: in parts, and as a whole in a simulation.

In: times and amounts that a test chose. Out: what the library's own code says. Not here: hooks and threads.
native/compute_sim.c describes the words of a simulation.
"""

import ctypes
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.library.machine import LIBRARY

PURE = (
    "admission",
    "borrow",
    "budget",
    "cover",
    "estimates",
    "harvest",
    "lane",
    "limiter",
    "neighbours",
    "presence",
    "settle",
    "timebase",
)
_COMPUTE = LIBRARY / "interposer/cuda/compute"
_FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-pthread",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",
]
_INCLUDES = [f"-I{LIBRARY}/include", f"-I{LIBRARY}", f"-I{LIBRARY}/interposer"]
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")

MS = 1_000_000
SECOND = 1000 * MS
WHOLE = 100_000


def _compile(output: Path, *words: str) -> Path:
    sources = [str(_COMPUTE / f"{name}.c") for name in PURE]
    subprocess.run(["gcc", *_FLAGS, *_INCLUDES, "-o", str(output), *words, *sources], check=True, timeout=110)
    return output


def build_parts(directory: Path) -> ctypes.CDLL:
    access = str(Path(__file__).parent / "native/compute_access.c")
    library = ctypes.CDLL(str(_compile(directory / "compute.so", "-shared", "-fPIC", access)))
    for name in ("access_refill", "access_balance"):
        getattr(library, name).restype = ctypes.c_int64
    for name in ("budget_wait", "access_share", "access_reach", "access_estimate"):
        getattr(library, name).restype = ctypes.c_uint64
    for name in ("access_budget", "access_presence", "access_estimates", "access_cover"):
        getattr(library, name).restype = ctypes.c_void_p
    library.budget_cap.restype = ctypes.c_int64
    return library


def build_simulation(directory: Path) -> Path:
    source = str(Path(__file__).parent / "native/compute_sim.c")
    return _compile(directory / "compute_sim", *_SANITIZERS, source)


@dataclass(frozen=True, slots=True)
class Simulated:
    """One container after a simulation. Shares are percent of the GPU between the end of the warm-up and the end."""

    share: float
    processes: tuple[float, ...]
    tenths: tuple[float, ...]
    longest_stall_ns: int
    charged: float
    throttled_ns: int
    launches: int

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
            )
            for told in json.loads(done.stdout)["containers"]
        ]
