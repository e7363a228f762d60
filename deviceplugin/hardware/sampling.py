"""One reading of each GPU: how busy it is, what uses its memory, who runs on it; at the same time its probe.

In: the devices. Out: a `GpuSample` for each GPU that answers and a `Fault` for each that does not. Not here: when it is
done (`node`) and what a fault means (`health`). Runs on the NVML thread. Invariants: a GPU that is lost gives no sample
and no exception; only a driver that is gone altogether raises. The probe is the memory alone: other values that cannot
be read are 0.

The driver keeps per-process readings for itself and hands out those newer than a time stamp. It has none for a process
that was idle, and none at all between two of its own sampling points, so a reading stays good for a while.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device, ProcessLoad
from deviceplugin.hardware.nvml import GONE, STALE
from deviceplugin.model.gpu import GpuProcess, GpuSample, GpuUuid

_GOOD_FOR_US = 2_000_000  # twice the longest sampling period of any product
_AHEAD_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a GPU did not answer; `for_certain` where NVML leaves no doubt that it can run nothing."""

    reason: str
    for_certain: bool


@dataclass(frozen=True, slots=True)
class Readings:
    """What one pass over the GPUs gave; every GPU asked is in exactly one of the two."""

    samples: Mapping[GpuUuid, GpuSample]
    faults: Mapping[GpuUuid, Fault]


class Sampler:
    """Remembers, for each GPU, up to when the driver's per-process readings were taken."""

    def __init__(self, *, period_s: float, clock: Callable[[], float] = time.time) -> None:
        self._period_us = max(1, round(period_s * 1e6))
        self._clock = clock
        self._loads: dict[GpuUuid, _Loads] = {}

    def read(self, devices: Mapping[GpuUuid, Device]) -> Readings:
        samples: dict[GpuUuid, GpuSample] = {}
        faults: dict[GpuUuid, Fault] = {}
        for uuid, device in devices.items():
            try:
                samples[uuid] = self._sample(uuid, device)
            except NvmlCallError as error:
                if error.code in STALE:
                    raise
                faults[uuid] = Fault(error.said, for_certain=error.code in GONE)
                self._loads.pop(uuid, None)
        return Readings(samples, faults)

    def _sample(self, uuid: GpuUuid, device: Device) -> GpuSample:
        _total, used = device.memory()
        processes = device.processes()
        busy = self._busy(uuid, device) if processes else {}
        return GpuSample(
            utilization_percent=device.utilization(),
            memory_used_bytes=used,
            processes=tuple(GpuProcess(pid, held, busy.get(pid, 0)) for pid, held in sorted(processes.items())),
        )

    def _busy(self, uuid: GpuUuid, device: Device) -> Mapping[int, int]:
        now = round(self._clock() * 1e6)
        loads = self._loads.get(uuid)
        if loads is None or loads.newest_us > now + _AHEAD_US:  # the wall clock was set back
            loads = self._loads[uuid] = _Loads(newest_us=now - self._period_us)
        loads.add(device.process_loads(loads.newest_us))
        return loads.percent(now)


class _Loads:
    """The last reading of each process of one GPU."""

    def __init__(self, *, newest_us: int) -> None:
        self.newest_us = newest_us
        self._last: dict[int, tuple[int, int]] = {}

    def add(self, loads: tuple[ProcessLoad, ...]) -> None:
        fresh: dict[int, list[int]] = {}
        for load in loads:
            fresh.setdefault(load.pid, []).append(load.sm_percent)
            self.newest_us = max(self.newest_us, load.timestamp_us)
        for pid, percents in fresh.items():
            self._last[pid] = (self.newest_us, round(sum(percents) / len(percents)))

    def percent(self, now_us: int) -> dict[int, int]:
        self._last = {pid: at for pid, at in self._last.items() if now_us - at[0] <= _GOOD_FOR_US}
        return {pid: percent for pid, (_at, percent) in self._last.items()}
