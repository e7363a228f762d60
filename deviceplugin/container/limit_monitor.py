"""Whether a container keeps to its share: the driver's view of it against its limits and what our library tells.

In: one reading each second. Out: the breaches that last or come again and again, for how long in all each was seen,
and what neighbours shall assume of a container whose activity file leaves its turns out. Pure except for its memory of
earlier readings. The library is cooperative: a static binary, another libcuda in the container or a program that
calls the driver by ioctl bypasses it; only the driver's list of processes shows such a process.

Each breach has a level, in seconds: it rises while the breach is seen and falls more slowly while it is not, so that
what pulses is found too. GPU time counts by how far it is above the limit, and so does what is below it afterwards: a
long kernel that the container pays for by waiting is no breach.

Little of many adds up: what containers hide, and what they use above their limits, is summed over the GPU (`GpuTotals`)
before it is judged. Invariant: those of whom neighbours are not told hide at most `hidden_slack` points together.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakSet

import msgspec

from deviceplugin.model.gpu import Breach, Gpu, GpuUuid, Overrun
from deviceplugin.model.units import CORES_PER_GPU, MIB

_CURE = (
    "delete the pod, or have the container load /usr/local/nvidia/lib64/libcuda.so.1 (LD_LIBRARY_PATH, no static CUDA)"
)
_ASSUMED_STEP = 2
"""Cores that neighbours shall assume fall by so much at least: each change is written to a file."""
_BELIEVED = 1 + 1 / 16
_BELIEVED_CORES = 0.5
"""So much above its limit neighbours' libraries believe an activity file: library/interposer/cuda/compute/claim.c."""
_TIMES_AT_ONCE = 3.0
"""A sum that is so many times what is tolerated is reported at once: who hides much for a moment would not wait."""


class Tolerance(msgspec.Struct, frozen=True):
    """How long and how far a container may exceed its limit; the mean load covers `window_s`.

    A breach that is over is forgotten `leak` times as slowly as it was found. Time between readings counts up to
    `gap_s`. At `cores_scale` points above the limit GPU time counts in full. All containers of a GPU together may hide
    `hidden_slack` points, in the mean over twice `window_s`; and use `cores_slack` above their limits, which counts
    once a container has not gone back to its limit for `unpaid_s`.
    """

    patience_s: float = 10.0
    leak: float = 1 / 6
    gap_s: float = 5.0
    memory_slack: int = 64 * MIB
    cores_slack: float = 10.0
    cores_scale: float = 40.0
    window_s: float = 15.0
    hidden_slack: float = 2.0
    unpaid_s: float = 60.0


class GpuReading(msgspec.Struct, frozen=True):
    """A container on one GPU. `accounted`: bytes by our library. `seen`: bytes and percent by the driver, None if it
    gives none; `ended_percent`: of that, by processes that have ended. `shown_percent`: what neighbours can see of it
    in its activity file; None: not known. `unmanaged`: host PIDs on the GPU without a slot. `corrupted`: what is wrong
    with its shared state. `may_borrow`: some of `limit_cores` is its neighbours' while they want it.
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
    ended_percent: float = 0.0
    may_borrow: bool = False


class Excess(NamedTuple):
    """Points of a GPU's time: hidden, above the limit, and `covered`: what neighbours are told that hiders use.

    Neighbours are not charged for what is covered, wherever it was used: they may come to as much above their limits.
    """

    hidden: float = 0.0
    above: float = 0.0
    covered: float = 0.0


class _Part(msgspec.Struct, eq=False, weakref=True):
    """What one container adds to the sums; it leaves them with its monitor."""

    of_gpu: dict[GpuUuid, Excess] = msgspec.field(default_factory=dict)


class GpuTotals(msgspec.Struct):
    """The sums over the containers of each GPU, one part for each monitor."""

    _parts: dict[GpuUuid, WeakSet[_Part]] = msgspec.field(default_factory=dict)

    def put(self, part: _Part, uuid: GpuUuid, excess: Excess) -> None:
        part.of_gpu[uuid] = excess
        self._parts.setdefault(uuid, WeakSet()).add(part)

    def beside(self, part: _Part, uuid: GpuUuid) -> tuple[Excess, ...]:
        """Of all others on that GPU."""
        return tuple(each.of_gpu[uuid] for each in self._parts.get(uuid, ()) if each is not part)


class _Loads(msgspec.Struct, frozen=True):
    """Percent of the GPU's time, smoothed: what the driver sees of the container, and what of it neighbours do not.

    `unknown_s`: since when the latter is not known. `steady`: seen, over the same time as `hidden`. `debt`: above
    the limit and not paid back, in points times seconds, for `unpaid_s` without a pause.
    """

    seen: float = 0.0
    hidden: float = 0.0
    unknown_s: float = 0.0
    steady: float = 0.0
    debt: float = 0.0
    unpaid_s: float = 0.0


class _Sign(msgspec.Struct, frozen=True):
    """A breach in one reading. `hides`: neighbours' libraries cannot see what the container uses."""

    overrun: Overrun
    weight: float = 1.0
    hides: bool = False


_Key = tuple[Breach, GpuUuid, bool]
DEFAULT_TOLERANCE = Tolerance()


class LimitMonitor(msgspec.Struct):
    """Watches one container. `seconds`: for how long each breach was seen, also if that was too short to report.

    `totals`: shared by the monitors of the node.
    """

    tolerance: Tolerance = DEFAULT_TOLERANCE
    totals: GpuTotals = msgspec.field(default_factory=GpuTotals)
    seconds: dict[tuple[GpuUuid, Breach], float] = msgspec.field(default_factory=dict)
    _levels: dict[_Key, float] = msgspec.field(default_factory=dict)
    _lasting: dict[_Key, Overrun] = msgspec.field(default_factory=dict)
    _loads: dict[GpuUuid, _Loads] = msgspec.field(default_factory=dict)
    _assumed: dict[GpuUuid, int] = msgspec.field(default_factory=dict)
    _part: _Part = msgspec.field(default_factory=_Part)
    _read_at: float | None = None

    def check(self, observed: tuple[GpuReading, ...], *, now: float) -> tuple[Overrun, ...]:
        """The breaches that last: from when they were seen for long enough until they have been away for longer."""
        passed = 0.0 if self._read_at is None else min(max(0.0, now - self._read_at), self.tolerance.gap_s)
        self._read_at = now
        for one in observed:
            self._loads[one.gpu.uuid] = self._smoothed(one, passed)
            self.totals.put(self._part, one.gpu.uuid, self._excess(one))
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
        self._assume()
        return tuple({(each.breach, each.gpu): each for each in self._lasting.values()}.values())

    def assumed_cores(self) -> dict[GpuUuid, int]:
        """What neighbours shall assume that the container uses of each GPU, whatever its activity file says."""
        return dict(self._assumed)

    def _assume(self) -> None:
        hiding = {uuid for _, uuid, hides in self._lasting if hides and uuid in self._loads}
        for uuid in self._assumed.keys() - hiding:
            del self._assumed[uuid]
        for uuid in hiding:
            cores, told = min(max(1, math.ceil(self._loads[uuid].seen)), CORES_PER_GPU), self._assumed.get(uuid, 0)
            if not told - _ASSUMED_STEP < cores <= told:
                self._assumed[uuid] = cores

    def _excess(self, one: GpuReading) -> Excess:
        uuid, loads = one.gpu.uuid, self._loads[one.gpu.uuid]
        if not _shares_time(one):
            return Excess()
        above = loads.debt / loads.unpaid_s if loads.unpaid_s >= self.tolerance.unpaid_s else 0.0
        covered = self._assumed.get(uuid, 0) if (Breach.STATE, uuid, True) in self._lasting else 0
        return Excess(max(0.0, loads.hidden), above, covered)

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
        if _shares_time(one):
            yield from self._time_signs(one, where)

    def _time_signs(self, one: GpuReading, where: str) -> Iterator[_Sign]:
        loads, beside = self._loads[one.gpu.uuid], self.totals.beside(self._part, one.gpu.uuid)
        own = self._part.of_gpu[one.gpu.uuid]
        above = max(loads.seen - one.limit_cores, own.above) - sum(each.covered for each in beside)
        together = above + sum(each.above for each in beside if own.above)
        if together > self.tolerance.cores_slack and above > self.tolerance.cores_slack / (1 + len(beside)):
            sentence = (
                f"{where} uses {loads.seen:.0f} % of the GPU's time and its limit is {one.limit_cores:.0f} %; {_CURE}"
            )
            weight = min(1.0, together / self.tolerance.cores_scale)
            yield _Sign(Overrun(Breach.CORES, one.gpu.uuid, sentence), weight, hides=True)
        if weight := self._hides(loads, own, beside):
            facts = f"uses {loads.steady:.0f} % of the GPU's time and shows {loads.steady - own.hidden:.0f} % of it"
            sentence = f"{where} {facts} in its activity file, so its neighbours are told what it uses; {_CURE}"
            yield _Sign(Overrun(Breach.STATE, one.gpu.uuid, sentence), weight, hides=True)

    def _hides(self, loads: _Loads, own: Excess, beside: Sequence[Excess]) -> float:
        """The weight of it; 0.0: it does not. Who hides less than its even part of the slack is left alone."""
        slack = self.tolerance.hidden_slack
        times = (own.hidden + sum(each.hidden for each in beside)) / slack
        if times > 1 and own.hidden > slack / (1 + len(beside)):
            return max(1.0, self.tolerance.patience_s) if times > _TIMES_AT_ONCE else 1.0
        return 0.0

    def _is_over(self, used: int, limit: int) -> bool:
        return used > limit + self.tolerance.memory_slack

    def _memory(self, one: GpuReading) -> str:
        assert one.seen_bytes is not None
        facts = f"uses {one.seen_bytes // MIB} MiB and its limit is {one.limit_bytes // MIB} MiB"
        if self._is_over(one.accounted_bytes, one.limit_bytes):
            return f"{facts}, because the memory that the driver itself needs does not fit; request more memory"
        return f"{facts}, but vcuda's library accounts for {one.accounted_bytes // MIB} MiB only; {_CURE}"

    def _smoothed(self, one: GpuReading, passed: float) -> _Loads:
        """The driver's readings are of moments, and not of the same ones as those of the activity file."""
        seen = one.seen_percent or 0.0
        before, step = self._loads.get(one.gpu.uuid, _Loads()), passed or 1.0
        fast, slow = (min(1.0, step / (times * self.tolerance.window_s)) for times in (1, 2))
        debt = before.debt + (seen - one.limit_cores * _BELIEVED - _BELIEVED_CORES) * passed
        return _Loads(
            before.seen + (seen - before.seen) * fast,
            *self._hidden(one, before, step),
            before.steady + (_of_living(one) - before.steady) * slow,
            max(0.0, debt),
            before.unpaid_s + passed if debt > 0 else 0.0,
        )

    def _hidden(self, one: GpuReading, before: _Loads, step: float) -> tuple[float, float]:
        """Smoothed, and for how long it is not known. A reading that shows something stands for those that did not."""
        seen, step = _of_living(one), before.unknown_s + step
        if seen and one.shown_percent is None:
            return before.hidden, step
        weight = min(1.0, step / (2 * self.tolerance.window_s))
        return before.hidden + (seen - (one.shown_percent or 0.0) - before.hidden) * weight, 0.0


def _of_living(one: GpuReading) -> float:
    """What the activity file can be compared with: who has ended shows nothing there any more."""
    return max(0.0, (one.seen_percent or 0.0) - one.ended_percent)


def _shares_time(one: GpuReading) -> bool:
    """Neighbours have a part of the GPU's time too."""
    return one.limit_cores < CORES_PER_GPU or one.may_borrow
