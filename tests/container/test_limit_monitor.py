"""Which containers keep to their share: what lasts is reported, what the driver's lags explain is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deviceplugin.container.limit_monitor import GpuReading, LimitMonitor
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.usage import Breach, Overrun

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
            "the memory that the driver itself needs does not fit; request more memory blocks",
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


def test_time_in_which_nobody_read_counts_for_seconds_only() -> None:
    monitor = LimitMonitor()
    over = replace(GOOD, unmanaged=(71,))
    assert monitor.check((over,), now=0.0) == ()
    assert monitor.check((over,), now=3600.0) == ()
    assert monitor.seconds == {(GPU.uuid, Breach.BYPASS): 5.0}


# ---- what neighbours shall assume ----


def test_a_container_that_hides_its_turns_is_reported_and_its_neighbours_are_told() -> None:
    """Security 8: the driver sees more than the activity file shows."""
    monitor = LimitMonitor()
    assert watch(monitor, seconds=10, shown_percent=0.0) == ()
    assert monitor.assumed_cores() == {}
    (found,) = watch(monitor, seconds=30, start=10, shown_percent=0.0)
    assert found.breach is Breach.STATE
    assert "uses 17 % of the GPU's time and shows 0 % of it in its activity file" in found.sentence
    assert monitor.assumed_cores() == {GPU.uuid: 20}
    assert watch(monitor, seconds=120, start=40, shown_percent=18.0) == ()
    assert monitor.assumed_cores() == {}


def test_neighbours_are_told_what_is_used_above_the_limit() -> None:
    monitor = LimitMonitor()
    (found,) = watch(monitor, seconds=120, seen_percent=68.0, shown_percent=68.0)
    assert found.breach is Breach.CORES
    assert monitor.assumed_cores() == {GPU.uuid: 70}


def test_otherwise_neighbours_believe_the_activity_file() -> None:
    believed: dict[str, dict[str, Any]] = {
        "not known": {"shown_percent": None},
        "shows more than it uses": {"shown_percent": 100.0},
        "within the slack": {"shown_percent": 9.0},
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


def test_short_bursts_of_load_are_no_breach() -> None:
    monitor = LimitMonitor()
    found = [
        monitor.check((replace(GOOD, seen_percent=100.0 if second % 10 == 0 else 10.0),), now=float(second))
        for second in range(300)
    ]
    assert not any(found)


def test_each_breach_lasts_by_itself() -> None:
    monitor = LimitMonitor()
    watch(monitor, seconds=5, unmanaged=(71,))
    found = watch(monitor, seconds=8, start=5, unmanaged=(71,), seen_bytes=5 * GIB)
    assert [each.breach for each in found] == [Breach.BYPASS]
