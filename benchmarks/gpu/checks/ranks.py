"""T12: two ranks that meet on the GPU at every step, as in a collective, settle at their share.

The kernel in which they meet waits for the other rank's. Charged as work, the waits of both grow by each other; so the
check looks at the times of the steps one after the other, not at their mean.
"""

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.gpu.bench import Bench, Environment
from benchmarks.gpu.checks.common import not_shown
from benchmarks.gpu.figures import spread
from benchmarks.gpu.outcome import Judgement

KERNELS, KERNEL_US = 20, 250
STEP_MS = KERNELS * KERNEL_US / 1000
STEPS = 60
MOST_S = 20.0
SETTLED = 2.0
"""Both ranks are on one GPU, where each also waits for the other's time slices; what diverges is far beyond it."""
MET_MS = 400.0
"""Rank 1 comes half a second late to the first step: rank 0 cannot end it earlier, if kernels wait."""


def together(bench: Bench, cores: str, stall_ms: str) -> Judgement:
    """The last quarter of the steps against alone-time over share."""
    native = pair(bench, [bench.native(), bench.native()], "0")
    judgement = Judgement({"native_ms": _summary(native[0]), "native_first_ms": native[0][0]})
    if native[0][0] < MET_MS:
        return not_shown(bench, judgement, f"a kernel did not wait for the other rank's ({native[0][0]:.0f} ms)")
    root = bench.scratch / f"ranks-{cores}-{stall_ms}"
    limited = [bench.container(cores=int(cores), among=root) for _ in range(2)]
    wanted = max(SETTLED * STEP_MS * 100 / int(cores), SETTLED * statistics.median(native[0][1:]))
    for rank, took in enumerate(pair(bench, list(limited), stall_ms)):
        judgement.figures[f"rank {rank}_ms"] = _summary(took)
        judgement.expect(len(took) == STEPS, f"rank {rank} made {len(took)} of {STEPS} steps in {MOST_S:g} s")
        last = statistics.median(took[-STEPS // 4 :]) if took else MOST_S * 1000
        judgement.expect(last <= wanted, f"rank {rank}: the last steps take {last:.1f} ms, not {wanted:.1f}")
    return judgement


def pair(bench: Bench, environments: list[Environment], stall_ms: str) -> list[list[float]]:
    """Milliseconds of each step of both ranks; those of a rank that is not ready in time end early."""
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(bench.scratch)
    with tempfile.NamedTemporaryFile(dir=directory, prefix="vg-flags-") as flags:
        Path(flags.name).write_bytes(bytes(4096))
        words = [flags.name, "--steps", STEPS, "--kernels", KERNELS, "--kernel-us", KERNEL_US]
        words += ["--round-ps", bench.round_ps, "--stall-ms", stall_ms, "--stall-at", STEPS // 3]
        job = {"VCUDA_EMULATOR_JOB": Path(flags.name).name}  # on the emulated driver these two meet, and nobody else
        started = [e.start(bench.program("meet"), rank, *words, **job) for rank, e in enumerate(environments)]
        return [_steps_of(process) for process in started]


def _steps_of(process: subprocess.Popen[str]) -> list[float]:
    try:
        out, errors = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
    if process.returncode > 0:
        raise RuntimeError(f"a rank ended with {process.returncode}: {errors.strip()[-300:]}")
    return [json.loads(line)["ms"] for line in out.splitlines() if line.endswith("}")]


def _summary(took: list[float]) -> dict[str, object]:
    tenth = max(1, len(took) // 6)
    medians = [round(statistics.median(took[at : at + tenth]), 2) for at in range(0, len(took), tenth)]
    return {"steps": len(took), "by_tenths_ms": medians, "whole": spread(took[1:] or [0.0])["median"]}
