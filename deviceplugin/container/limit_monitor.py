"""Whether a container keeps to its share: the driver's view of it against its limits and what our library tells.

In: one reading each second. Out: the breaches that last or come again and again, for how long in all each was seen,
and what neighbours shall assume of a container whose activity file leaves its turns out. Pure except for its memory of
earlier readings. The library is cooperative: a static binary, another libcuda in the container or a program that
calls the driver by ioctl bypasses it; only the driver's list of processes shows such a process.

Each breach has a level, in seconds: it rises while the breach is seen and falls more slowly while it is not, so that
what pulses is found too. GPU time counts by how far it is above the limit, and so does what is below it afterwards: a
long kernel that the container pays for by waiting is no breach.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.units import CORES_PER_GPU, MIB
from deviceplugin.model.usage import Breach, Overrun

_CURE = (
    "delete the pod, or have the container load /usr/local/nvidia/lib64/libcuda.so.1 (LD_LIBRARY_PATH, no static CUDA)"
)
_ASSUMED_STEP = 5
"""Cores that neighbours shall assume are rounded up to these: each change is written to a file."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How long and how far a container may exceed its limit; the mean load covers `window_s`.

    A breach that is over is forgotten `leak` times as slowly as it was found. Time between readings counts up to
    `gap_s`. At `cores_scale` points above the limit GPU time counts in full.
    """

    patience_s: float = 10.0
    leak: float = 1 / 6
    gap_s: float = 5.0
    memory_slack: int = 64 * MIB
    cores_slack: float = 10.0
    cores_scale: float = 40.0
    window_s: float = 15.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A container on one GPU. `accounted`: bytes by our library. `seen`: bytes and percent by the driver, None where it
    gives none. `shown_percent`: what neighbours can see of it in its activity file; None: not known. `unmanaged`: host
    PIDs on the GPU without a slot. `corrupted`: what is wrong with its shared state.
    """

    container: str
    gpu: Gpu
    limit_bytes: int
    limit_cores: float
    accounted_bytes: int
    seen_bytes: int | None
    seen_percent: float | None
    shown_percent: float | None = None
    unmanaged: tuple[int, ...] = ()
    corrupted: str = ""


@dataclass(frozen=True, slots=True)
class _Loads:
    """Percent of the GPU's time, smoothed: what the driver sees of the container, and what of it neighbours do not."""

    seen: float
    hidden: float


@dataclass(frozen=True, slots=True)
class _Sign:
    """A breach in one reading. `hides`: neighbours' libraries cannot see what the container uses."""

    overrun: Overrun
    weight: float = 1.0
    hides: bool = False


_Key = tuple[Breach, GpuUuid, bool]
DEFAULT_TOLERANCE = Tolerance()


@dataclass(slots=True)
class LimitMonitor:
    """Watches one container. `seconds`: for how long each breach was seen, also where that was too short to report."""

    tolerance: Tolerance = DEFAULT_TOLERANCE
    seconds: dict[tuple[GpuUuid, Breach], float] = field(default_factory=dict)
    _levels: dict[_Key, float] = field(default_factory=dict)
    _lasting: dict[_Key, Overrun] = field(default_factory=dict)
    _loads: dict[GpuUuid, _Loads] = field(default_factory=dict)
    _read_at: float | None = None

    def check(self, observed: tuple[GpuReading, ...], *, now: float) -> tuple[Overrun, ...]:
        """The breaches that last: from when they were seen for long enough until they have been away for longer."""
        passed = 0.0 if self._read_at is None else min(max(0.0, now - self._read_at), self.tolerance.gap_s)
        self._read_at = now
        for one in observed:
            self._loads[one.gpu.uuid] = self._smoothed(one, passed)
        signs = {
            (each.overrun.breach, each.overrun.gpu, each.hides): each for one in observed for each in self._signs(one)
        }
        for key, sign in signs.items():
            self._rise(key, sign, passed)
        under = {one.gpu.uuid: max(0.0, one.limit_cores - self._loads[one.gpu.uuid].seen) for one in observed}
        for key in self._levels.keys() - signs.keys():
            self._fall(key, under.get(key[1], 0.0), passed)
        for breach, uuid in {key[:2] for key in signs}:
            self.seconds[uuid, breach] = self.seconds.get((uuid, breach), 0.0) + passed
        return tuple({(each.breach, each.gpu): each for each in self._lasting.values()}.values())

    def assumed_cores(self) -> dict[GpuUuid, int]:
        """What neighbours shall assume that the container uses of each GPU, whatever its activity file says."""
        hiding = {uuid for _, uuid, hides in self._lasting if hides}
        steps = {uuid: math.ceil(self._loads[uuid].seen / _ASSUMED_STEP) for uuid in hiding if uuid in self._loads}
        return {uuid: min(max(1, count) * _ASSUMED_STEP, CORES_PER_GPU) for uuid, count in steps.items()}

    def _rise(self, key: _Key, sign: _Sign, passed: float) -> None:
        self._levels[key] = min(self._levels.get(key, 0.0) + passed * sign.weight, self.tolerance.patience_s)
        if key in self._lasting or self._levels[key] >= self.tolerance.patience_s:
            self._lasting[key] = sign.overrun

    def _fall(self, key: _Key, under: float, passed: float) -> None:
        leak = self.tolerance.leak
        if key[0] is Breach.CORES:
            leak = max(leak / 4, under / self.tolerance.cores_scale)
        self._levels[key] -= passed * leak
        if self._levels[key] <= 0:
            del self._levels[key]
            self._lasting.pop(key, None)

    def _signs(self, one: GpuReading) -> Iterator[_Sign]:
        where = f"container {one.container} on GPU {one.gpu.minor}"
        if one.corrupted:
            sentence = f"{where} has changed the state that its processes share ({one.corrupted}); {_CURE}"
            yield _Sign(Overrun(Breach.STATE, one.gpu.uuid, sentence))
        if one.unmanaged:
            listed = ", ".join(map(str, one.unmanaged[:5]))
            sentence = f"{where} runs processes without vcuda's library (PIDs on the node: {listed}); {_CURE}"
            yield _Sign(Overrun(Breach.BYPASS, one.gpu.uuid, sentence))
        if one.seen_bytes is not None and one.limit_bytes and self._is_over(one.seen_bytes, one.limit_bytes):
            yield _Sign(Overrun(Breach.MEMORY, one.gpu.uuid, f"{where} {self._memory(one)}"))
        if one.limit_cores < CORES_PER_GPU:
            yield from self._time_signs(one, where)

    def _time_signs(self, one: GpuReading, where: str) -> Iterator[_Sign]:
        loads = self._loads[one.gpu.uuid]
        above = loads.seen - one.limit_cores
        if above > self.tolerance.cores_slack:
            sentence = (
                f"{where} uses {loads.seen:.0f} % of the GPU's time and its limit is {one.limit_cores:.0f} %; {_CURE}"
            )
            weight = min(1.0, above / self.tolerance.cores_scale)
            yield _Sign(Overrun(Breach.CORES, one.gpu.uuid, sentence), weight, hides=True)
        if loads.hidden > self.tolerance.cores_slack:
            facts = f"uses {loads.seen:.0f} % of the GPU's time and shows {loads.seen - loads.hidden:.0f} % of it"
            sentence = f"{where} {facts} in its activity file, so its neighbours are told what it uses; {_CURE}"
            yield _Sign(Overrun(Breach.STATE, one.gpu.uuid, sentence), hides=True)

    def _is_over(self, used: int, limit: int) -> bool:
        return used > limit + self.tolerance.memory_slack

    def _memory(self, one: GpuReading) -> str:
        assert one.seen_bytes is not None
        facts = f"uses {one.seen_bytes // MIB} MiB and its limit is {one.limit_bytes // MIB} MiB"
        if self._is_over(one.accounted_bytes, one.limit_bytes):
            return f"{facts}, because the memory that the driver itself needs does not fit; request more memory blocks"
        return f"{facts}, but vcuda's library accounts for {one.accounted_bytes // MIB} MiB only; {_CURE}"

    def _smoothed(self, one: GpuReading, passed: float) -> _Loads:
        """The driver's readings are of moments, and not of the same ones as those of the activity file."""
        seen = one.seen_percent or 0.0
        hidden = 0.0 if one.shown_percent is None else seen - one.shown_percent
        before = self._loads.get(one.gpu.uuid, _Loads(0.0, 0.0))
        weight = min(1.0, (passed or 1.0) / self.tolerance.window_s)
        return _Loads(before.seen + (seen - before.seen) * weight, before.hidden + (hidden - before.hidden) * weight)
