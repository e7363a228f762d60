"""T5: two containers on one GPU, each within its limit; borrowing idle time and returning it.

Two base directories share one gpus/<uuid> directory, as the agent mounts it. Shares are work per second over the
native work per second of the same program alone. The GPU loses time when it switches between two processes, without
limits too (about 10 % on an H100). Of what is lost no limit can give anything: so each container must get its part of
what two processes get natively, which is measured beside it.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.bench import Bench, Environment, killed_at_end
from benchmarks.gpu.checks.share import STALL_MS, WARMUP_S
from benchmarks.gpu.figures import spread
from benchmarks.gpu.outcome import Judgement

POINTS = 3.0
GIVEN_BACK_S = 1.0
BORROWED = 90.0
SETTLED_POINTS = 6.0


def least(cores: int, native_sum: float, points: float = POINTS) -> float:
    """Of a container whose neighbour wants all of its own share too."""
    return cores * min(1.0, native_sum / 100) - points


def together(environments: Sequence[Environment], *commands: Sequence[object]) -> list[Any]:
    """What they print when all run at once."""
    started = [each.start(*command) for each, command in zip(environments, commands, strict=True)]
    try:
        return [json.loads(process.communicate(timeout=120)[0]) for process in started]
    finally:
        for process in started:
            process.kill()


def pair(bench: Bench, first: str, second: str, kind_a: str, kind_b: str) -> Judgement:
    shares: list[list[float]] = [[], []]
    native_sums: list[float] = []
    commands = [_work(bench, kind) for kind in (kind_a, kind_b)]
    for turn in range(bench.repeats):
        solo = [bench.native().run(*command)["per_second"] for command in commands]
        root = bench.scratch / f"pair-{first}-{second}-{kind_a}-{kind_b}-{turn}"
        limited = together([bench.container(cores=int(c), among=root) for c in (first, second)], *commands)
        free = together([bench.native()] * 2, *commands)
        for side in (0, 1):
            shares[side].append(100 * limited[side]["per_second"] / solo[side])
        native_sums.append(sum(100 * free[side]["per_second"] / solo[side] for side in (0, 1)))
    return judge((int(first), int(second)), (kind_a, kind_b), shares, native_sums)


def judge(
    limits: Sequence[int], kinds: Sequence[str], shares: Sequence[Sequence[float]], native_sums: Sequence[float]
) -> Judgement:
    """Shares of A and of B, one of each turn."""
    sums = [a + b for a, b in zip(*shares, strict=True)]
    judgement = Judgement({"sum_native": spread(native_sums, 2), "sum": spread(sums, 2)})
    native_sum = sum(native_sums) / len(native_sums)
    for side, (cores, kind) in enumerate(zip(limits, kinds, strict=True)):
        name = f"{'AB'[side]} {cores} % {kind}"
        judgement.figures[name] = spread(shares[side], 2)
        got, low = sum(shares[side]) / len(shares[side]), least(cores, native_sum)
        judgement.expect(low <= got <= cores + POINTS, f"{name}: got {got:.1f} %, not {low:.1f} to {cores + POINTS:g}")
    return judgement


def _work(bench: Bench, kind: str) -> list[object]:
    timing = ["--seconds", bench.window_s, "--warmup", WARMUP_S, "--round-ps", bench.round_ps]
    return [bench.program("workload"), kind, *timing]


def soft(bench: Bench) -> Judgement:
    """A (25 %, may borrow all) runs alone; then B starts with 75 %."""
    kernel_us, alone_s, both_s = 5000, 3.0, 4.0
    native = bench.native().run(*_pace(bench, 2.0, kernel_us))
    per_tenth = native["steps"] / native["seconds"] / 10
    sum_native = _native_sum(bench, kernel_us, per_tenth)
    root = bench.scratch / "soft"
    a, b = bench.container(cores=25, soft=100, among=root), bench.container(cores=75, among=root)
    origin = time.monotonic_ns()
    with killed_at_end(a.start(*_pace(bench, alone_s + both_s + 1, kernel_us), "--from", origin)) as process:
        time.sleep(alone_s)
        told_b = b.run(*_pace(bench, both_s, kernel_us), "--from", origin)
        told_a = json.loads(process.communicate(timeout=60)[0])
    came = next(i for i, steps in enumerate(told_b["tenths"]) if steps)
    settled = slice(came + int(10 * GIVEN_BACK_S), len(told_b["tenths"]) - 1)
    alone = _share(told_a["tenths"], slice(came - 15, came - 1), per_tenth)
    kept = _share(told_a["tenths"], settled, per_tenth)
    own = _share(told_b["tenths"], settled, per_tenth)
    return judge_soft(alone, kept, own, sum_native)


def _native_sum(bench: Bench, kernel_us: int, per_tenth: float) -> float:
    """What two get together, in the tenths of a second in which both work."""
    command = [*_pace(bench, 3.0, kernel_us), "--from", time.monotonic_ns()]
    tenths = [printed["tenths"] for printed in together([bench.native()] * 2, command, command)]
    came = max(next(i for i, steps in enumerate(each) if steps) for each in tenths)
    both = slice(came + 1, min(map(len, tenths)) - 1)
    return sum(_share(each, both, per_tenth) for each in tenths)


def judge_soft(alone: float, kept: float, own: float, sum_native: float) -> Judgement:
    """A's share alone and a second after B came, and B's share then."""
    figures = {"sum_native_%": round(sum_native, 1), "A alone %": alone, "A beside B %": kept, "B %": own}
    judgement, low = Judgement(figures), least(75, sum_native, SETTLED_POINTS)
    judgement.expect(alone >= BORROWED, f"alone A got {alone} %, not {BORROWED:g}")
    judgement.expect(kept <= 25 + SETTLED_POINTS, f"a second after B came A still has {kept} %")
    judgement.expect(own >= low, f"B gets {own} % of its 75, not {low:.1f}")
    return judgement


def latency(bench: Bench) -> Judgement:
    """Steps of A (50 %), alone and while B (50 %) starts and ends."""
    root, judgement = bench.scratch / "latency", Judgement()
    a, b = bench.container(cores=50, among=root), bench.container(cores=50, among=root)
    seconds = max(4.0, 2 * bench.window_s)
    alone = a.run(*_pace(bench, seconds, 1000))
    with killed_at_end(a.start(*_pace(bench, seconds, 1000))) as process:
        b.run(bench.program("workload"), "medium", "--seconds", seconds / 3, "--round-ps", bench.round_ps)
        beside = json.loads(process.communicate(timeout=60)[0])
    for name, printed in (("alone", alone), ("beside", beside)):
        judgement.figures[name] = {key: printed[key] for key in ("p50_ms", "p99_ms", "longest_ms")}
    longest = beside["longest_ms"]
    judgement.expect(longest <= STALL_MS, f"a step of 1 ms took {longest:.0f} ms beside B")
    return judgement


def _pace(bench: Bench, seconds: float, kernel_us: int) -> list[object]:
    words = ["--seconds", seconds, "--kernel-us", kernel_us, "--round-ps", bench.round_ps]
    return [bench.program("pace"), *words]


def _share(tenths: list[int], which: slice, per_tenth: float) -> float:
    part = tenths[max(0, which.start) : which.stop]
    return round(100 * sum(part) / (per_tenth * len(part)), 1) if part else 0.0
