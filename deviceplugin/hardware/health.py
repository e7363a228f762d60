"""When a GPU counts as unhealthy, and when it is trusted again. Pure: the clock is an argument.

In: probes that pass or fail, critical events, a driver that was loaded again. Out: the `Health` of each GPU. Not here:
asking (`sampling`, `nvml_events`) and publishing (`state`).

Four things make a GPU unhealthy, each with its own way back:
 - it does not answer (lost, vanished, needs a reset): at once where NVML leaves no doubt, after `failures` failures in
   a row where the failure may pass. Back after `passes` good probes in a row.
 - what the driver says about it (`condition`), for as long as it says so.
 - a device node is missing, without which no container can use it: for as long as it is.
 - a critical event (XID). Back after a quiet period without another one, and good probes, and no
   recovery action that the driver still asks for. Events until then are one incident, however many they are: one fault
   often raises several XIDs. Each further incident within a day of the GPU's return doubles the quiet period, so that a
   faulty GPU is tried less and less often. Loading the driver again resets the GPU and ends the quiet period.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deviceplugin.hardware.condition import Condition
from deviceplugin.model.gpu import GpuUuid, Health

_DAY_S = 86_400.0
HUNG = "the NVIDIA driver does not answer"
GPU_HUNG = "the NVIDIA driver does not answer about it"
_HEALTHY = Health()
_UNKNOWN = Condition()


@dataclass(frozen=True, slots=True)
class RecoveryRules:
    """`quiet_s` is `--health-recovery`; 0: a critical event counts until the agent is restarted."""

    quiet_s: float = 300.0
    passes: int = 3
    failures: int = 3

    def quiet_after(self, incidents: int) -> float:
        """Doubles with each incident, up to a day."""
        return max(self.quiet_s, min(self.quiet_s * 2.0 ** min(incidents - 1, 32), _DAY_S))


@dataclass(frozen=True, slots=True)
class HealthChange:
    """One GPU went from one state into another."""

    uuid: GpuUuid
    old: Health
    new: Health


@dataclass(frozen=True, slots=True)
class QuietPeriod:
    """A critical event that counts until a moment of the monotonic clock."""

    reason: str
    until: float


@dataclass(slots=True)
class _Record:
    lost: str = ""
    condition: Condition = _UNKNOWN
    missing: str = ""
    passes: int = 0
    failures: int = 0
    event: str = ""
    incidents: int = 0
    returned: float = 0.0
    quiet_until: float = 0.0

    def health(self) -> Health:
        reason = self.lost or self.event or self.condition.reason or self.missing
        return Health(healthy=False, reason=reason) if reason else _HEALTHY


@dataclass(slots=True)
class HealthHistory:
    """The record of every GPU; what it says changes only through the methods."""

    rules: RecoveryRules = field(default_factory=RecoveryRules)
    hung: bool = False
    _records: dict[GpuUuid, _Record] = field(default_factory=dict)

    def health(self, uuid: GpuUuid) -> Health:
        if self.hung:
            return Health(healthy=False, reason=HUNG)
        record = self._records.get(uuid)
        return _HEALTHY if record is None else record.health()

    def unhealthy(self, uuids: Iterable[GpuUuid]) -> dict[GpuUuid, Health]:
        """As `Inventory.health` wants it: only those that are not simply healthy."""
        return {uuid: health for uuid in uuids if not (health := self.health(uuid)).healthy}

    def passed(self, uuid: GpuUuid, *, now: float) -> None:
        record = self._record(uuid)
        record.failures = 0
        record.passes += 1
        if record.passes < self.rules.passes:
            return
        record.lost = ""
        if record.event and now >= record.quiet_until and not record.condition.reason:
            record.event, record.returned = "", now

    def failed(self, uuid: GpuUuid, reason: str, *, for_certain: bool) -> None:
        record = self._record(uuid)
        record.passes = 0
        record.failures += 1
        if for_certain or record.lost or record.failures >= self.rules.failures:
            record.lost = reason

    def struck(self, uuid: GpuUuid, reason: str, *, now: float) -> None:
        record = self._record(uuid)
        if not record.event:
            record.incidents = 1 if now - record.returned > _DAY_S else record.incidents + 1
        record.event = reason
        record.passes = 0
        record.quiet_until = now + (self.rules.quiet_after(record.incidents) or math.inf)

    def surveyed(self, uuid: GpuUuid, condition: Condition) -> None:
        """What the driver says about the GPU now; what it does not say stays as it was."""
        record = self._record(uuid)
        record.condition = record.condition.updated(condition)

    def lacks(self, uuid: GpuUuid, phrase: str) -> None:
        """Which device node is missing now; empty if none is."""
        self._record(uuid).missing = phrase

    def condition(self, uuid: GpuUuid) -> Condition:
        record = self._records.get(uuid)
        return _UNKNOWN if record is None else record.condition

    def driver_reloaded(self) -> None:
        """Every GPU was reset with it: good probes are enough from here."""
        for record in self._records.values():
            record.passes = 0
            record.quiet_until = 0.0
            record.condition = _UNKNOWN

    def restore(self, uuid: GpuUuid, *, reason: str, event: QuietPeriod | None) -> None:
        """What the agent knew before it was restarted; probes decide from here."""
        record = self._record(uuid)
        record.lost = "" if event is not None else reason
        if event is not None:
            record.event = event.reason
            record.incidents = 1
            record.quiet_until = event.until

    def quiet_periods(self, uuids: Iterable[GpuUuid]) -> dict[GpuUuid, QuietPeriod]:
        found = ((uuid, self._records[uuid]) for uuid in uuids if uuid in self._records)
        return {
            uuid: QuietPeriod(record.event, record.quiet_until)
            for uuid, record in found
            if record.event and record.quiet_until < math.inf
        }

    def _record(self, uuid: GpuUuid) -> _Record:
        return self._records.setdefault(uuid, _Record())


def changes(before: Mapping[GpuUuid, Health], after: Mapping[GpuUuid, Health]) -> tuple[HealthChange, ...]:
    """Both as `Inventory.health` holds them: a missing GPU is healthy."""
    return tuple(
        HealthChange(uuid, before.get(uuid, _HEALTHY), after.get(uuid, _HEALTHY))
        for uuid in sorted({*before, *after})
        if before.get(uuid, _HEALTHY) != after.get(uuid, _HEALTHY)
    )
