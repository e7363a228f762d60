"""What is known of the GPUs, and how each look at them changes it. No I/O, no clock: moments are arguments.

In: what was remembered, discoveries, looks, and the news that the driver itself is gone. Out: the inventory, the
samples, and one `InventoryChange` for each step that changed something. Not here: asking (`session`) and when (`node`).
Invariants: the inventory is replaced, never changed; an event without a GPU condemns none.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import structlog

from deviceplugin.hardware.cache import Remembered
from deviceplugin.hardware.changes import InventoryChange
from deviceplugin.hardware.discovery import Discovery
from deviceplugin.hardware.events import GpuEvent
from deviceplugin.hardware.health import HealthBook, RecoveryRules, changes
from deviceplugin.hardware.session import Look
from deviceplugin.hardware.xid import XidPolicy, phrase
from deviceplugin.model.gpu import Gpu, GpuSample, GpuUuid, Inventory

_log = structlog.get_logger("vcuda.hardware")


class NodeState:
    """Steps first, then `settle`, which makes what they led to visible."""

    def __init__(self, *, rules: RecoveryRules, xids: XidPolicy) -> None:
        self.inventory: Inventory | None = None
        self.samples: Mapping[GpuUuid, GpuSample] = {}
        self.xid_counts: Counter[tuple[GpuUuid, int]] = Counter()
        self._next: Inventory | None = None
        self._book = HealthBook(rules)
        self._policy = xids

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._next.gpus if self._next is not None else ()

    @property
    def lost(self) -> bool:
        """Some GPU does not answer, so that opening NVML again may find it."""
        return any(gpu.uuid not in self.samples for gpu in self.gpus)

    def adopt(self, remembered: Remembered) -> None:
        inventory = remembered.inventory
        for uuid in {*inventory.health, *remembered.quiet}:
            reason = inventory.health_of(uuid).reason
            self._book.restore(uuid, reason=reason, event=remembered.quiet.get(uuid))
        self._next = inventory

    def remembered(self) -> Remembered | None:
        """What a restart must not forget."""
        if self.inventory is None:
            return None
        return Remembered(self.inventory, self._book.quiet_periods(gpu.uuid for gpu in self.inventory.gpus))

    def discovered(self, found: Discovery, *, driver_reloaded: bool) -> None:
        self._book.hung = False
        if driver_reloaded:
            self._book.driver_reloaded()
        for uuid, reason in found.failed.items():
            self._book.failed(uuid, reason, for_certain=True)
        self._next = Inventory(gpus=found.gpus, topology=found.topology, driver=found.driver)

    def looked(self, look: Look, *, now: float) -> None:
        self._book.hung = False
        for event in look.events:
            self._heard(event, now=now)
        for uuid in look.readings.samples:
            self._book.passed(uuid, now=now)
        for uuid, fault in look.readings.faults.items():
            self._book.failed(uuid, fault.reason, for_certain=fault.for_certain)
        if look.readings.samples or look.readings.faults:
            self.samples = look.readings.samples
        if look.survey is not None and self._next is not None:
            for uuid, action in look.survey.actions.items():
                self._book.advised(uuid, action)
            gpus = tuple(look.survey.gpus.get(gpu.uuid, gpu) for gpu in self._next.gpus)
            self._next = replace(self._next, gpus=gpus)

    def driver_gone(self, reason: str) -> None:
        """No GPU can be asked at all."""
        for gpu in self.gpus:
            self._book.failed(gpu.uuid, reason, for_certain=True)
        self.samples = {}

    def driver_hangs(self) -> None:
        self._book.hung = True
        self.samples = {}

    def settle(self) -> InventoryChange | None:
        """None where nothing changed."""
        if self._next is None:
            return None
        old = self.inventory
        new = replace(self._next, health=self._book.unhealthy(gpu.uuid for gpu in self._next.gpus))
        if new == old:
            return None
        self.inventory = self._next = new
        same_gpus = old is not None and replace(old, health={}) == replace(new, health={})
        return InventoryChange(new, changes(old.health if old else {}, new.health), gpus_changed=not same_gpus)

    def _heard(self, event: GpuEvent, *, now: float) -> None:
        what = "double-bit ECC error" if event.xid is None else phrase(event.xid)
        if event.uuid is None:
            _log.warning("an event names no GPU; each one was asked how it is", error=what)
            return
        if event.xid is not None:
            self.xid_counts[event.uuid, event.xid] += 1
        if event.xid is None or self._policy.is_critical(event.xid):
            self._book.struck(event.uuid, what, now=now)
        else:
            _log.info("an error that leaves the GPU healthy", gpu=event.uuid, error=what)
