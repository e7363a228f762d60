"""Which containers keep to their share: what lasts is reported, what the driver's lags explain is not."""

import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from deviceplugin.container.limit_monitor import GpuReading, GpuTotals, LimitMonitor
from deviceplugin.model.gpu import Breach, Gpu, GpuUuid, Overrun
from deviceplugin.structs import replace

MIB, GIB = 1 << 20, 1 << 30
GPU = Gpu(GpuUuid("GPU-a"), 0, 3, "Test GPU", 16 * GIB)
GOOD = GpuReading(
    container="ml/nb/main",
    gpu=GPU,
    limit_bytes=2 * GIB,
    limit_cores=20,
    accounted_bytes=GIB,
    seen_bytes=GIB + 100 * MIB,
    seen_percent=18.0,
)


def watch(monitor: LimitMonitor, *, seconds: int, start: int = 0, **seen: Any) -> tuple[Overrun, ...]:
    """One look a second; what the last one found."""
    found: tuple[Overrun, ...] = ()
    for second in range(start, start + seconds):
        found = monitor.check((replace(GOOD, **seen),), now=float(second))
    return found


@pytest.fixture
def monitor() -> LimitMonitor:
    return LimitMonitor()


def test_what_ended_processes_used_counts_and_was_not_hidden(monitor: LimitMonitor) -> None:
    """Their part of the activity file is gone, so it proves nothing."""
    found = watch(monitor, seconds=120, seen_percent=90.0, ended_percent=90.0, shown_percent=0.0)
    assert {each.breach for each in found} == {Breach.CORES}
    assert watch(LimitMonitor(), seconds=120, seen_percent=18.0, ended_percent=18.0, shown_percent=0.0) == ()


def test_who_keeps_to_his_share_is_left_alone() -> None:
    assert watch(LimitMonitor(), seconds=300) == ()


def test_a_lasting_violation_is_reported_in_one_sentence(subtests: pytest.Subtests) -> None:
    cases: tuple[tuple[Breach, dict[str, Any], str], ...] = (
        (
            Breach.MEMORY,
            {"seen_bytes": 3 * GIB},
            "uses 3072 MiB and its limit is 2048 MiB, but vcuda's library accounts for 1024 MiB only; delete the pod",
        ),
        (
            Breach.MEMORY,
            {"seen_bytes": 3 * GIB, "accounted_bytes": 3 * GIB},
            "the memory that the driver itself needs does not fit; request more memory",
        ),
        (
            Breach.BYPASS,
            {"unmanaged": (71, 72)},
            "runs processes without vcuda's library (PIDs on the node: 71, 72); delete the pod",
        ),
        (Breach.CORES, {"seen_percent": 90.0}, "% of the GPU's time and its limit is"),
        (Breach.STATE, {"corrupted": "a file is longer than allowed"}, "a file is longer"),
    )
    for breach, seen, words in cases:
        with subtests.test(seen=seen):
            monitor = LimitMonitor()
            assert watch(monitor, seconds=10, **seen) == ()
            (found,) = watch(monitor, seconds=40, start=10, **seen)
            assert (found.breach, found.gpu) == (breach, GPU.uuid)
            assert words in found.sentence
            assert found.sentence.startswith("container ml/nb/main on GPU 3 ")
            assert not found.sentence.endswith(".")
            assert "\n" not in found.sentence


def test_what_is_over_is_forgotten_after_a_minute(subtests: pytest.Subtests) -> None:
    violations: tuple[dict[str, Any], ...] = ({"seen_bytes": 3 * GIB}, {"unmanaged": (71,)}, {"corrupted": "x"})
    for seen in violations:
        with subtests.test(seen=seen):
            monitor = LimitMonitor()
            assert watch(monitor, seconds=30, **seen)
            assert watch(monitor, seconds=50, start=30), "it may come again"
            assert watch(monitor, seconds=20, start=80) == ()
            assert watch(monitor, seconds=9, start=100, **seen) == (), "the patience starts again"


def each_second(limit: float, seen: Callable[[int], dict[str, Any]]) -> tuple[int, dict[Breach, float]]:
    """In a simulated hour: in how many seconds something was reported, and for how long each breach was seen."""
    monitor = LimitMonitor()
    reported = 0
    for second in range(3600):
        reading = replace(GOOD, limit_cores=limit, **seen(second))
        reported += bool(monitor.check((reading,), now=float(second)))
    return reported, {breach: seconds for (_, breach), seconds in monitor.seconds.items()}


def pulses(on: int, off: int, **seen: Any) -> Callable[[int], dict[str, Any]]:
    quiet: dict[str, Any] = {"seen_percent": 0.0} if "seen_percent" in seen else {}
    return lambda second: seen if second % (on + off) < on else quiet


def test_what_comes_again_and_again_is_reported(subtests: pytest.Subtests) -> None:
    """Security 11: an hour of it. From the first minutes on without a pause, and all of it is counted."""
    for breach, seen, seconds in (
        (Breach.MEMORY, pulses(9, 1, seen_bytes=80 * GIB), 3239),
        (Breach.BYPASS, pulses(9, 1, unmanaged=(77,)), 3239),
        (Breach.STATE, pulses(1, 2, corrupted="x"), 1199),
        (Breach.CORES, pulses(4, 10, seen_percent=100.0), 1200),
        (Breach.CORES, pulses(1, 0, seen_percent=35.0), 3500),  # a little, all the time
    ):
        with subtests.test(breach=breach, seconds=seconds):
            reported, counted = each_second(20.0, seen)
            assert reported > 3400
            assert counted == {breach: pytest.approx(seconds, rel=0.1)}


def test_what_keeps_to_the_limit_over_minutes_is_not_reported() -> None:
    tolerated = {
        "ten points above all the time": (20.0, pulses(1, 0, seen_percent=30.0)),
        "memory of a moment": (20.0, pulses(1, 9, seen_bytes=80 * GIB)),
        "kernels of 4 s that are paid for": (20.0, pulses(4, 16, seen_percent=100.0)),
        "kernels of 10 s that are paid for": (20.0, pulses(10, 40, seen_percent=100.0)),
        "kernels of 20 s that are paid for": (50.0, pulses(20, 20, seen_percent=100.0)),
        "long kernels and a small limit": (5.0, pulses(2, 38, seen_percent=100.0)),
    }
    assert {name: each_second(*case)[0] for name, case in tolerated.items()} == dict.fromkeys(tolerated, 0)


def test_time_in_which_nobody_read_counts_for_seconds_only(monitor: LimitMonitor) -> None:
    over = replace(GOOD, unmanaged=(71,))
    assert monitor.check((over,), now=0.0) == ()
    assert monitor.check((over,), now=3600.0) == ()
    assert monitor.seconds == {(GPU.uuid, Breach.BYPASS): 5.0}


# ---- what neighbours shall assume ----


def test_a_container_that_hides_its_turns_is_reported_and_its_neighbours_are_told(monitor: LimitMonitor) -> None:
    """Security 8: the driver sees more than the activity file shows."""
    assert watch(monitor, seconds=10, shown_percent=0.0) == ()
    assert monitor.assumed_cores() == {}
    (found,) = watch(monitor, seconds=30, start=10, shown_percent=0.0)
    assert found.breach is Breach.STATE
    assert "of the GPU's time and shows 0 % of it in its activity file" in found.sentence
    assert monitor.assumed_cores()[GPU.uuid] in (17, 18)
    assert watch(monitor, seconds=120, start=40, shown_percent=18.0) == ()
    assert monitor.assumed_cores() == {}


def test_neighbours_are_told_what_is_used_above_the_limit(monitor: LimitMonitor) -> None:
    (found,) = watch(monitor, seconds=120, seen_percent=68.0, shown_percent=68.0)
    assert found.breach is Breach.CORES
    assert monitor.assumed_cores()[GPU.uuid] in (67, 68)


def test_otherwise_neighbours_believe_the_activity_file() -> None:
    believed: dict[str, dict[str, Any]] = {
        "not known": {"shown_percent": None},
        "shows more than it uses": {"shown_percent": 100.0},
        "within the slack": {"shown_percent": 16.5},
        "no time limit": {"seen_percent": 100.0, "shown_percent": 0.0, "limit_cores": 100},
        "other violations": {"unmanaged": (71,), "seen_bytes": 9 * GIB},
    }
    assumed = {}
    for name, seen in believed.items():
        monitor = LimitMonitor()
        watch(monitor, seconds=120, **seen)
        assumed[name] = monitor.assumed_cores()
    assert [name for name, cores in assumed.items() if cores] == []


def test_what_is_tolerated() -> None:
    tolerated: dict[str, dict[str, Any]] = {
        "within the slack": {"seen_bytes": 2 * GIB + 64 * MIB},
        "driver does not say": {"seen_bytes": None},
        "no memory limit": {"seen_bytes": 9 * GIB, "limit_bytes": 0},
        "a little more time": {"seen_percent": 29.0},
        "time not known": {"seen_percent": None},
        "no time limit": {"seen_percent": 100.0, "limit_cores": 100},
    }
    assert {name: watch(LimitMonitor(), seconds=120, **seen) for name, seen in tolerated.items()} == dict.fromkeys(
        tolerated, ()
    )


def test_short_bursts_of_load_are_no_breach(monitor: LimitMonitor) -> None:
    found = [
        monitor.check((replace(GOOD, seen_percent=100.0 if second % 10 == 0 else 10.0),), now=float(second))
        for second in range(300)
    ]
    assert not any(found)


def test_each_breach_lasts_by_itself(monitor: LimitMonitor) -> None:
    watch(monitor, seconds=5, unmanaged=(71,))
    found = watch(monitor, seconds=8, start=5, unmanaged=(71,), seen_bytes=5 * GIB)
    assert [each.breach for each in found] == [Breach.BYPASS]


# ---- many, each of them little ----


class Group:
    """Containers of one GPU, each with its monitor. `reported`: in how many seconds, for each of them."""

    def __init__(self, count: int) -> None:
        self.totals = GpuTotals()
        self.monitors = [LimitMonitor(totals=self.totals) for _ in range(count)]
        self.reported = [0] * count
        self.found: list[tuple[Overrun, ...]] = [()] * count
        self.now = 0

    def watch(self, seconds: int, look: Callable[[int, int], dict[str, Any]]) -> None:
        """`look`: what the container with that number does in that second."""
        for _ in range(seconds):
            for number, monitor in enumerate(self.monitors):
                reading = replace(GOOD, **look(number, self.now))
                self.found[number] = monitor.check((reading,), now=float(self.now))
                self.reported[number] += bool(self.found[number])
            self.now += 1

    @property
    def assumed(self) -> list[int]:
        return [monitor.assumed_cores().get(GPU.uuid, 0) for monitor in self.monitors]


def silent(limit: float, seen: float, shown: float = 0.0) -> dict[str, Any]:
    return {"limit_cores": limit, "seen_percent": seen, "shown_percent": shown}


@pytest.mark.parametrize(
    ("count", "limit", "seen"), [(2, 10, 7.0), (4, 10, 7.0), (7, 10, 5.5), (10, 5, 3.2), (50, 1, 0.5)]
)
def test_what_containers_of_a_gpu_hide_is_summed(count: int, limit: float, seen: float) -> None:
    """None of them hides ten points, and not the half of it at once. All are found within half a minute."""
    group = Group(count)
    group.watch(30, lambda number, second: silent(limit, seen, shown=seen * (number % 2) / 2))
    assert all(any(each.breach is Breach.STATE for each in found) for found in group.found)
    assert all(seen / 2 <= cores <= limit for cores in group.assumed)


def test_what_some_hide_now_and_then_is_summed_too() -> None:
    """In turns, six points for ten seconds each: less than two in the mean of each of them, six of the GPU."""
    group = Group(6)
    group.watch(600, lambda number, second: silent(20, 15.0, shown=9.0 if second // 10 % 6 == number else 15.0))
    assert min(group.reported) > 300


def test_much_that_is_hidden_for_a_moment_is_told_before_the_moment_is_over() -> None:
    """And long enough afterwards that the mean stays below two points, whatever the pause is."""
    for pause in (20, 60, 90, 120, 180, 300):
        group = Group(2)
        unnoticed = 0.0
        for _ in range(10):
            for second in range(pause + 9):
                hides = second < 9
                group.watch(1, lambda number, now, hides=hides: silent(40, 30.0, shown=5.0 if hides else 30.0))  # type: ignore[misc]
                unnoticed += 25.0 * hides * group.assumed.count(0)
        assert unnoticed / group.now < 2.5, f"pause {pause}"


def test_those_who_are_not_told_hide_little_together() -> None:
    """The invariant, for one that hides much and many that hide what is left."""
    group = Group(10)
    group.watch(300, lambda number, second: silent(10, 10.0, shown=0.0 if number == 0 else 9.85))
    assert [bool(cores) for cores in group.assumed] == [True] + [False] * 9
    group = Group(10)
    group.watch(60, lambda number, second: silent(10, 10.0, shown=9.5))
    assert all(group.assumed), "half a point each is five"


def test_a_container_that_may_borrow_everything_hides_nothing_either() -> None:
    """Its owner writes the soft limit: 100 would be no limit, and so nothing to judge."""
    group = Group(2)
    group.watch(60, lambda number, second: silent(100, 8.0) | {"may_borrow": True})
    assert all(group.assumed)


def test_a_file_that_shows_nothing_is_reported_unless_it_hides_less_than_all_may(monitor: LimitMonitor) -> None:
    """A driver sees a point of a process that makes its context and runs no kernel, which is shown by nobody."""
    (found,) = watch(monitor, seconds=90, limit_cores=3, seen_percent=2.5, shown_percent=0.0)
    assert found.breach is Breach.STATE
    assert monitor.assumed_cores() == {GPU.uuid: 3}
    assert watch(LimitMonitor(), seconds=90, limit_cores=3, seen_percent=1.5, shown_percent=0.0) == ()


def test_what_containers_use_openly_above_their_limits_is_summed() -> None:
    """Ten points for each of ten would be a hundred."""
    found = {}
    for count, above in ((1, 10.0), (3, 10.0), (10, 10.0), (10, 3.0), (3, 1.0)):
        group = Group(count)
        group.watch(120, lambda number, second, seen=5.0 + above: silent(5, seen, shown=seen))  # type: ignore[misc]
        found[count, above] = [bool(each) for each in group.found]
    assert found == {
        (1, 10.0): [False],
        (3, 10.0): [True] * 3,
        (10, 10.0): [True] * 10,
        (10, 3.0): [True] * 10,
        (3, 1.0): [False] * 3,
    }


def test_long_kernels_that_many_pay_for_are_no_breach() -> None:
    group = Group(4)

    def look(number: int, second: int) -> dict[str, Any]:
        seen = 100.0 if (second + 10 * number) % 40 < 8 else 0.0
        return silent(20, seen, shown=seen)

    group.watch(1200, look)
    assert sum(group.reported) == 0


def test_who_uses_what_hiders_leave_is_not_reported_for_it() -> None:
    """What is assumed of them is charged to nobody, so their neighbour comes to more than its limit."""
    group = Group(5)

    def look(number: int, second: int) -> dict[str, Any]:
        return silent(10, 7.0) if number else silent(30, 30.0 if second < 20 else 48.0, shown=100.0)

    group.watch(600, look)
    assert group.reported[0] == 0
    assert min(group.reported[1:]) > 500


def test_readings_that_jump_are_not_taken_for_hiding() -> None:
    """The driver reads at other moments than the activity file: what one has too little the next one has too much."""
    group, chance = Group(10), Random(3)
    late = [0.0] * 10

    def look(number: int, second: int) -> dict[str, Any]:
        before, late[number] = late[number], chance.uniform(0, 5.0)
        return silent(10, 10.0 - late[number] + before, shown=10.0)

    group.watch(3600, look)
    assert sum(group.reported) == 0


def test_a_container_leaves_the_sums_with_its_monitor() -> None:
    group = Group(8)
    group.watch(5, lambda number, second: silent(10, 8.0))
    del group.monitors[1:]
    gc.collect()
    group.watch(100, lambda number, second: silent(10, 8.0, shown=6.6))
    assert group.found[0] == ()


def test_a_reading_without_an_activity_file_to_compare_with_excuses_nothing() -> None:
    """A process that comes and goes has no row to compare with in most readings."""
    group = Group(2)
    group.watch(90, lambda number, second: silent(10, 3.0, shown=1.0) | ({"shown_percent": None} if second % 6 else {}))
    assert all(group.found)
