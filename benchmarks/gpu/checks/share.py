"""T4: throughput with a limit over throughput without one, for several kinds of work.

Native and limited runs alternate, as often as the bench says. The figure of a limit is the limited work per second
over the native work per second of the same turn, in percent. Of PyTorch's work, which can draw all of the GPU's power
(seen on an H100: natively at a lower clock than at 25 %), that is judged at the native clock.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from benchmarks.gpu.bench import Bench, Environment, killed_at_end
from benchmarks.gpu.checks.clocks import SmClock
from benchmarks.gpu.checks.common import PYTHON_INSIDE, line, needs_torch, say
from benchmarks.gpu.figures import spread
from benchmarks.gpu.outcome import Judgement

LIMITS = (25, 50, 75, 100)
POINTS = 3.0
STALL_MS = 250.0
WARMUP_S = 1.5  # GPUs come out of idle clocks (345 MHz was seen) in this time
STEADY_PERCENT = 10.0


def environments(bench: Bench) -> dict[str, Environment]:
    limited = {str(cores): bench.container(cores=cores) for cores in LIMITS}
    return {"native": bench.native(), **limited}


def c_program(bench: Bench, kind: str) -> Judgement:
    everywhere = environments(bench)
    timing = ["--seconds", bench.window_s, "--warmup", WARMUP_S, "--round-ps", bench.round_ps]
    command = [bench.program("workload"), kind, *timing]
    rates: dict[str, list[float]] = {name: [] for name in everywhere}
    for _ in range(bench.repeats):
        for name, environment in everywhere.items():
            rates[name].append(environment.run(*command)["per_second"])
    return judge(rates)


def torch(bench: Bench, kind: str) -> Judgement:
    """One process for each limit, all loaded once; only one works at a time."""
    python, everywhere, clock = needs_torch(bench), environments(bench), SmClock(bench)
    rates: dict[str, list[float]] = {name: [] for name in everywhere}
    mhz: dict[str, list[float]] = {name: [] for name in everywhere}
    with ExitStack() as stack:
        command = [python, "-m", f"{PYTHON_INSIDE}.torch_work", kind]
        workers = {
            name: stack.enter_context(killed_at_end(environment.start(*command)))
            for name, environment in everywhere.items()
        }
        for worker in workers.values():
            line(worker)  # ready
        for _ in range(bench.repeats):
            for name, worker in workers.items():
                with clock.added_to(mhz[name]):
                    say(worker, str(bench.window_s))
                    rates[name].append(json.loads(line(worker))["per_second"])
    return judge(rates, {name: statistics.median(seen) for name, seen in mhz.items() if seen})


def judge(rates: Mapping[str, Sequence[float]], sm_mhz: Mapping[str, float] | None = None) -> Judgement:
    """`sm_mhz`: the clock in each environment; a share is scaled where the native and the limited one are known."""
    judgement = Judgement({"native_per_s": spread(rates["native"])})
    wide = 100 * judgement.figures["native_per_s"]["iqr"] / judgement.figures["native_per_s"]["median"]
    judgement.expect(wide <= STEADY_PERCENT, f"native rates differ by {wide:.0f} %: the clocks were not steady")
    if sm_mhz:
        judgement.figures["sm_mhz"] = dict(sm_mhz)
    for cores in LIMITS:
        turns = zip(rates[str(cores)], rates["native"], strict=True)
        shares = [100 * limited / native for limited, native in turns]
        mean = statistics.mean(shares)
        judgement.figures[f"{cores} %"] = spread(shares, 2) | {"mean": round(mean, 2)}
        said = f"limit {cores}: got {mean:.1f} %"
        if sm_mhz and {"native", str(cores)} <= sm_mhz.keys():
            mean *= sm_mhz["native"] / sm_mhz[str(cores)]
            judgement.figures[f"{cores} % at the native clock"] = round(mean, 2)
            said += f", {mean:.1f} % at the native clock"
        judgement.expect(abs(mean - cores) <= POINTS, said)
    return judgement


def stalls(bench: Bench) -> Judgement:
    """The longest step and the longest launch call with the smallest share."""
    container, judgement = bench.container(cores=25), Judgement()
    words = ["--seconds", bench.window_s * 2, "--kernel-us", 1000, "--round-ps", bench.round_ps]
    printed = [container.run(bench.program("pace"), *words) for _ in range(bench.repeats)]
    for name in ("p50_ms", "p99_ms", "longest_ms", "longest_call_ms"):
        judgement.figures[name] = spread([each[name] for each in printed])
    longest = max(each["longest_ms"] for each in printed)
    judgement.expect(longest <= STALL_MS, f"a step of 1 ms took {longest:.0f} ms")
    return judgement
