"""What is known about the GPUs, and how each reading changes it; and the inventory on disk, for the next agent.

In: what was remembered, discoveries, reports, and the failure of the driver as a whole. Out: the inventory, the
samples, the number of XIDs, and one `InventoryChange` for each step that changed something. `HardwareState` has no I/O
and no clock. Not here: asking (`nvml_session`) and when (`node`). Invariants: the inventory is replaced, never changed;
an event without a GPU makes no GPU unhealthy.

By `InventoryCache` an agent that comes back can register before NVML answers. It gives the same inventory, and how long
critical events still count, after a restart of the agent within the same boot of the machine, under the same driver,
and while each GPU has the minor number that it had: a driver that is loaded again may give others. Times are of the
monotonic clock, which lives as long as the boot does. Whether the rest is still true is not asked: NVML's first answer
decides. Invariant: reading never raises: a file that is missing, torn, of another version, boot or driver is no cache.
Writing replaces the file in one step.
"""

from collections import Counter
from collections.abc import Container, Mapping
from pathlib import Path

import msgspec
import structlog

from deviceplugin.errors import ParseError
from deviceplugin.hardware.discovery import Discovery
from deviceplugin.hardware.health import (
    GPU_HUNG,
    HealthChange,
    HealthHistory,
    QuietPeriod,
    RecoveryRules,
    XidPolicy,
    changes,
    label,
    phrase,
)
from deviceplugin.hardware.nvml_session import EventKind, GpuEvent, GpuReport
from deviceplugin.hardware.pci import loaded_version, minor_now, read_text
from deviceplugin.model.gpu import Gpu, GpuSample, GpuUuid, Inventory
from deviceplugin.model.node import format_inventory, parse_inventory
from deviceplugin.structs import replace

FORMAT = 3
_LARGEST = 4 << 20


class _CacheFile(msgspec.Struct, frozen=True):
    """`inventory` as in the annotation of the node, so with whole MiB; whether there are shares does not matter."""

    format: int
    boot_id: str
    inventory: str
    quiet: dict[GpuUuid, QuietPeriod]
    nvml_closed: bool = False


class Remembered(msgspec.Struct, frozen=True):
    """What a restart of the agent must not forget."""

    inventory: Inventory
    quiet: dict[GpuUuid, QuietPeriod]
    nvml_closed: bool = False


class InventoryCache:
    """One file; without a path nothing is kept."""

    def __init__(self, path: Path | None, *, proc_root: Path = Path("/proc")) -> None:
        self._path = path
        self._proc = proc_root

    def read(self) -> Remembered | None:
        """None if no file can be trusted; the log says why."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with self._path.open("rb") as stream:
                file = msgspec.json.decode(stream.read(_LARGEST), type=_CacheFile)
            inventory = parse_inventory(file.inventory)[0]
            minors = {gpu: minor_now(self._proc, gpu.bus_id) for gpu in inventory.gpus}
            remembered = Remembered(inventory, file.quiet, file.nvml_closed)
            doubt = self._doubt(file, inventory.driver.version) or _moved(minors)
        except (OSError, ValueError, msgspec.MsgspecError, ParseError) as error:
            doubt = str(error)
        if doubt:
            _log.warning("inventory_cache_ignored", path=str(self._path), error=doubt)
            return None
        return remembered

    def write(self, remembered: Remembered) -> None:
        """Keeps it; a full disk costs the cache and nothing else."""
        if self._path is None:
            return
        inventory = format_inventory(remembered.inventory, share_mode=True)
        file = _CacheFile(FORMAT, self._boot_id(), inventory, remembered.quiet, remembered.nvml_closed)
        try:
            _replace(self._path, msgspec.json.encode(file))
        except OSError as error:
            _log.warning("inventory_cache_write_failed", path=str(self._path), error=str(error))

    def _doubt(self, file: _CacheFile, driver: str) -> str:
        """Why the file cannot be trusted; empty if it can."""
        if file.format != FORMAT:
            return f"format {file.format} is not {FORMAT}"
        if file.boot_id != self._boot_id():
            return "it is from before the last boot"
        loaded = loaded_version(self._proc / "driver/nvidia/version")  # known before NVML is
        return f"it is of driver {driver}, and {loaded} is loaded" if loaded not in ("", driver) else ""

    def _boot_id(self) -> str:
        return read_text(self._proc / "sys/kernel/random/boot_id")


def _moved(minors: Mapping[Gpu, int | None]) -> str:
    moved = ((gpu, minor) for gpu, minor in minors.items() if minor not in {None, gpu.minor})
    return next((f"{gpu.uuid} was {gpu.device_path}, and is /dev/nvidia{minor} now" for gpu, minor in moved), "")


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)  # no fsync: after a crash of the machine the boot id refuses the file anyway
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


_log = structlog.get_logger("vcuda.hardware")
_EVENTS = {EventKind.DOUBLE_BIT_ECC: "double-bit ECC error", EventKind.UNAVAILABLE: "the driver calls it unavailable"}


class InventoryChange(msgspec.Struct, frozen=True):
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
        """None if nothing changed."""
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
