"""T2: what programs see: of memory the limit, in all views, and what they allocate; of time what they use of theirs."""

import sys
import time
from typing import Any

from benchmarks.gpu.bench import Bench, killed_at_end
from benchmarks.gpu.checks.common import GIB, MIB, PYTHON_INSIDE, needs_module, needs_program, needs_torch
from benchmarks.gpu.outcome import Judgement, NotRun

LIMIT = 4 * GIB
SLACK = 2 * MIB
BUSY_CORES, BUSY_S, BUSY_PERCENT = 25, 5, 80


def ask(bench: Bench, name: str, python: str) -> Any:  # noqa: ANN401 - JSON
    return bench.container(memory=LIMIT).run(python, "-m", f"{PYTHON_INSIDE}.views", name, bench.device.uuid)


def cuda(bench: Bench) -> Judgement:
    printed, judgement = ask(bench, "cuda", sys.executable), Judgement()
    judgement.figures = {
        "device_total_mib": printed["device_total"] // MIB,
        "first_free_mib": printed["steps"][0][0] // MIB,
    }
    judgement.expect(printed["device_total"] == LIMIT, f"cuDeviceTotalMem says {printed['device_total']}")
    judgement.expect(all(total == LIMIT for _, total, _ in printed["steps"]), "cuMemGetInfo's total is not the limit")
    judgement.expect(all(free <= total for free, total, _ in printed["steps"]), "more is free than there is")
    for (before, _, _), (after, _, size) in zip(printed["steps"], printed["steps"][1:], strict=False):
        off = before - after - size
        judgement.expect(abs(off) <= SLACK, f"after an allocation of {size // MIB} MiB free is off by {off} bytes")
    return judgement


def nvml(bench: Bench) -> Judgement:
    printed, judgement = ask(bench, "nvml", sys.executable), Judgement()
    judgement.figures = {"v1": _mib(printed["v1"]), "v2": _mib(printed["v2"]), "cuda": _mib(printed["cuda"])}
    for version in ("v1", "v2"):
        view = printed[version]
        off = view["used"] - printed["cuda"]["used"]
        judgement.expect(view["total"] == LIMIT, f"{version}: total is {view['total']}, not the limit")
        judgement.expect(view["free"] <= view["total"], f"{version}: more is free than there is")
        judgement.expect(abs(off) <= SLACK, f"{version}: used is {off} bytes off cuMemGetInfo's")
    return judgement


def pynvml(bench: Bench) -> Judgement:
    python = bench.torch_python or sys.executable
    if bench.native().start(python, "-c", "import pynvml").wait(60) != 0:
        raise NotRun("pynvml is not installed; T2.nvml asks the same through ctypes")
    printed, judgement = ask(bench, "pynvml", python), Judgement()
    judgement.figures = {"total_mib": printed["total"] // MIB}
    judgement.expect(printed["total"] == LIMIT, f"total is {printed['total']}, not the limit")
    return judgement


def cupy(bench: Bench) -> Judgement:
    return _pair(bench, needs_module(bench, "cupy"), "cupy")


def torch(bench: Bench) -> Judgement:
    return _pair(bench, needs_torch(bench), "torch")


def nvidia_smi(bench: Bench) -> Judgement:
    """Also shows whether it reads memory through NVML's public functions: if not, it shows the whole GPU."""
    program = needs_program("nvidia-smi")
    words = ["--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits", f"--id={bench.device.uuid}"]
    process = bench.container(memory=LIMIT).start(program, *words)
    out, errors = process.communicate(timeout=60)
    if process.returncode != 0:
        raise RuntimeError(f"nvidia-smi ended with {process.returncode}: {(errors or out).strip()[-300:]}")
    total, used = (int(word) for word in out.split(","))
    judgement = Judgement({"total_mib": total, "used_mib": used, "reads_public_functions": total == LIMIT // MIB})
    judgement.expect(total == LIMIT // MIB, f"nvidia-smi shows {total} MiB, not the limit")
    judgement.expect(used <= total, f"nvidia-smi shows {used} MiB used")
    return judgement


def utilization(bench: Bench) -> Judgement:
    """A quarter of the GPU that is used up shows as 100 %; a container that does nothing sees nothing of it."""
    busy, idle = bench.container(cores=BUSY_CORES), bench.container(cores=BUSY_CORES)
    words = [sys.executable, "-m", f"{PYTHON_INSIDE}.views", "utilization", bench.device.uuid]
    command = [bench.program("workload"), "medium", "--seconds", BUSY_S, "--round-ps", bench.round_ps]
    with killed_at_end(busy.start(*command)):
        time.sleep(BUSY_S - 1)
        own, others = busy.run(*words)["gpu"], idle.run(*words)["gpu"]
    judgement = Judgement({"busy_percent": own, "idle_percent": others})
    judgement.expect(own >= BUSY_PERCENT, f"the container that uses its share up shows {own} %")
    judgement.expect(others == 0, f"the container that does nothing shows {others} %")
    return judgement


def _pair(bench: Bench, python: str, name: str) -> Judgement:
    printed = ask(bench, name, python)
    judgement = Judgement({"free_mib": printed["free"] // MIB, "total_mib": printed["total"] // MIB})
    judgement.expect(printed["total"] == LIMIT, f"total is {printed['total']}, not the limit")
    judgement.expect(printed["free"] <= LIMIT, "more is free than there is")
    return judgement


def _mib(view: dict[str, int]) -> dict[str, int]:
    return {name: value // MIB for name, value in view.items()}
