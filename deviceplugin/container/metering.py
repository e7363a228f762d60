"""From two readings of a region to what its container uses. Pure.

In: a region, the reading before it, and which of its slots belong to living processes. Out: `GpuUse` for each GPU. A
container can write anything into its region, so no number leaves here that the GPU could not have: memory ends at the
GPU's own size, time at the time that has passed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from deviceplugin.container.region import Counters, Region, Slot
from deviceplugin.model.gpu import Gpu
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.model.usage import GpuUse

_NS = 1e9
_IN_FORCE_UNIT = 1000  # effective_cores is in thousandths of a percent


@dataclass(frozen=True, slots=True)
class Reading:
    """A region at one moment of the monotonic clock, in seconds."""

    region: Region
    at: float


def uses(
    now: Reading, before: Reading | None, *, gpus: Sequence[Gpu | None], living: Collection[Slot]
) -> tuple[GpuUse, ...]:
    """One for each GPU of the grant that is there, in the grant's order."""
    return tuple(
        _use(index, gpu, now, before, living)
        for index, gpu in enumerate(gpus)
        if gpu is not None and index < len(now.region.counters)
    )


def held_bytes(slots: Collection[Slot], index: int) -> int:
    """What these processes hold of the grant's GPU at this position, by the library's own account."""
    return sum(max(0, slot.uses[index].used) + max(0, slot.uses[index].overhead) for slot in slots)


def _use(index: int, gpu: Gpu, now: Reading, before: Reading | None, living: Collection[Slot]) -> GpuUse:
    counters = now.region.counters[index]
    overhead = sum(max(0, slot.uses[index].overhead) for slot in living)
    return GpuUse(
        uuid=gpu.uuid,
        memory_bytes=min(held_bytes(living, index), gpu.memory_bytes),
        overhead_bytes=min(overhead, gpu.memory_bytes),
        peak_bytes=min(max(0, counters.peak), gpu.memory_bytes),
        refusals=max(0, counters.refusals),
        cores=_cores(counters, now.at, before, index),
        cores_in_force=min(counters.effective_cores / _IN_FORCE_UNIT, CORES_PER_GPU) or None,
        gpu_seconds=max(0, counters.charged_ns) / _NS,
        throttled_seconds=max(0, counters.throttled_ns) / _NS,
        throttled_launches=max(0, counters.throttled_launches),
    )


def _cores(counters: Counters, at: float, before: Reading | None, index: int) -> float | None:
    """None for the first reading, and for one that the container's restart lies before."""
    if before is None or index >= len(before.region.counters) or at <= before.at:
        return None
    charged = counters.charged_ns - before.region.counters[index].charged_ns
    return min(charged / _NS / (at - before.at), 1.0) * CORES_PER_GPU if charged >= 0 else None
