"""Facts about the driver that the library assumes; measured, without pass or fail."""

import json
import sys

from benchmarks.gpu.bench import Bench, killed_at_end
from benchmarks.gpu.checks.common import MIB, PYTHON_INSIDE, host_nvml, line
from benchmarks.gpu.outcome import Judgement

KERNEL_US = 20_000


def context(bench: Bench) -> Judgement:
    """The memory of a context: by cuMemGetInfo of another process, by NVML, and as the interposer charges it."""
    nvml, figures = host_nvml(bench), {}
    command = [bench.program("allocate"), "malloc", "--block-mib", 1 << 24, "--hold", 1]
    before = nvml.memory().used
    with killed_at_end(bench.native().start(*command)) as process:
        pid = json.loads(line(process))["pid"]
        figures["gpu_mib"] = (nvml.memory().used - before) // MIB
        listed = nvml.processes().get(pid)
        figures["process_mib"] = listed // MIB if listed else "unknown"
    printed = bench.container(memory=bench.device.memory // 2).run(bench.program("allocate"), "malloc", "--cycles", 0)
    figures["charged_mib"] = (printed["total"] - printed["free_before"]) // MIB
    return Judgement(figures)


def events(bench: Bench) -> Judgement:
    """The time of a kernel by two events, alone and beside another process: does it include the other's time slices?"""
    words = ["--seconds", bench.window_s, "--kernel-us", KERNEL_US, "--round-ps", bench.round_ps]
    alone = bench.native().run(bench.program("pace"), *words)["event_ms"]
    with killed_at_end(bench.native().start(bench.program("pace"), *words)):
        beside = bench.native().run(bench.program("pace"), *words)["event_ms"]
    return Judgement({"alone_ms": alone, "beside_ms": beside, "ratio": round(beside / alone, 2)})


def utilization(bench: Bench) -> Judgement:
    """Does NVML report the utilisation of each process on this driver, and under which PID?"""
    command = [bench.program("pace"), "--seconds", 6, "--kernel-us", 5000, "--round-ps", bench.round_ps]
    with killed_at_end(bench.native().start(*command)) as process:
        words = [sys.executable, "-m", f"{PYTHON_INSIDE}.utilization", bench.device.uuid]
        printed = bench.native().run(*words)
        return Judgement(printed | {"pid": process.pid})
