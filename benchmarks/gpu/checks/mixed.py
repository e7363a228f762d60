"""T11, T13, T14: steps that mix kernels with other things get their share; what has no kernel costs its owner.

Kernels' part of the time is known from the length of each (`--round-ps`), so shares need no second measurement. The
native rate is measured by turns with the limited ones: a limit above what a program needs must not slow it down.
"""

import json
import statistics
from collections.abc import Sequence

from benchmarks.gpu.bench import Bench, killed_at_end
from benchmarks.gpu.checks.common import by_turns, not_shown
from benchmarks.gpu.checks.share import POINTS, WARMUP_S
from benchmarks.gpu.checks.sharing import least, together
from benchmarks.gpu.figures import spread
from benchmarks.gpu.outcome import Judgement

LIMITS = (10, 25, 50)
KEPT = 0.8
"""Of the native rate, where a program needs less than its limit."""
FILL_LIMIT, BESIDE_LIMIT = 25, 75
BESIDE_POINTS = 6.0
SMALL_MS = 20.0
ENDLESS_PER_SECOND = 100
"""Kernels of 100 us, on average from the first second on; held back for 250 ms each it would be four."""
_WORK: dict[str, Sequence[object]] = {
    "copy": ("--kernels", 4, "--kernel-us", 1000, "--mib", 16),
    "host": ("--kernels", 2, "--kernel-us", 50),
    "wait": ("--kernels", 2, "--kernel-us", 50),
    "grids": ("--kernels", 64, "--kernel-us", 20),
    "null": ("--kernels", 50, "--kernel-us", 400),
    "burst": ("--kernels", 1024, "--kernel-us", 50),
}


def steps(bench: Bench, kind: str) -> Judgement:
    """Kernels with something between them, at each limit: the share, or nearly all of what it gets natively."""
    everywhere = {"native": bench.native(), **{str(cores): bench.container(cores=cores) for cores in LIMITS}}
    percent = by_turns(everywhere, bench.repeats, *_command(bench, kind), key="kernel_percent")
    native = statistics.median(percent["native"])
    judgement = Judgement({"native_%": spread(percent["native"])})
    for cores in LIMITS:
        got = statistics.median(percent[str(cores)])
        judgement.figures[f"{cores} %"] = spread(percent[str(cores)])
        low = min(cores - POINTS, KEPT * native)
        judgement.expect(got >= low, f"limit {cores}: got {got:.1f} %, natively {native:.1f} %")
        judgement.expect(got <= cores + POINTS, f"limit {cores}: got {got:.1f} %")
    return judgement


def overlapping(bench: Bench, kind: str) -> Judgement:
    """Narrow kernels in several streams: half of the native rate at 50 %, and all of it without a limit."""
    everywhere = {"native": bench.native(), "100": bench.container(), "50": bench.container(cores=50)}
    rates = by_turns(everywhere, bench.repeats, *_command(bench, kind), key="kernels_per_second")
    judgement = Judgement({"native_per_s": spread(rates["native"])})
    for cores, low in ((100, 95.0), (50, 40.0)):
        turns = zip(rates[str(cores)], rates["native"], strict=True)
        part = [100 * limited / native for limited, native in turns]
        judgement.figures[f"{cores} %"] = spread(part, 2)
        got = statistics.median(part)
        judgement.expect(got >= low, f"limit {cores}: {got:.1f} % of the native rate")
        judgement.expect(cores == 100 or got <= cores + POINTS, f"limit {cores}: {got:.1f} % of the native rate")
    return judgement


def fills(bench: Bench, kind: str) -> Judgement:
    """Fills or copies on the device at 25 % beside a neighbour with 75 %: each gets its share, as kernels would.

    Shares are of the work alone, as those of T5, and what switching costs the two natively is nobody's.
    """
    timing = ["--seconds", bench.window_s, "--warmup", WARMUP_S]
    filler = [bench.program("mixed"), kind, "--kernels", 8, "--mib", 256, *timing]
    neighbour = [bench.program("workload"), "medium", *timing, "--round-ps", bench.round_ps]
    alone = [bench.native().run(*command)["per_second"] for command in (filler, neighbour)]
    free = together([bench.native()] * 2, filler, neighbour)
    root = bench.scratch / f"fills-{kind}"
    a, b = bench.container(cores=FILL_LIMIT, among=root), bench.container(cores=BESIDE_LIMIT, among=root)
    limited = together([a, b], filler, neighbour)
    native, ours = (
        [100 * each["per_second"] / of for each, of in zip(both, alone, strict=True)] for both in (free, limited)
    )
    judgement = judge_fills(native, ours)
    judgement.figures["charged_ms"] = a.counters().charged_ns // 1_000_000
    if native[1] > BESIDE_LIMIT:
        return not_shown(bench, judgement, f"beside {kind}s without a limit the neighbour gets {native[1]:.0f} %")
    return judgement


def judge_fills(native: Sequence[float], ours: Sequence[float]) -> Judgement:
    """The filler's share and the neighbour's, natively and limited. A filler that disturbs nobody misses nothing."""
    names = ("native_filler_%", "native_neighbour_%", "filler_%", "neighbour_%")
    judgement = Judgement({name: round(got, 1) for name, got in zip(names, (*native, *ours), strict=True)})
    if native[1] > BESIDE_LIMIT:
        return judgement
    filler, neighbour = ours
    most, low = FILL_LIMIT + POINTS, least(BESIDE_LIMIT, sum(native), BESIDE_POINTS)
    judgement.expect(filler <= most, f"the filler got {filler:.1f} % of its work alone, not {most:g} at most")
    said = f"the neighbour got {neighbour:.1f} % of its {BESIDE_LIMIT}, not {low:.1f}; both together"
    judgement.expect(neighbour >= low, f"{said} {sum(ours):.1f} %, natively {sum(native):.1f} %")
    return judgement


def endless(bench: Bench) -> Judgement:
    """A kernel that does not end: other launches of its process go on after two seconds, a neighbour's all the time."""
    root, judgement = bench.scratch / "endless", Judgement()
    a, b = bench.container(cores=50, among=root), bench.container(cores=50, among=root)
    seconds = max(4.0, bench.window_s)
    words = [bench.program("endless"), "--seconds", seconds, "--round-ps", bench.round_ps]
    judgement.figures["native"] = bench.native().run(*words)
    pace = [bench.program("pace"), "--seconds", seconds, "--kernel-us", 1000, "--round-ps", bench.round_ps]
    with killed_at_end(b.start(*pace)) as process:
        judgement.figures["owner"] = a.run(*words)
        printed = json.loads(process.communicate(timeout=60)[0])
    judgement.figures["neighbour"] = {key: printed[key] for key in ("p50_ms", "p99_ms", "longest_ms")}
    owner, beside = judgement.figures["owner"]["per_second"], printed["p50_ms"]
    judgement.expect(owner >= ENDLESS_PER_SECOND, f"{owner:.0f} launches a second go beside the endless kernel")
    judgement.expect(beside <= SMALL_MS, f"steps of 1 ms of the neighbour take {beside:.1f} ms")
    return judgement


def _command(bench: Bench, kind: str) -> list[object]:
    timing = ["--seconds", bench.window_s, "--warmup", WARMUP_S, "--round-ps", bench.round_ps]
    return [bench.program("mixed"), kind, *_WORK[kind], *timing]
