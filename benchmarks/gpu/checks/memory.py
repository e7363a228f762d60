"""T1: no allocator gets more than the limit, and each one still works after a refusal."""

import json
from typing import Any

from benchmarks.gpu.bench import Bench, Container, Environment, killed_at_end
from benchmarks.gpu.checks.common import GIB, MIB, OUT_OF_MEMORY, PYTHON_INSIDE, host_nvml, line, needs_module
from benchmarks.gpu.checks.common import needs_torch as torch_of
from benchmarks.gpu.outcome import Figures, Judgement, NotRun

BLOCK = 64 * MIB
LIMITS = (4, 10, 40)
HOST_SLACK = 64 * MIB


def limits(bench: Bench) -> list[int]:
    wanted = [gib * GIB for gib in (LIMITS[:1] if bench.quick else LIMITS)]
    fitting = [size for size in wanted if size < bench.device.memory * 0.9]
    if not fitting:
        raise NotRun(f"the GPU has {bench.device.memory // GIB} GiB, less than the smallest limit")
    return fitting


def driver_api(bench: Bench, way: str) -> Judgement:
    """One allocation function of the CUDA driver API."""
    judgement = Judgement()
    for limit in limits(bench):
        container = bench.container(memory=limit)
        seen = seen_by_host(bench, container, way)
        printed = container.run(bench.program("allocate"), way, "--cycles", 20 if bench.quick else 100)
        printed["overhead"] = printed["total"] - printed["free_before"]
        judge(judgement, limit, printed | seen)
        gone = printed["free_before"] - printed["free_after"]
        judgement.expect(gone <= 2 * MIB, f"{gone // MIB} MiB are missing after all was given back")
    return judgement


def seen_by_host(bench: Bench, container: Container, way: str) -> Figures:
    """Memory by the driver's own NVML while everything is allocated.

    Of the process, or of the GPU if PIDs are hidden.
    """
    nvml = host_nvml(bench)
    before = nvml.memory().used
    with killed_at_end(container.start(bench.program("allocate"), way, "--hold", 1)) as process:
        printed = json.loads(line(process))
        of_process = nvml.processes().get(printed["pid"], 0)
        is_told = 0 < of_process <= bench.device.memory  # all bits are set if the driver does not know
        held = of_process if is_told else nvml.memory().used - before
    return {"host_sees": held, "host_sees_by": "pid" if is_told else "GPU, before and after"}


def judge(judgement: Judgement, limit: int, printed: dict[str, Any]) -> None:
    got, overhead = printed["got"], printed.get("overhead", 0)
    low = limit - overhead - limit // 50 - BLOCK
    name = f"{limit // GIB} GiB"
    figures = {"got_mib": got // MIB, "overhead_mib": overhead // MIB, "refusal": printed["refusal"]}
    if "host_sees" in printed:
        figures |= {"host_sees_mib": printed["host_sees"] // MIB, "host_sees_by": printed["host_sees_by"]}
        over = printed["host_sees"] - limit
        judgement.expect(over <= HOST_SLACK, f"{name}: the host sees {over // MIB} MiB more than the limit")
    judgement.figures[name] = figures
    judgement.expect(low <= got <= limit, f"{name}: got {got // MIB} MiB, not {low // MIB} to {limit // MIB}")
    wanted = printed.get("refusal_wanted", OUT_OF_MEMORY)
    judgement.expect(printed["refusal"] == wanted, f"{name}: refused with {printed['refusal']}, not {wanted}")
    again = printed["refused_again"]
    judgement.expect(again == 0, f"{name}: {again} blocks that were given back were refused")
    judgement.expect(bool(printed["kernel_runs"]), f"{name}: no kernel runs after the refusal")


def by_script(bench: Bench, python: str, *words: str, **environment: str) -> Judgement:
    judgement = Judgement()
    for limit in limits(bench):
        container = Environment(bench.container(memory=limit).variables | environment)
        judge(judgement, limit, container.run(python, "-m", *words))
    return judgement


def torch(bench: Bench, setting: str) -> Judgement:
    both = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
    return by_script(bench, torch_of(bench), f"{PYTHON_INSIDE}.torch_memory", "fill", **both)


def cupy(bench: Bench, pool: str) -> Judgement:
    return by_script(bench, needs_module(bench, "cupy"), f"{PYTHON_INSIDE}.cupy_memory", pool)


def jax(bench: Bench, preallocate: str) -> Judgement:
    python = needs_module(bench, "jax")
    return by_script(bench, python, f"{PYTHON_INSIDE}.jax_memory", XLA_PYTHON_CLIENT_PREALLOCATE=preallocate)
