"""The checks T10 to T14: their programs on the emulated driver, and what is made of what they say.

Not here: whether the library passes them; tests/library has that for each promise.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import build, driver, prepare
from benchmarks.gpu.bench import Bench, ProgramFailed, killed_at_end
from benchmarks.gpu.checks import holes, mixed, overhead, ranks, sharing
from benchmarks.gpu.driver import Device, Driver
from benchmarks.gpu.outcome import Judgement, NotRun, Status
from tests.waiting import eventually

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


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    scratch = tmp_path_factory.mktemp("e")
    built = build.build(scratch)
    found = driver.emulated(built, scratch, "for a test")
    prepare.lay_out(built, found, scratch)
    return Bench(scratch, found, True, 0.2, 1, "", 4000)


@pytest.mark.parametrize("way", ["export", "module", "context", "heap", "ipc"])
def test_each_way_to_memory_is_tried_until_there_is_enough(emulated: Bench, way: str) -> None:
    words = [way, "--block-mib", 32, "--most-mib", 96]
    printed = emulated.native().run(emulated.program("holes"), *words, timeout=60)
    assert printed["got"] == 96 * MIB
    assert (printed["refusal"], printed["kernel_runs"]) == (0, 1)
    assert printed["used_again"] == (printed["blocks"] if way == "export" else 0)


def test_memory_of_the_host_is_moved_only_where_the_gpu_reaches_it(emulated: Bench) -> None:
    words = [emulated.program("holes"), "prefetch", "--block-mib", 32, "--most-mib", 96]
    assert emulated.native().run(*words, timeout=60).keys() == {"cannot"}
    assert emulated.native().run(*words, timeout=60, VCUDA_EMULATOR_HMM="1")["got"] == 96 * MIB


@pytest.mark.parametrize(("size", "given"), [(1 << 30, True), (1 << 42, False)])
def test_a_capture_gets_what_there_is(emulated: Bench, size: int, given: bool) -> None:
    """So the check that asks for twice the limit fails if nothing limits it."""
    words = [sys.executable, "-m", "benchmarks.gpu.inside.conduct", "refused_in_capture", size]
    printed = emulated.native().run(*words, timeout=60)
    assert (set(printed["codes"].values()) == {0}) is given
    assert printed["afterwards"] == 0


def test_each_kind_of_mixed_work_runs(emulated: Bench, subtests: pytest.Subtests) -> None:
    for kind in ("plain", "copy", "host", "wait", "grids", "null", "burst", "fill", "duplicate"):
        with subtests.test(kind):
            words = [kind, "--seconds", 0, "--warmup", 0, "--kernels", 8, "--mib", 1]
            printed = emulated.native().run(emulated.program("mixed"), *words, timeout=60)
            assert printed.keys() == {"steps", "seconds", "per_second", "kernels_per_second", "kernel_percent"}
            assert printed["steps"] == 1


def test_short_kernels_are_timed_beside_an_endless_one(emulated: Bench) -> None:
    printed = emulated.native().run(emulated.program("endless"), "--seconds", 0.1, timeout=60)
    assert 0 < printed["p50_ms"] <= printed["p99_ms"] <= printed["longest_ms"]


def test_a_primary_context_is_taken_again_after_each_reset(emulated: Bench) -> None:
    printed = emulated.native().run(emulated.program("primary"), "--rounds", 2, "--mib", 64, timeout=60)
    assert printed["refused"] == 0
    assert 64 * MIB <= printed["used"] < 1024 * MIB


def test_the_driver_tells_the_clock_and_whether_it_is_busy(emulated: Bench) -> None:
    """What others did before shows for a second."""
    asked = "import sys; from benchmarks.gpu.inside.driver_api import Nvml; n = Nvml(sys.argv[1]); print("
    code = f"{asked}[n.sm_mhz(), n.busy_percent()])"

    def look() -> list[int]:
        found: list[int] = emulated.native().run(sys.executable, "-c", code, emulated.device.uuid)
        return found

    assert eventually(lambda: look()[1] == 0)
    work = ("medium", "--seconds", 60, "--warmup", 0, "--round-ps", 4000)
    with killed_at_end(emulated.native().start(emulated.program("workload"), *work)):
        assert eventually(lambda: look()[1] > 50)
    assert look()[0] > 0


def test_two_ranks_make_their_steps(emulated: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "STEPS", 4)
    monkeypatch.setattr(ranks, "KERNEL_US", 50)
    both = ranks.pair(emulated, [emulated.native(), emulated.native()], "0")
    assert [len(took) for took in both] == [4, 4]


def bench(scratch: Path, program: str, *, native: dict[str, Any], ours: dict[str, Any]) -> Bench:
    """A program that prints one of two lines, natively or in a container."""
    (scratch / "programs").mkdir()
    path = scratch / "programs" / program
    path.write_text(STAND_IN.format(python=sys.executable, printed=[native, ours]))
    path.chmod(0o755)
    found = Driver(True, "/nowhere", "/nowhere", "580", "13.0", (Device("GPU-1", "0", "H100", 80 << 30),), "a test")
    return Bench(scratch, found, True, 0.1, 1, "", 4000)


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


@pytest.fixture
def way(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Judgement]:
    def judged(*host_mib: int, got_mib: int = 2560, refusal: int = 2) -> Judgement:
        monkeypatch.setattr(holes, "HostMemory", lambda _: Host(*host_mib))
        tried = bench(short_tmp, "holes", native=held(6144, 0), ours=held(got_mib, refusal))
        return holes.way(tried, "module")

    return judged


def test_memory_within_half_of_what_it_takes_natively_passes(way: Callable[..., Judgement]) -> None:
    judgement = way(6144, 3072)
    assert (judgement.status, judgement.missed) == (Status.PASSED, [])
    assert judgement.figures["limit_mib"] == 3072


def test_memory_beyond_the_limit_fails(way: Callable[..., Judgement]) -> None:
    judgement = way(6144, 6144, got_mib=6144, refusal=0)
    assert judgement.status is Status.FAILED
    assert judgement.missed == ["the host sees 3072 MiB more than the limit", "refused with 0, not 2"]


def test_what_the_driver_does_not_show_is_no_pass(way: Callable[..., Judgement]) -> None:
    judgement = way(500)
    assert judgement.status is Status.NOT_RUN
    assert judgement.reason.startswith("not shown by an emulated driver: its figures show 500 MiB")
    assert judgement.figures["native"]["got_mib"] == 6144


@pytest.mark.parametrize(
    ("refused", "used_mib", "missed"),
    [(0, 1500, 0), (3, 1500, 1), (0, 1100, 1)],
    ids=["as the host sees", "refused", "not charged"],
)
def test_resets_leave_what_the_host_sees(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, refused: int, used_mib: int, missed: int
) -> None:
    monkeypatch.setattr(holes, "HostMemory", lambda _: Host(1500))
    printed = {"pid": 1, "refused": refused, "used": used_mib * MIB}
    assert len(holes.primary(bench(short_tmp, "primary", native={}, ours=printed), "retain").missed) == missed


def on_a_gpu(tried: Bench, python: str) -> Bench:
    return dataclasses.replace(tried, driver=dataclasses.replace(tried.driver, emulated=False), torch_python=python)


def test_without_a_runtime_or_nvidias_driver_that_way_is_not_run(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holes, "HostMemory", lambda _: Host())
    tried = bench(short_tmp, "python", native={}, ours={"cannot": "no libcudart"})
    with pytest.raises(NotRun, match="emulated driver"):
        holes.primary(tried, "runtime")
    with pytest.raises(NotRun, match="no libcudart"):
        holes.primary(on_a_gpu(tried, str(tried.program("python"))), "runtime")


RUNTIME = """
#include <stddef.h>
static int taken;
int cudaSetDevice(int device) { return device; }
int cudaMalloc(void **block, size_t size) { *block = NULL; taken += (int)(size >> 20); return taken > MOST ? 2 : 0; }
int cudaDeviceReset(void) { taken *= KEPT; return 0; }
int cudaMemGetInfo(size_t *available, size_t *total) {
    *total = 1 << 30;
    *available = *total - ((size_t)taken << 20);
    return 0;
}
"""


@pytest.mark.parametrize(("kept", "refused", "used_mib"), [(0, 0, 64), (1, 4, 384)], ids=["given back", "kept"])
def test_the_runtimes_resets_are_counted(short_tmp: Path, kept: int, refused: int, used_mib: int) -> None:
    (short_tmp / "runtime.c").write_text(RUNTIME)
    library = short_tmp / "nvidia/cu13/lib/libcudart.so.13"
    library.parent.mkdir(parents=True)
    settings = [f"-DKEPT={kept}", "-DMOST=128", "-shared", "-fPIC"]
    subprocess.run([build.compiler(), *settings, "-o", library, short_tmp / "runtime.c"], check=True)
    words = [sys.executable, "-m", "benchmarks.gpu.inside.runtime_context", "64"]
    paths = f"{short_tmp}:{build.REPOSITORY}"
    done = subprocess.run(words, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True, input="")
    assert json.loads(done.stdout) == {"refused": refused, "used": used_mib * MIB}


def test_nvidias_runtime_fails_where_it_does_not_begin(emulated: Bench) -> None:
    """So a driver that it does not like is no `not run`."""
    words = [sys.executable, "-m", "benchmarks.gpu.inside.runtime_context", 64]
    with pytest.raises(ProgramFailed, match="cudaSetDevice said"):
        emulated.native().run(*words, timeout=60)


@pytest.mark.parametrize(
    ("native", "ours", "missed"),
    [
        (50.0, 10.0, ["limit 25: got 10.0 %, natively 50.0 %", "limit 50: got 10.0 %, natively 50.0 %"]),
        (2.0, 1.9, []),
        (2.0, 0.5, [f"limit {cores}: got 0.5 %, natively 2.0 %" for cores in (10, 25, 50)]),
        (60.0, 60.0, ["limit 10: got 60.0 %", "limit 25: got 60.0 %", "limit 50: got 60.0 %"]),
    ],
    ids=["too little", "all it needs", "slowed down", "no limit"],
)
def test_mixed_work_gets_its_share_or_all_it_needs(
    short_tmp: Path, native: float, ours: float, missed: list[str]
) -> None:
    tried = bench(short_tmp, "mixed", native={"kernel_percent": native}, ours={"kernel_percent": ours})
    assert mixed.steps(tried, "copy").missed == missed


def test_streams_that_lose_their_overlap_fail(short_tmp: Path) -> None:
    tried = bench(short_tmp, "mixed", native={"kernels_per_second": 100.0}, ours={"kernels_per_second": 45.0})
    assert mixed.overlapping(tried, "null").missed == ["limit 100: 45.0 % of the native rate"]


def scripted(scratch: Path, **answers: list[dict[str, float]]) -> Bench:
    """Programs that print one prepared line after the other, for anybody who runs them, one at a time."""
    made = bench(scratch, "unused", native={}, ours={})
    for program, lines in answers.items():
        made.program(program).write_text(SCRIPTED.format(python=sys.executable))
        made.program(program).chmod(0o755)
        Path(f"{made.program(program)}.lines").write_text("\n".join(map(json.dumps, lines)))
    return made


@pytest.mark.parametrize("limited_percent", [30.0, 60.0])
def test_streams_that_get_too_little_or_too_much_at_half_fail(short_tmp: Path, limited_percent: float) -> None:
    rates = [{"kernels_per_second": rate} for rate in (100.0, 100.0, limited_percent)]
    missed = mixed.overlapping(scripted(short_tmp, mixed=rates), "null").missed
    assert {each.split(":")[0] for each in missed} == {"limit 50"}


@pytest.mark.parametrize(
    ("native", "ours", "status"),
    [
        ((40.0, 50.0), (24.0, 62.0), Status.PASSED),
        ((40.0, 50.0), (24.0, 61.0), Status.FAILED),
        ((40.0, 50.0), (29.0, 62.0), Status.FAILED),
        ((60.0, 60.0), (25.0, 68.0), Status.FAILED),
        ((20.0, 80.0), (29.0, 60.0), Status.NOT_RUN),
    ],
    ids=["kept", "disturbed", "beyond its limit", "nothing lost natively", "disturbs nobody"],
)
def test_fills_take_nothing_of_a_neighbour(
    short_tmp: Path, native: tuple[float, float], ours: tuple[float, float], status: Status
) -> None:
    filler, neighbour = ([{"per_second": rate} for rate in (100.0, *rates)] for rates in zip(native, ours, strict=True))
    judgement = mixed.fills(scripted(short_tmp, mixed=filler, workload=neighbour), "fill")
    assert judgement.status is status
    assert judgement.figures["filler_%"] == ours[0]


def test_the_reason_says_what_is_lost_beside_fills() -> None:
    assert mixed.judge_fills((37.0, 53.1), (20.0, 51.7)).missed == [
        "the neighbour got 51.7 % of its 75, not 61.6; both together 71.7 %, natively 90.1 %"
    ]


# Shares of two containers and the native sum, on an H100 (driver 580.159.04)
@pytest.mark.parametrize(
    ("limits", "shares", "native_sum", "missed"),
    [
        ((50, 50), (44.78, 45.26), 90.32, []),
        ((20, 50), (21.68, 47.29), 89.7, []),
        ((20, 50), (23.01, 43.61), 91.2, ["A 20 % small: got 23.0 %, not 15.2 to 23"]),
        (
            (30, 70),
            (36.86, 54.48),
            90.3,
            ["A 30 % small: got 36.9 %, not 24.1 to 33", "B 70 % small: got 54.5 %, not 60.2 to 73"],
        ),
        (
            (50, 50),
            (44.78, 45.26),
            104.0,
            ["A 50 % small: got 44.8 %, not 47.0 to 53", "B 50 % small: got 45.3 %, not 47.0 to 53"],
        ),
    ],
    ids=["even", "room for both", "a bit too much", "one lives on the other", "nothing lost natively"],
)
def test_each_of_a_pair_gets_its_part_of_what_two_get_natively(
    limits: tuple[int, int], shares: tuple[float, float], native_sum: float, missed: list[str]
) -> None:
    judgement = sharing.judge(limits, ("small", "small"), [[share] for share in shares], [native_sum])
    assert judgement.missed == missed
    assert judgement.figures["sum_native"]["median"] == native_sum


def test_a_pair_is_measured_alone_limited_and_natively(short_tmp: Path) -> None:
    rates = [{"per_second": rate} for rate in (100.0, 100.0, 45.0, 45.0, 45.0, 45.0)]
    figures = sharing.pair(scripted(short_tmp, workload=rates), "50", "50", "medium", "medium").figures
    assert [figures[name]["median"] for name in ("sum_native", "sum", "A 50 % medium")] == [90.0, 90.0, 45.0]


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        ((99.6, 27.4, 64.4, 90.3), []),
        ((99.6, 27.4, 64.4, 100.0), ["B gets 64.4 % of its 75, not 69.0"]),
        ((99.6, 33.0, 61.0, 90.3), ["a second after B came A still has 33.0 %", "B gets 61.0 % of its 75, not 61.7"]),
        ((80.0, 27.4, 64.4, 90.3), ["alone A got 80.0 %, not 90"]),
    ],
    ids=["as on an H100", "nothing lost natively", "kept too long", "not borrowed"],
)
def test_what_is_borrowed_comes_back(found: tuple[float, float, float, float], missed: list[str]) -> None:
    assert sharing.judge_soft(*found).missed == missed


def test_a_native_pair_counts_while_both_work(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[dict[str, Any]] = [{"tenths": [0, 9, 20, 9, 10, 9, 2]}, {"tenths": [0, 0, 1, 9, 8, 9, 20, 20]}]
    monkeypatch.setattr(sharing, "together", lambda *_: printed)
    assert sharing._native_sum(bench(short_tmp, "pace", native={}, ours={}), 5000, 20.0) == 90.0


@pytest.mark.parametrize(("extra_ns", "missed"), [(50.0, 2), (15.0, 0)])
def test_the_cost_of_a_call_is_said_in_percent_too(short_tmp: Path, extra_ns: float, missed: int) -> None:
    printed = {"extra_ns": extra_ns, "direct_ns": 2000.0}
    judgement = overhead.call(bench(short_tmp, "overhead", native=printed, ours=printed), "graph")
    assert judgement.figures["limit 99"]["extra_percent"]["median"] == extra_ns / 20
    assert judgement.missed == [
        f"{name}: 50.0 ns more, 2.5 % of a direct call" for name in ("no base", "no limit")[:missed]
    ]


@pytest.mark.parametrize(("per_second", "p50_ms", "missed"), [(500.0, 2.0, 0), (4.0, 2.0, 1), (500.0, 40.0, 1)])
def test_an_endless_kernel_holds_up_nobody(short_tmp: Path, per_second: float, p50_ms: float, missed: int) -> None:
    pace = {"p50_ms": p50_ms, "p99_ms": 50.0, "longest_ms": 60.0}
    tried = scripted(short_tmp, endless=[{"per_second": 5000.0}, {"per_second": per_second}], pace=[pace])
    assert len(mixed.endless(tried).missed) == missed


class Ranks:
    """Steps of both ranks, natively and then limited."""

    def __init__(self, first_ms: float, *limited: list[float]) -> None:
        self.answers = iter([[[first_ms, *[10.0] * 59]] * 2, list(limited)])

    def __call__(self, *_: object) -> list[list[float]]:
        return next(self.answers)


@pytest.mark.parametrize(
    ("first_ms", "limited", "status"),
    [
        (505.0, [20.0] * 60, Status.PASSED),
        (505.0, [20.0 * 1.1**n for n in range(60)], Status.FAILED),
        (505.0, [20.0] * 12, Status.FAILED),
        (5.0, [20.0] * 60, Status.NOT_RUN),
    ],
    ids=["settles", "grows", "too slow to end", "kernels do not wait"],
)
def test_ranks_settle_or_fail(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, first_ms: float, limited: list[float], status: Status
) -> None:
    monkeypatch.setattr(ranks, "pair", Ranks(first_ms, limited, limited))
    assert ranks.together(bench(short_tmp, "meet", native={}, ours={}), "25", "0").status is status
