"""Which containers keep to their share: what lasts is reported, what the driver's lags explain is not."""

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
def test_what_is_over_is_forgotten(seen: dict[str, Any]) -> None:
    monitor = LimitMonitor()
    assert watch(monitor, seconds=30, **seen)
    assert watch(monitor, seconds=1, start=30) == ()
    assert watch(monitor, seconds=9, start=31, **seen) == (), "the patience starts again"


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
