"""T10: memory that a program gets otherwise than by an allocation stays within the limit too.

Each way is tried natively first: where the driver's own figures do not show its memory, nothing is learned from a
container, and the check says so instead of passing.
"""

import json
import sys
from typing import Any

from benchmarks.gpu.bench import Bench, Environment, killed_at_end
from benchmarks.gpu.checks.common import MIB, OUT_OF_MEMORY, PYTHON_INSIDE, HostMemory, line, not_shown
from benchmarks.gpu.outcome import Figures, Judgement, NotRun

MOST_MIB = {"context": 24 * 256}
BLOCK_MIB = {"context": 256}  # a context's size is the driver's business: this only counts them
ENOUGH_MIB = 6 * 1024
SLACK = 64 * MIB
SEEN_ENOUGH = 1024 * MIB
PRIMARY_LIMIT = 5 * 1024 * MIB
PRIMARY_MIB = 1024


def way(bench: Bench, name: str) -> Judgement:
    """The limit is half of what the driver's figures show natively."""
    host = HostMemory(bench)
    words = [name, "--block-mib", BLOCK_MIB.get(name, 256), "--most-mib", MOST_MIB.get(name, ENOUGH_MIB)]
    native = held(bench, bench.native(), host, words)
    judgement = Judgement({"native": _mib(native)})
    if native["host_sees"] < SEEN_ENOUGH:
        seen = native["host_sees"] // MIB
        return not_shown(bench, judgement, f"its figures show {seen} MiB after {native['got'] // MIB} were taken")
    limit = native["host_sees"] // 2 // MIB * MIB
    ours = held(bench, bench.container(memory=limit), host, words)
    judgement.figures |= {"limit_mib": limit // MIB, "ours": _mib(ours)}
    over = ours["host_sees"] - limit
    judgement.expect(over <= SLACK, f"the host sees {over // MIB} MiB more than the limit")
    judgement.expect(ours["refusal"] == OUT_OF_MEMORY, f"refused with {ours['refusal']}, not {OUT_OF_MEMORY}")
    judgement.expect(bool(ours["kernel_runs"]), "no kernel runs after the refusal")
    return judgement


def held(bench: Bench, environment: Environment, host: HostMemory, words: list[Any]) -> dict[str, Any]:
    """What the program says and what the host sees of the whole GPU while it holds everything."""
    host.mark()
    with killed_at_end(environment.start(bench.program("holes"), *words)) as process:
        printed: dict[str, Any] = json.loads(line(process))
        if "cannot" in printed:
            raise NotRun(printed["cannot"])
        return printed | {"host_sees": host.grown()}


def primary(bench: Bench, how: str) -> Judgement:
    """Resets of the primary context: nothing stays charged, and what is charged is what the host sees.

    How it is taken: `retain`, by cuDevicePrimaryCtxRetain; `runtime`, by NVIDIA's runtime in its own way.
    """
    command = [bench.program("primary"), "--mib", PRIMARY_MIB]
    if how == "runtime":
        if bench.driver.emulated:
            raise NotRun("NVIDIA's runtime begins on NVIDIA's driver alone; this is the emulated driver")
        python = bench.torch_python or sys.executable
        command = [python, "-m", f"{PYTHON_INSIDE}.runtime_context", PRIMARY_MIB]
    container, host = bench.container(memory=PRIMARY_LIMIT), HostMemory(bench)
    with killed_at_end(container.start(*command)) as process:
        printed = json.loads(line(process))
        if "cannot" in printed:
            raise NotRun(printed["cannot"])
        seen = host.grown()
    judgement = Judgement({"charged_mib": printed["used"] // MIB, "host_sees_mib": seen // MIB})
    judgement.figures["refused"] = printed["refused"]
    judgement.expect(printed["refused"] == 0, f"{printed['refused']} allocations were refused after resets")
    off = seen - printed["used"]
    judgement.expect(abs(off) <= SLACK, f"the host sees {off // MIB} MiB more than is charged")
    return judgement


def _mib(printed: Figures) -> Figures:
    kept = {key: printed[key] for key in ("blocks", "refusal", "used_again")}
    return kept | {f"{key}_mib": printed[key] // MIB for key in ("got", "host_sees")}
