"""Judgements of the checks T5 to T7 and T10 to T14: which answers of a program pass, fail, or tell nothing.

Not here: that the programs run (test_run.py has that), and whether the library passes them (tests/library).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import build, driver, prepare
from benchmarks.gpu.bench import Bench, ProgramFailed
from benchmarks.gpu.checks import holes, mixed, overhead, ranks, sharing
from benchmarks.gpu.driver import Device, Driver
from benchmarks.gpu.outcome import Judgement, Status

MIB = 1 << 20
STAND_IN = """#!{python}
import json, os, sys
print(json.dumps({printed!r}[("VCUDA_DIR" in os.environ)]))
sys.stdout.flush()
sys.stdin.read()
"""
SCRIPTED = """#!{python}
import fcntl, pathlib, sys
one = open(sys.argv[0])
fcntl.flock(one, fcntl.LOCK_EX)
lines = pathlib.Path(sys.argv[0] + ".lines")
first, *rest = lines.read_text().splitlines()
lines.write_text("\\n".join(rest))
print(first, flush=True)
"""


def bench(scratch: Path, program: str, *, native: dict[str, Any], ours: dict[str, Any]) -> Bench:
    """A program that prints one of two lines, natively or in a container."""
    (scratch / "programs").mkdir(exist_ok=True)
    path = scratch / "programs" / program
    path.write_text(STAND_IN.format(python=sys.executable, printed=[native, ours]))
    path.chmod(0o755)
    found = Driver(True, "/nowhere", "/nowhere", "580", "13.0", (Device("GPU-1", "0", "H100", 80 << 30),), "a test")
    return Bench(scratch, found, True, 0.1, 1, "", 4000)


def scripted(scratch: Path, **answers: list[dict[str, float]]) -> Bench:
    """Programs that print one prepared line after the other, for anybody who runs them, one at a time."""
    made = bench(scratch, "unused", native={}, ours={})
    for program, lines in answers.items():
        made.program(program).write_text(SCRIPTED.format(python=sys.executable))
        made.program(program).chmod(0o755)
        Path(f"{made.program(program)}.lines").write_text("\n".join(map(json.dumps, lines)))
    return made


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    scratch = tmp_path_factory.mktemp("e")
    built = build.build(scratch)
    found = driver.emulated(built, scratch, "for a test")
    prepare.lay_out(built, found, scratch)
    return Bench(scratch, found, True, 0.2, 1, "", 4000)


def test_a_capture_without_a_limit_gets_what_there_is(emulated: Bench) -> None:
    """So the check that asks for twice the limit fails if nothing limits it."""
    for size, given in ((1 << 30, True), (1 << 42, False)):
        words = [sys.executable, "-m", "benchmarks.gpu.inside.conduct", "refused_in_capture", size]
        printed = emulated.native().run(*words, timeout=60)
        assert (set(printed["codes"].values()) == {0}) is given
        assert printed["afterwards"] == 0


def test_nvidias_runtime_fails_where_it_does_not_begin(emulated: Bench) -> None:
    """So a driver that it does not like is no `not run`."""
    words = [sys.executable, "-m", "benchmarks.gpu.inside.runtime_context", 64]
    with pytest.raises(ProgramFailed, match="cudaSetDevice said"):
        emulated.native().run(*words, timeout=60)


class Host:
    """What a process outside of containers hears of the GPU's memory, one growth after the other."""

    def __init__(self, *grown_mib: int) -> None:
        self.growths = iter(grown_mib)

    def mark(self) -> None:
        pass

    def grown(self) -> int:
        return next(self.growths) * MIB


def held(got_mib: int, refusal: int) -> dict[str, Any]:
    return {"got": got_mib * MIB, "blocks": 1, "refusal": refusal, "used_again": 0, "kernel_runs": 1}


def test_memory_is_judged_by_what_the_host_sees(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def way(*host_mib: int, got_mib: int = 2560, refusal: int = 2) -> Judgement:
        monkeypatch.setattr(holes, "HostMemory", lambda _: Host(*host_mib))
        tried = bench(short_tmp, "holes", native=held(6144, 0), ours=held(got_mib, refusal))
        return holes.way(tried, "module")

    within = way(6144, 3072)
    assert (within.status, within.missed, within.figures["limit_mib"]) == (Status.PASSED, [], 3072)
    beyond = way(6144, 6144, got_mib=6144, refusal=0)
    assert beyond.status is Status.FAILED
    assert beyond.missed == ["the host sees 3072 MiB more than the limit", "refused with 0, not 2"]
    unseen = way(500)
    assert unseen.status is Status.NOT_RUN
    assert unseen.reason.startswith("not shown by an emulated driver: its figures show 500 MiB")


def test_resets_leave_what_the_host_sees(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = {}
    for refused, used_mib in ((0, 1500), (3, 1500), (0, 1100)):
        monkeypatch.setattr(holes, "HostMemory", lambda _: Host(1500))
        printed = {"pid": 1, "refused": refused, "used": used_mib * MIB}
        tried = bench(short_tmp, "primary", native={}, ours=printed)
        missed[refused, used_mib] = len(holes.primary(tried, "retain").missed)
    assert missed == {(0, 1500): 0, (3, 1500): 1, (0, 1100): 1}


RUNTIME = """
#include <stddef.h>
static int taken;
int cudaSetDevice(int device) { return device; }
int cudaMalloc(void **block, size_t size) { *block = NULL; taken += (int)(size >> 20); return taken > 128 ? 2 : 0; }
int cudaDeviceReset(void) { return 0; }
int cudaMemGetInfo(size_t *available, size_t *total) {
    *total = 1 << 30;
    *available = *total - ((size_t)taken << 20);
    return 0;
}
"""


def test_resets_of_the_runtime_that_keep_memory_are_counted(short_tmp: Path) -> None:
    (short_tmp / "runtime.c").write_text(RUNTIME)
    library = short_tmp / "nvidia/cu13/lib/libcudart.so.13"
    library.parent.mkdir(parents=True)
    subprocess.run([build.compiler(), "-shared", "-fPIC", "-o", library, short_tmp / "runtime.c"], check=True)
    words = [sys.executable, "-m", "benchmarks.gpu.inside.runtime_context", "64"]
    paths = f"{short_tmp}:{build.REPOSITORY}"
    done = subprocess.run(words, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True, input="")
    assert json.loads(done.stdout) == {"refused": 4, "used": 384 * MIB}


def test_mixed_work_gets_its_share_or_all_it_needs(short_tmp: Path) -> None:
    expected = {
        (50.0, 10.0): ["limit 25: got 10.0 %, natively 50.0 %", "limit 50: got 10.0 %, natively 50.0 %"],
        (2.0, 1.9): [],
        (2.0, 0.5): [f"limit {cores}: got 0.5 %, natively 2.0 %" for cores in (10, 25, 50)],
        (60.0, 60.0): ["limit 10: got 60.0 %", "limit 25: got 60.0 %", "limit 50: got 60.0 %"],
    }
    missed = {}
    for native, ours in expected:
        tried = bench(short_tmp, "mixed", native={"kernel_percent": native}, ours={"kernel_percent": ours})
        missed[native, ours] = mixed.steps(tried, "copy").missed
    assert missed == expected


def test_streams_that_lose_their_overlap_or_miss_their_half_fail(short_tmp: Path) -> None:
    tried = bench(short_tmp, "mixed", native={"kernels_per_second": 100.0}, ours={"kernels_per_second": 45.0})
    assert mixed.overlapping(tried, "null").missed == ["limit 100: 45.0 % of the native rate"]
    for half in (30.0, 60.0):
        rates = [{"kernels_per_second": rate} for rate in (100.0, 100.0, half)]
        missed = mixed.overlapping(scripted(short_tmp, mixed=rates), "null").missed
        assert {each.split(":")[0] for each in missed} == {"limit 50"}, half


FILLS: dict[tuple[tuple[float, float], tuple[float, float]], Status] = {
    ((40.0, 50.0), (24.0, 62.0)): Status.PASSED,
    ((40.0, 50.0), (24.0, 61.0)): Status.FAILED,  # the neighbour is disturbed
    ((40.0, 50.0), (29.0, 62.0)): Status.FAILED,  # beyond its own limit
    ((60.0, 60.0), (25.0, 68.0)): Status.FAILED,  # nothing is lost natively
    ((20.0, 80.0), (29.0, 60.0)): Status.NOT_RUN,  # it disturbs nobody natively
}


def test_fills_take_nothing_of_a_neighbour(short_tmp: Path) -> None:
    found = {}
    for native, ours in FILLS:
        filler, neighbour = (
            [{"per_second": rate} for rate in (100.0, *rates)] for rates in zip(native, ours, strict=True)
        )
        judgement = mixed.fills(scripted(short_tmp, mixed=filler, workload=neighbour), "fill")
        found[native, ours] = judgement.status
        assert judgement.figures["filler_%"] == ours[0]
    assert found == FILLS
    assert mixed.judge_fills((37.0, 53.1), (20.0, 51.7)).missed == [
        "the neighbour got 51.7 % of its 75, not 61.6; both together 71.7 %, natively 90.1 %"
    ]


Pair = tuple[tuple[int, int], tuple[float, float], float]
# Limits and shares of two containers and the native sum, on an H100 (driver 580.159.04)
PAIRS: dict[Pair, list[str]] = {
    ((50, 50), (44.78, 45.26), 90.32): [],
    ((20, 50), (21.68, 47.29), 89.7): [],
    ((20, 50), (23.01, 43.61), 91.2): ["A 20 % small: got 23.0 %, not 15.2 to 23"],
    ((30, 70), (36.86, 54.48), 90.3): [
        "A 30 % small: got 36.9 %, not 24.1 to 33",
        "B 70 % small: got 54.5 %, not 60.2 to 73",
    ],
    ((50, 50), (44.78, 45.26), 104.0): [
        "A 50 % small: got 44.8 %, not 47.0 to 53",
        "B 50 % small: got 45.3 %, not 47.0 to 53",
    ],
}


def test_each_of_a_pair_gets_its_part_of_what_two_get_natively() -> None:
    found = {
        (limits, shares, native): sharing.judge(limits, ("small", "small"), [[share] for share in shares], [native])
        for limits, shares, native in PAIRS
    }
    assert {case: judgement.missed for case, judgement in found.items()} == PAIRS


def test_a_pair_is_measured_alone_limited_and_natively(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [{"per_second": rate} for rate in (100.0, 100.0, 45.0, 45.0, 45.0, 45.0)]
    figures = sharing.pair(scripted(short_tmp, workload=rates), "50", "50", "medium", "medium").figures
    assert [figures[name]["median"] for name in ("sum_native", "sum", "A 50 % medium")] == [90.0, 90.0, 45.0]
    printed: list[dict[str, Any]] = [{"tenths": [0, 9, 20, 9, 10, 9, 2]}, {"tenths": [0, 0, 1, 9, 8, 9, 20, 20]}]
    monkeypatch.setattr(sharing, "together", lambda *_: printed)
    native = sharing._native_sum(bench(short_tmp, "pace", native={}, ours={}), 5000, 20.0)
    assert native == 90.0, "only while both work"


BORROWED: dict[tuple[float, float, float, float], list[str]] = {
    (99.6, 27.4, 64.4, 90.3): [],
    (99.6, 27.4, 64.4, 100.0): ["B gets 64.4 % of its 75, not 69.0"],
    (99.6, 33.0, 61.0, 90.3): ["a second after B came A still has 33.0 %", "B gets 61.0 % of its 75, not 61.7"],
    (80.0, 27.4, 64.4, 90.3): ["alone A got 80.0 %, not 90"],
}


def test_what_is_borrowed_comes_back() -> None:
    assert {found: sharing.judge_soft(*found).missed for found in BORROWED} == BORROWED


def test_the_cost_of_a_call_is_said_in_percent_too(short_tmp: Path) -> None:
    missed = {}
    for extra_ns in (15.0, 50.0):
        printed = {"extra_ns": extra_ns, "direct_ns": 2000.0}
        judgement = overhead.call(bench(short_tmp, "overhead", native=printed, ours=printed), "graph")
        assert judgement.figures["limit 99"]["extra_percent"]["median"] == extra_ns / 20
        missed[extra_ns] = judgement.missed
    more = [f"{name}: 50.0 ns more, 2.5 % of a direct call" for name in ("no base", "no limit")]
    assert missed == {15.0: [], 50.0: more}


def test_an_endless_kernel_holds_up_nobody(short_tmp: Path) -> None:
    missed = {}
    for per_second, p50_ms in ((500.0, 2.0), (4.0, 2.0), (500.0, 40.0)):
        pace = {"p50_ms": p50_ms, "p99_ms": 50.0, "longest_ms": 60.0}
        rates = [{"per_second": 5000.0}, {"per_second": per_second}]
        missed[per_second, p50_ms] = len(mixed.endless(scripted(short_tmp, endless=rates, pace=[pace])).missed)
    assert missed == {(500.0, 2.0): 0, (4.0, 2.0): 1, (500.0, 40.0): 1}


class Ranks:
    """Steps of both ranks, natively and then limited."""

    def __init__(self, first_ms: float, limited: list[float]) -> None:
        self.answers = iter([[[first_ms, *[10.0] * 59]] * 2, [limited, limited]])

    def __call__(self, *_: object) -> list[list[float]]:
        return next(self.answers)


def test_ranks_settle_or_fail(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steady, growing = [20.0] * 60, [20.0 * 1.1**n for n in range(60)]
    found = []
    for first_ms, limited in ((505.0, steady), (505.0, growing), (505.0, steady[:12]), (5.0, steady)):
        monkeypatch.setattr(ranks, "pair", Ranks(first_ms, limited))
        found.append(ranks.together(bench(short_tmp, "meet", native={}, ours={}), "25", "0").status)
    assert found == [Status.PASSED, Status.FAILED, Status.FAILED, Status.NOT_RUN]
