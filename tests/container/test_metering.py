"""From regions to numbers: what is measured, and that no container can make numbers that its GPU could not have."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.region import MOST, Counters, ProcessSlot, Region, Use
from deviceplugin.container.tracker import Reading, held_bytes, uses
from deviceplugin.model.gpu import Gpu, GpuUse, GpuUuid
from deviceplugin.structs import replace

GIB = 1 << 30
GPU = Gpu(GpuUuid("GPU-a"), 0, 0, "Test GPU", 16 * GIB)
COUNTERS = Counters(
    peak=5 * GIB,
    refusals=3,
    charged_ns=4_000_000_000,
    throttled_ns=250_000_000,
    throttled_launches=9,
    effective_cores=60_000,
)


def slot(index: int, *uses_: Use) -> ProcessSlot:
    return ProcessSlot(index, 10 + index, 1, 1, uses_)


ONE, TWO = slot(0, Use(used=2 * GIB, pending=GIB, overhead=GIB // 2)), slot(1, Use(used=GIB))


def test_what_a_share_uses() -> None:
    before = Reading(Region((replace(COUNTERS, charged_ns=3_500_000_000),), ()), at=10.0)
    now = Reading(Region((COUNTERS,), (ONE, TWO)), at=12.0)
    assert uses(now, before, gpus=[GPU], living=(ONE, TWO)) == (
        GpuUse(
            uuid=GPU.uuid,
            memory_bytes=3 * GIB + GIB // 2,
            overhead_bytes=GIB // 2,
            peak_bytes=5 * GIB,
            refusals=3,
            cores=25.0,
            cores_in_force=60.0,
            gpu_seconds=4.0,
            throttled_seconds=0.25,
            throttled_launches=9,
        ),
    )


def test_dead_processes_hold_nothing() -> None:
    now = Reading(Region((COUNTERS,), (ONE, TWO)), at=1.0)
    (use,) = uses(now, None, gpus=[GPU], living=(TWO,))
    assert (use.memory_bytes, use.overhead_bytes) == (GIB, 0)
    assert held_bytes((ONE, TWO), 0) == 3 * GIB + GIB // 2


def test_time_between_two_readings() -> None:
    before: dict[str, Reading | None] = {
        "none": None,
        "idle": Reading(Region((COUNTERS,), ()), at=1.0),
        "restarted": Reading(Region((replace(COUNTERS, charged_ns=9_000_000_000),), ()), at=1.0),
        "more than time": Reading(Region((replace(COUNTERS, charged_ns=0),), ()), at=1.0),
        "another number of GPUs": Reading(Region((), ()), at=1.0),
    }
    now = Reading(Region((COUNTERS,), ()), at=2.0)
    assert {name: uses(now, each, gpus=[GPU], living=())[0].cores for name, each in before.items()} == {
        "none": None,
        "idle": 0.0,
        "restarted": None,
        "more than time": 100.0,
        "another number of GPUs": None,
    }


def test_a_gpu_that_is_gone_has_no_numbers() -> None:
    two = Region((COUNTERS, COUNTERS), ())
    assert [use.uuid for use in uses(Reading(two, at=1.0), None, gpus=[None, GPU], living=())] == [GPU.uuid]


words = st.integers(-MOST + 1, MOST - 1)
counters = st.builds(Counters, *[words] * 9)
slots = st.builds(slot, st.integers(0, 9), st.builds(Use, *[words] * 4))


@given(counters, counters, st.lists(slots, max_size=5).map(tuple))
def test_whatever_a_container_writes_its_gpu_could_have(
    a: Counters, b: Counters, living: tuple[ProcessSlot, ...]
) -> None:
    (use,) = uses(Reading(Region((b,), living), at=2.0), Reading(Region((a,), ()), at=1.0), gpus=[GPU], living=living)
    for amount in (use.memory_bytes, use.overhead_bytes, use.peak_bytes):
        assert amount is not None
        assert 0 <= amount <= GPU.memory_bytes
    assert use.cores is None or 0 <= use.cores <= 100
    assert use.cores_in_force is None or use.cores_in_force <= 100
    for count in (use.refusals, use.gpu_seconds, use.throttled_seconds, use.throttled_launches):
        assert count is not None
        assert count >= 0
