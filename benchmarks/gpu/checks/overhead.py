"""T6: the extra cost of a call, a step and a process start, compared with native runs, alternating."""

import time

from benchmarks.gpu.bench import Bench, Environment
from benchmarks.gpu.checks.common import PYTHON_INSIDE, by_turns, needs_torch
from benchmarks.gpu.figures import spread
from benchmarks.gpu.outcome import Figures, Judgement

NO_LIMIT_NS = {"launch": 20.0, "graph": 20.0, "memory": 200.0}
LIMIT_NS = {"launch": 60.0, "graph": 60.0, "memory": 200.0}
CALLS = {"launch": 2000, "graph": 2000, "memory": 50}
"""Of a turn. A real driver's allocation and release may take a third of a millisecond."""
STEP_PERCENT = 0.5
START_MS = 20.0


def call(bench: Bench, what: str) -> Judgement:
    """Direct and through the interposer in one process, alternating.

    No base directory, 100 cores, and 99 unused cores.
    """
    judgement = Judgement()
    words = [what, "--pairs", 60 if bench.quick else 300, "--rounds", 0, "--calls", CALLS[what]]
    limited = bench.container(cores=99, memory=bench.device.memory * 3 // 4)
    everywhere = {"no base": bench.unlimited(), "no limit": bench.container(), "limit 99": limited}
    for name, environment in everywhere.items():
        printed = [environment.run(bench.program("overhead"), *words) for _ in range(bench.repeats)]
        extra = spread([each["extra_ns"] for each in printed], 2)
        direct = spread([each["direct_ns"] for each in printed], 2)
        percent = spread([100 * each["extra_ns"] / each["direct_ns"] for each in printed], 2)
        judgement.figures[name] = {"extra_ns": extra, "direct_ns": direct, "extra_percent": percent}
        most = LIMIT_NS[what] if name == "limit 99" else NO_LIMIT_NS[what]
        said = f"{name}: {extra['median']:.1f} ns more, {percent['median']:.1f} % of a direct call"
        judgement.expect(extra["median"] <= most, said)
    held_back = limited.counters().throttled_launches
    judgement.figures["held_back_at_99"] = held_back  # above 0: the limit was reached, and its figure is of waiting
    return judgement


def c_step(bench: Bench) -> Judgement:
    words = ["step", "--seconds", bench.window_s, "--round-ps", bench.round_ps]
    everywhere = {"native": bench.native(), "ours": bench.container()}
    return _step(by_turns(everywhere, bench.repeats, bench.program("workload"), *words, key="per_second"))


def torch_step(bench: Bench, kind: str) -> Judgement:
    """New processes, alternating, so that differences between processes are not attributed to the interposer."""
    python = needs_torch(bench)
    words = ["-m", f"{PYTHON_INSIDE}.torch_work", kind, str(bench.window_s)]
    everywhere = {"native": bench.native(), "ours": bench.container()}
    return _step(by_turns(everywhere, bench.repeats, python, *words, key="per_second"))


def start(bench: Bench) -> Judgement:
    """The time of a process from its start to the end of its first kernel."""
    words = [bench.program("pace"), "--seconds", 0, "--kernel-us", 10, "--round-ps", bench.round_ps]
    return _start(bench, words, 2 * bench.repeats + 1)


def torch_start(bench: Bench) -> Judgement:
    code = "import torch; torch.zeros(1, device='cuda').item(); print(0)"
    return _start(bench, [needs_torch(bench), "-c", code], bench.repeats + 1)


def _step(rates: dict[str, list[float]]) -> Judgement:
    extra = [100 * (native / ours - 1) for native, ours in zip(rates["native"], rates["ours"], strict=True)]
    figures: Figures = {name: spread(values) for name, values in rates.items()}
    judgement = Judgement({"extra_percent": spread(extra)} | figures)
    median = judgement.figures["extra_percent"]["median"]
    judgement.expect(median <= STEP_PERCENT, f"a step takes {median:.2f} % more")
    return judgement


def _start(bench: Bench, command: list[object], times: int) -> Judgement:
    limited = bench.container(cores=50, memory=bench.device.memory // 2)
    everywhere = {"native": bench.native(), "no limit": bench.container(), "limited": limited}
    took: dict[str, list[float]] = {name: [] for name in everywhere}
    for _ in range(times):
        for name, environment in everywhere.items():
            took[name].append(_milliseconds(environment, command))
    judgement = Judgement({f"{name}_ms": spread(values[1:], 2) for name, values in took.items()})
    for name in ("no limit", "limited"):
        extra = judgement.figures[f"{name}_ms"]["median"] - judgement.figures["native_ms"]["median"]
        judgement.expect(extra <= START_MS, f"{name}: {extra:.0f} ms more")
    return judgement


def _milliseconds(environment: Environment, command: list[object]) -> float:
    began = time.monotonic()
    environment.run(*command)
    return (time.monotonic() - began) * 1000
