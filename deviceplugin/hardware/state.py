"""What is known about the GPUs, and how each reading changes it. No I/O, no clock.

In: what was remembered, discoveries, reports, and the failure of the driver as a whole. Out: the inventory, the
samples, the number of XIDs, and one `InventoryChange` for each step that changed something. Not here: asking
(`nvml_session`) and when (`node`). Invariants: the inventory is replaced, never changed; an event without a GPU makes
no GPU unhealthy.
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import structlog

from deviceplugin.hardware.cache import Remembered
from deviceplugin.hardware.discovery import Discovery
from deviceplugin.hardware.health import GPU_HUNG, HealthChange, HealthHistory, RecoveryRules, changes
from deviceplugin.hardware.nvml_events import EventKind, GpuEvent
from deviceplugin.hardware.nvml_session import GpuReport
from deviceplugin.hardware.xid import XidPolicy, label, phrase
from deviceplugin.model.gpu import Gpu, GpuSample, GpuUuid, Inventory

_log = structlog.get_logger("vcuda.hardware")
_EVENTS = {EventKind.DOUBLE_BIT_ECC: "double-bit ECC error", EventKind.UNAVAILABLE: "the driver calls it unavailable"}


@dataclass(frozen=True, slots=True)
class InventoryChange:
    """`inventory` is the present one; `gpus_changed`: GPUs, settings or links differ, not only health."""

    inventory: Inventory
    health: tuple[HealthChange, ...]
    gpus_changed: bool


class HardwareState:
    """Steps first, then `publish`, which makes their result visible."""

    def __init__(self, *, rules: RecoveryRules, xids: XidPolicy) -> None:
        self.inventory: Inventory | None = None
        self.nvml_closed = False
        self.has_answered = False
        self.samples: Mapping[GpuUuid, GpuSample] = {}
        self.xids: Counter[tuple[GpuUuid, str]] = Counter()
        self.critical_errors: Counter[GpuUuid] = Counter()
        self._next: Inventory | None = None
        self._history = HealthHistory(rules)
        self._policy = xids

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._next.gpus if self._next is not None else ()

    @property
    def repairs_pending(self) -> frozenset[GpuUuid]:
        """The GPUs that remap a faulty row of their memory at the next reset."""
        return frozenset(gpu.uuid for gpu in self.gpus if self._history.condition(gpu.uuid).remap_pending)

    def lost_beside(self, hung: Container[int]) -> bool:
        """Some GPU fails, so that opening NVML again may find it; not so those about which a question still hangs."""
        return any(gpu.uuid not in self.samples and gpu.index not in hung for gpu in self.gpus)

    def adopt(self, remembered: Remembered) -> None:
        inventory = remembered.inventory
        for uuid in {*inventory.health, *remembered.quiet}:
            reason = inventory.health_of(uuid).reason
            self._history.restore(uuid, reason=reason, event=remembered.quiet.get(uuid))
        self._next = inventory
        self.nvml_closed = remembered.nvml_closed

    def remembered(self) -> Remembered | None:
        """What a restart must not forget."""
        if self.inventory is None:
            return None
        quiet = self._history.quiet_periods(gpu.uuid for gpu in self.inventory.gpus)
        return Remembered(self.inventory, quiet, self.nvml_closed)

    def discovered(self, found: Discovery, *, driver_reloaded: bool) -> None:
        self._history.hung = self.nvml_closed = False
        self.has_answered = True
        if driver_reloaded:
            self._history.driver_reloaded()
        for uuid, reason in found.failed.items():
            self._history.failed(uuid, reason, for_certain=True)
        self._next = Inventory(gpus=found.gpus, topology=found.topology, driver=found.driver)

    def apply(self, report: GpuReport, *, now: float) -> None:
        self._history.hung = False
        for event, times in Counter(report.events).items():
            self._heard(event, times, now=now)
        for uuid in report.readings.samples:
            self._history.passed(uuid, now=now)
        for uuid, fault in report.readings.faults.items():
            self._history.failed(uuid, fault.reason, for_certain=fault.for_certain)
        if report.readings.samples or report.readings.faults:
            self.samples = report.readings.samples
        if report.survey is not None and self._next is not None:
            for uuid, condition in report.survey.conditions.items():
                self._history.surveyed(uuid, condition)
            gpus = tuple(report.survey.gpus.get(gpu.uuid, gpu) for gpu in self._next.gpus)
            self._next = replace(self._next, gpus=gpus, topology=report.survey.topology)

    def lacks(self, nodes: Mapping[GpuUuid, str]) -> None:
        """Of each GPU which device node is missing, as a phrase, empty if none is."""
        for uuid, missing in nodes.items():
            self._history.lacks(uuid, missing)

    def driver_gone(self, reason: str) -> None:
        """No GPU can be asked at all."""
        for gpu in self.gpus:
            self._history.failed(gpu.uuid, reason, for_certain=True)
        self.samples = {}

    def closed(self) -> None:
        """NVML was closed on request: nothing is read, and each GPU keeps its health."""
        self.nvml_closed = True
        self.samples = {}

    def gpu_hangs(self, uuid: GpuUuid, *, for_certain: bool) -> None:
        """The driver does not come back from a question about this GPU."""
        self._history.failed(uuid, GPU_HUNG, for_certain=for_certain)

    def driver_hangs(self) -> None:
        self._history.hung = True
        self.samples = {}

    def publish(self) -> InventoryChange | None:
        """None where nothing changed."""
        if self._next is None:
            return None
        old = self.inventory
        new = replace(self._next, health=self._history.unhealthy(gpu.uuid for gpu in self._next.gpus))
        if new == old:
            return None
        self.inventory = self._next = new
        same_gpus = old is not None and replace(old, health={}) == replace(new, health={})
        return InventoryChange(new, changes(old.health if old else {}, new.health), gpus_changed=not same_gpus)

    def _heard(self, event: GpuEvent, times: int, *, now: float) -> None:
        """Said once for each reading: a program that fails again and again must not fill the log."""
        if event.kind is EventKind.RECOVERY_ACTION:
            return  # the survey that follows each event reads the action itself
        what = _EVENTS[event.kind] if event.xid is None else phrase(event.xid)
        if event.uuid is None:
            _log.warning("gpu_event_unassigned", error=what)
            return
        if event.xid is not None:
            self.xids[event.uuid, label(event.xid)] += times
        if event.xid is None or self._policy.is_critical(event.xid):
            self.critical_errors[event.uuid] += times
            self._history.struck(event.uuid, what, now=now)
        else:
            _log.info("gpu_error_ignored", gpu=event.uuid, error=what, times=times)
