"""When a GPU counts as unhealthy, and when it is trusted again. Pure: the clock is an argument.

In: probes that pass or fail, events (XIDs) and the operator's lists of them, what the driver says about a GPU beside
its answers, a driver that was loaded again. Out: the `Health` of each GPU; of an XID also a phrase for people and a
label for the metric. Not here: asking (`device`, `nvml_session`) and publishing (`state`).

Four things make a GPU unhealthy, each with its own way back:
 - it does not answer (lost, vanished, needs a reset): at once if NVML leaves no doubt, after `failures` failures in
   a row where the failure may pass. Back after `passes` good probes in a row.
 - what the driver says about it (`Condition`): what it asks for, its memory, its NVLink fabric. For as long as it says
   so; what is not known condemns no GPU.
 - a device node is missing, without which no container can use it: for as long as it is.
 - a critical event (XID). Back after a quiet period without another one, and good probes, and no
   recovery action that the driver still asks for. Events until then are one incident, however many they are: one fault
   often raises several XIDs. Each further incident within a day of the GPU's return doubles the quiet period, so that a
   faulty GPU is tried less and less often. Loading the driver again resets the GPU and ends the quiet period.

An XID that only says that an application failed is not critical, because it leaves the GPU as good as before: else
every tenant could take a shared GPU from the others by crashing. Any other, unknown ones included, makes it unhealthy.
The sets are the column "Immediate Action" of NVIDIA's Xid Catalog (Ampere and newer),
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. docs/gpu-health.md shows them.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from deviceplugin.model.gpu import GpuUuid, Health
from deviceplugin.structs import replace

_ACTIONS = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to stop peer-to-peer work and to reset the GPU",
    4: "the driver asks to drain the GPU and to reset it",
    6: "the driver asks for a reset of the GPU's bus",
    7: "the driver asks for a reboot of the system",
}
"""nvmlDeviceGpuRecoveryAction_t. Not 5, the recovery of an IMEX domain: that is about links between nodes."""

_FABRIC_COMPLETED = 3  # of nvmlGpuFabricState_t


class Fabric(msgspec.Struct, frozen=True):
    """nvmlGpuFabricInfo_t: the state of the set-up, and its nvmlReturn_t, which counts once the state is completed."""

    state: int
    status: int

    @property
    def reason(self) -> str:
        """Until the fabric manager has set up the links, CUDA does not start on the GPU."""
        if self.state in (1, 2):
            return "its NVLink fabric is not set up yet; see the fabric manager (nvidia-fabricmanager)"
        if self.state == _FABRIC_COMPLETED and self.status:
            return f"the set-up of its NVLink fabric failed (NVML error {self.status}); see the fabric manager"
        return ""


class Condition(msgspec.Struct, frozen=True):
    """Of one GPU. `locked`: confidential computing is on, and nobody has said yet that the GPUs may be used."""

    action: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    fabric: Fabric | None = None
    locked: bool | None = None

    @property
    def reason(self) -> str:
        """Why the GPU shall get no new pods; empty if there is no such reason."""
        if self.remap_failed:
            return "a faulty row of its memory could not be remapped; have the GPU checked and replaced"
        if self.action in _ACTIONS:
            return _ACTIONS[self.action]
        if self.locked:
            return "confidential computing: it accepts no work yet; attest it and run `nvidia-smi conf-compute -srs 1`"
        return self.fabric.reason if self.fabric is not None else ""

    def updated(self, newer: "Condition") -> "Condition":
        """What the newer one does not know stays as it was."""
        known = {name: value for name in self.__struct_fields__ if (value := getattr(newer, name)) is not None}
        return replace(self, **known)


_DAY_S = 86_400.0
HUNG = "the NVIDIA driver does not answer"
GPU_HUNG = "the NVIDIA driver does not answer about it"
_HEALTHY = Health()
_UNKNOWN = Condition()


class RecoveryRules(msgspec.Struct, frozen=True):
    """`quiet_s` is `--health-recovery`; 0: a critical event counts until the agent is restarted."""

    quiet_s: float = 300.0
    passes: int = 3
    failures: int = 3

    def quiet_after(self, incidents: int) -> float:
        """Doubles with each incident, up to a day."""
        return max(self.quiet_s, min(self.quiet_s * 2.0 ** min(incidents - 1, 32), _DAY_S))


class HealthChange(msgspec.Struct, frozen=True):
    """One GPU went from one state into another."""

    uuid: GpuUuid
    old: Health
    new: Health


class QuietPeriod(msgspec.Struct, frozen=True):
    """A critical event that counts until a moment of the monotonic clock."""

    reason: str
    until: float


class _Record(msgspec.Struct):
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


class HealthHistory(msgspec.Struct):
    """The record of every GPU; what it says changes only through the methods."""

    rules: RecoveryRules = msgspec.field(default_factory=RecoveryRules)
    hung: bool = False
    _records: dict[GpuUuid, _Record] = msgspec.field(default_factory=dict)

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


_COPY_ENGINES = frozenset({39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)})
_VIDEO_ENGINES = frozenset({60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139})
RESTART_APP = frozenset({8, 11, 13, 25, 31, 32, 69, 80, 94, *_COPY_ENGINES, *_VIDEO_ENGINES})
"""The application must be restarted, nothing else."""

IGNORE = frozenset({14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161})
"""Nothing has to be done at once."""

CLEANUP = frozenset({45})
"""Follows another XID, which decides, or the end of a killed process."""

_ENCODERS = frozenset({42, 47, 65, 73, 142})
RAISED_BY_APPLICATIONS = frozenset({109, *_ENCODERS})
"""Where vcuda differs from the catalog, because any application can raise them.

 - 109, a context switch timeout, comes from one kernel that does not yield. The catalog asks for a reset; so does the
   driver itself if one is needed (its recovery action, read after each XID).
 - The catalog calls the errors of video encoders unused or support cases: its products have none. T4, L4 and A10 do.
"""

POWER_SMOOTHING = frozenset(range(162, 166))
"""The hardware that evens out the power draw was switched on or off, or wears out. The catalog asks for no reset."""

APPLICATION_XIDS = RESTART_APP | IGNORE | CLEANUP | RAISED_BY_APPLICATIONS

_NVLINK_5 = frozenset(range(144, 151))
DECIDED_BY_ACTION = frozenset({154}) | _NVLINK_5
"""The driver's recovery action decides, which is read after each XID.

 - 154 only says that the action changed.
 - 144-150, the errors of NVLink 5, are anything from a corrected error, or a wrong address of an application, to a dead
   link. The catalog goes by a code that NVML does not tell. All drivers of GPUs with NVLink 5 tell the action.
"""

_HARMLESS = APPLICATION_XIDS | POWER_SMOOTHING | DECIDED_BY_ACTION
_LAST_CATALOGED = 172

_PHRASES = {
    8: "channel idle timeout",
    11: "invalid or corrupted push buffer",
    13: "graphics engine exception",
    25: "invalid or illegal push buffer",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    43: "GPU stopped processing",
    44: "graphics engine fault during context switch",
    45: "preemptive cleanup",
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    80: "corrupted data sent to the GPU",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    137: "NVLink privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    154: "recovery action changed",
    155: "NVLink software-defined error",
    156: "resource retirement recorded",
    158: "fatal timeout of the GPU",
    **dict.fromkeys(_NVLINK_5, "NVLink 5 error"),
    **dict.fromkeys(POWER_SMOOTHING, "power smoothing changed"),
    **dict.fromkeys(_COPY_ENGINES, "copy engine exception"),
    **dict.fromkeys(_VIDEO_ENGINES | _ENCODERS, "video processor exception"),
}


class XidPolicy(msgspec.Struct, frozen=True):
    """`ignored` on top of the application's own; `critical` wins over both; `ignore_all` leaves only `critical`."""

    ignored: frozenset[int] = frozenset()
    critical: frozenset[int] = frozenset()
    ignore_all: bool = False

    def is_critical(self, xid: int) -> bool:
        if xid in self.critical:
            return True
        return not (self.ignore_all or xid in self.ignored or xid in _HARMLESS)


def parse_policy(*, ignored: str = "", critical: str = "") -> XidPolicy:
    """Numbers as the settings hold them; `all` among the ignored ones switches off whatever is not named critical."""
    words = ignored.split(",")
    return XidPolicy(ignored=_numbers(words), critical=_numbers(critical.split(",")), ignore_all="all" in words)


def phrase(xid: int) -> str:
    """`XID 79 (GPU has fallen off the bus)`; an XID without a known meaning stands alone."""
    return f"XID {xid} ({_PHRASES[xid]})" if xid in _PHRASES else f"XID {xid}"


def label(xid: int) -> str:
    """The number, or `other` beyond the catalog: whatever a driver sends, the metric has a bounded set of series."""
    return str(xid) if 0 < xid <= _LAST_CATALOGED else "other"


def _numbers(words: Iterable[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if word.isdecimal())
