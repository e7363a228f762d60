"""T5: two containers on one GPU, each within its limit; borrowing idle time and returning it.

Two base directories share one gpus/<uuid> directory, as the agent mounts it. Shares are work per second over the
native work per second of the same program alone.
"""

import json
import time
from collections.abc import Sequence

from benchmarks.gpu.bench import Bench, Environment, killed_at_end
from benchmarks.gpu.checks.share import STALL_MS, WARMUP_S
from benchmarks.gpu.figures import spread
from benchmarks.gpu.outcome import Judgement

POINTS = 3.0
GIVEN_BACK_S = 1.0
BORROWED = 90.0
SETTLED_POINTS = 6.0


def pair(bench: Bench, first: str, second: str, kind_a: str, kind_b: str) -> Judgement:
    shares: list[list[float]] = [[], []]
    native_sums, judgement = [], Judgement()
    for turn in range(bench.repeats):
        solo = [bench.native().run(*_work(bench, kind))["per_second"] for kind in (kind_a, kind_b)]
        root = bench.scratch / f"pair-{first}-{second}-{kind_a}-{kind_b}-{turn}"
        limited = _both([bench.container(cores=int(c), among=root) for c in (first, second)], bench, (kind_a, kind_b))
        free = _both([bench.native(), bench.native()], bench, (kind_a, kind_b))
        for side in (0, 1):
            shares[side].append(100 * limited[side] / solo[side])
        native_sums.append(sum(100 * free[side] / solo[side] for side in (0, 1)))
    sums = [a + b for a, b in zip(*shares, strict=True)]
    judgement.figures = {"sum_native": spread(native_sums, 2), "sum": spread(sums, 2)}
    for side, (cores, kind) in enumerate(((first, kind_a), (second, kind_b))):
        name = f"{'AB'[side]} {cores} % {kind}"
        judgement.figures[name] = spread(shares[side], 2)
        got = sum(shares[side]) / len(shares[side])
        judgement.expect(abs(got - int(cores)) <= POINTS, f"{name}: got {got:.1f} %")
    return judgement


def _work(bench: Bench, kind: str) -> list[object]:
    return [
        bench.program("workload"),
        kind,
        "--seconds",
        bench.window_s,
        "--warmup",
        WARMUP_S,
        "--round-ps",
        bench.round_ps,
    ]


def _both(environments: Sequence[Environment], bench: Bench, kinds: tuple[str, str]) -> list[float]:
    started = [e.start(*_work(bench, kind)) for e, kind in zip(environments, kinds, strict=True)]
    try:
        return [json.loads(process.communicate(timeout=120)[0])["per_second"] for process in started]
    finally:
        for process in started:
            process.kill()


def soft(bench: Bench) -> Judgement:
    """A (25 %, may borrow all) runs alone; then B starts with 75 %."""
    kernel_us, alone_s, both_s = 5000, 3.0, 4.0
    native = bench.native().run(*_pace(bench, 2.0, kernel_us))
    per_tenth = native["steps"] / native["seconds"] / 10
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
    judgement = Judgement({"A alone %": alone, "A beside B %": kept, "B %": own})
    judgement.expect(alone >= BORROWED, f"alone A got {alone} %, not {BORROWED:g}")
    judgement.expect(kept <= 25 + SETTLED_POINTS, f"a second after B came A still has {kept} %")
    judgement.expect(own >= 75 - SETTLED_POINTS, f"B gets {own} % of its 75")
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
