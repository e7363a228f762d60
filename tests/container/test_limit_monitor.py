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


@pytest.mark.parametrize(
    ("breach", "seen", "words"),
    [
        pytest.param(
            Breach.MEMORY,
            {"seen_bytes": 3 * GIB},
            "uses 3072 MiB and its limit is 2048 MiB, but vcuda's library accounts for 1024 MiB only; delete the pod",
            id="memory-beside-the-library",
        ),
        pytest.param(
            Breach.MEMORY,
            {"seen_bytes": 3 * GIB, "accounted_bytes": 3 * GIB},
            "the memory that the driver itself needs does not fit; request more memory blocks",
            id="contexts-larger-than-the-slice",
        ),
        pytest.param(
            Breach.BYPASS,
            {"unmanaged": (71, 72)},
            "runs processes without vcuda's library (PIDs on the node: 71, 72); delete the pod",
            id="bypass",
        ),
        pytest.param(Breach.CORES, {"seen_percent": 90.0}, "% of the GPU's time and its limit is", id="time"),
        pytest.param(Breach.STATE, {"corrupted": "a file is longer than allowed"}, "a file is longer", id="state"),
    ],
)
def test_a_lasting_violation_is_reported_in_one_sentence(breach: Breach, seen: dict[str, Any], words: str) -> None:
    monitor = LimitMonitor()
    assert watch(monitor, seconds=10, **seen) == ()
    (found,) = watch(monitor, seconds=40, start=10, **seen)
    assert (found.breach, found.gpu) == (breach, GPU.uuid)
    assert words in found.sentence
    assert found.sentence.startswith("container ml/nb/main on GPU 3 ")
    assert not found.sentence.endswith(".")
    assert "\n" not in found.sentence


@pytest.mark.parametrize("seen", [{"seen_bytes": 3 * GIB}, {"unmanaged": (71,)}, {"corrupted": "x"}])
def test_what_is_over_is_forgotten_after_a_minute(seen: dict[str, Any]) -> None:
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


@pytest.mark.parametrize(
    ("breach", "seen", "seconds"),
    [
        pytest.param(Breach.MEMORY, pulses(9, 1, seen_bytes=80 * GIB), 3239, id="memory-9-of-10-s"),
        pytest.param(Breach.BYPASS, pulses(9, 1, unmanaged=(77,)), 3239, id="bypass-9-of-10-s"),
        pytest.param(Breach.STATE, pulses(1, 2, corrupted="x"), 1199, id="state-1-of-3-s"),
        pytest.param(Breach.CORES, pulses(4, 10, seen_percent=100.0), 1200, id="time-4-of-14-s"),
        pytest.param(Breach.CORES, pulses(1, 0, seen_percent=35.0), 3500, id="time-a-little-all-the-time"),
    ],
)
def test_what_comes_again_and_again_is_reported(
    breach: Breach, seen: Callable[[int], dict[str, Any]], seconds: int
) -> None:
    """Security 11: an hour of it. From the first minutes on without a pause, and all of it is counted."""
    reported, counted = each_second(20.0, seen)
    assert reported > 3400
    assert counted == {breach: pytest.approx(seconds, rel=0.1)}


@pytest.mark.parametrize(
    ("limit", "seen"),
    [
        pytest.param(20.0, pulses(1, 0, seen_percent=30.0), id="ten-points-above-all-the-time"),
        pytest.param(20.0, pulses(1, 9, seen_bytes=80 * GIB), id="memory-of-a-moment"),
        pytest.param(20.0, pulses(4, 16, seen_percent=100.0), id="kernels-of-4-s-that-are-paid-for"),
        pytest.param(20.0, pulses(10, 40, seen_percent=100.0), id="kernels-of-10-s-that-are-paid-for"),
        pytest.param(50.0, pulses(20, 20, seen_percent=100.0), id="kernels-of-20-s-that-are-paid-for"),
        pytest.param(5.0, pulses(2, 38, seen_percent=100.0), id="long-kernels-and-a-small-limit"),
    ],
)
def test_what_keeps_to_the_limit_over_minutes_is_not_reported(
    limit: float, seen: Callable[[int], dict[str, Any]]
) -> None:
    reported, _ = each_second(limit, seen)
    assert reported == 0


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


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"shown_percent": None}, id="not-known"),
        pytest.param({"shown_percent": 100.0}, id="shows-more-than-it-uses"),
        pytest.param({"shown_percent": 9.0}, id="within-the-slack"),
        pytest.param({"seen_percent": 100.0, "shown_percent": 0.0, "limit_cores": 100}, id="no-time-limit"),
        pytest.param({"unmanaged": (71,), "seen_bytes": 9 * GIB}, id="other-violations"),
    ],
)
def test_otherwise_neighbours_believe_the_activity_file(seen: dict[str, Any]) -> None:
    monitor = LimitMonitor()
    watch(monitor, seconds=120, **seen)
    assert monitor.assumed_cores() == {}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"seen_bytes": 2 * GIB + 64 * MIB}, id="within-the-slack"),
        pytest.param({"seen_bytes": None}, id="driver-does-not-say"),
        pytest.param({"seen_bytes": 9 * GIB, "limit_bytes": 0}, id="no-memory-limit"),
        pytest.param({"seen_percent": 29.0}, id="a-little-more-time"),
        pytest.param({"seen_percent": None}, id="time-not-known"),
        pytest.param({"seen_percent": 100.0, "limit_cores": 100}, id="no-time-limit"),
    ],
)
def test_what_is_tolerated(seen: dict[str, Any]) -> None:
    assert watch(LimitMonitor(), seconds=120, **seen) == ()


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
