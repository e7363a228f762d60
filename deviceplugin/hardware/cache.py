"""The inventory on disk, so that an agent that comes back can register before NVML answers.

In: an `Inventory` and how long critical events still count. Out: the same after a restart of the agent, within the same
boot of the machine and under the same driver. Times are of the monotonic clock, which lives as long as the boot does.
Not here: whether it is still true; NVML's first answer decides. Invariant: reading never raises: a file that is
missing, torn, of another version, boot or driver is no cache. Writing replaces the file in one step.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from deviceplugin.hardware.health import QuietPeriod
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.topology import Level, Link, Topology

_log = structlog.get_logger("vcuda.hardware")

FORMAT = 1
_LARGEST = 4 << 20


class _LinkRow(msgspec.Struct, frozen=True, array_like=True):
    one: int
    other: int
    level: Level | None
    nvlinks: int


class _HealthRow(msgspec.Struct, frozen=True):
    uuid: GpuUuid
    reason: str
    event: str = ""
    quiet_until: float = 0.0


class _CacheFile(msgspec.Struct, frozen=True):
    format: int
    boot_id: str
    driver: Driver
    gpus: tuple[Gpu, ...]
    links: tuple[_LinkRow, ...]
    health: tuple[_HealthRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a restart of the agent must not forget."""

    inventory: Inventory
    quiet: dict[GpuUuid, QuietPeriod]


class InventoryCache:
    """One file; without a path nothing is kept."""

    def __init__(self, path: Path | None, *, proc_root: Path = Path("/proc")) -> None:
        self._path = path
        self._proc = proc_root
        self._written = b""

    def read(self) -> Remembered | None:
        """None where no file can be trusted; the log says why."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with self._path.open("rb") as stream:
                file = msgspec.json.decode(stream.read(_LARGEST), type=_CacheFile)
            remembered = _remembered(file)
            doubt = self._doubt(file)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            doubt = str(error)
        if doubt:
            _log.warning("inventory_cache_ignored", path=str(self._path), error=doubt)
            return None
        return remembered

    def write(self, remembered: Remembered) -> None:
        """Keeps it; a full disk costs the cache and nothing else."""
        if self._path is None:
            return
        data = msgspec.json.encode(_file(remembered, self._boot_id()))
        if data == self._written:
            return
        try:
            _replace(self._path, data)
            self._written = data
        except OSError as error:
            _log.warning("inventory_cache_write_failed", path=str(self._path), error=str(error))

    def _doubt(self, file: _CacheFile) -> str:
        """Why the file cannot be trusted; empty where it can."""
        if file.format != FORMAT:
            return f"format {file.format} is not {FORMAT}"
        if file.boot_id != self._boot_id():
            return "it is from before the last boot"
        loaded = self._loaded_driver()
        if loaded is not None and loaded != file.driver.version:
            return f"it is of driver {file.driver.version}, and {loaded} is loaded"
        if min(len({gpu.uuid for gpu in file.gpus}), len({gpu.minor for gpu in file.gpus})) < len(file.gpus):
            return "a UUID or a minor number stands in it twice"
        return ""

    def _boot_id(self) -> str:
        return _text(self._proc / "sys/kernel/random/boot_id")

    def _loaded_driver(self) -> str | None:
        """The kernel module's version, known before NVML is; its line is `NVRM version: ... Module  550.54.15  ...`."""
        words = _text(self._proc / "driver/nvidia/version").split()
        return next((word for word in words if word.replace(".", "").isdigit() and word.count(".") >= 1), None)


def _file(remembered: Remembered, boot_id: str) -> _CacheFile:
    inventory, quiet = remembered.inventory, remembered.quiet
    uuids = sorted({*inventory.health, *quiet})
    return _CacheFile(
        format=FORMAT,
        boot_id=boot_id,
        driver=inventory.driver,
        gpus=inventory.gpus,
        links=tuple(
            _LinkRow(one, other, link.level, link.nvlinks)
            for (one, other), link in sorted(inventory.topology.links.items())
        ),
        health=tuple(
            _HealthRow(uuid, inventory.health_of(uuid).reason, quiet[uuid].reason, quiet[uuid].until)
            if uuid in quiet
            else _HealthRow(uuid, inventory.health_of(uuid).reason)
            for uuid in uuids
        ),
    )


def _remembered(file: _CacheFile) -> Remembered:
    topology = Topology(
        minors=tuple(gpu.minor for gpu in file.gpus),
        links={(row.one, row.other): Link(level=row.level, nvlinks=row.nvlinks) for row in file.links},
    )
    health = {row.uuid: Health(healthy=False, reason=row.reason) for row in file.health if row.reason}
    quiet = {row.uuid: QuietPeriod(row.event, row.quiet_until) for row in file.health if row.event}
    return Remembered(Inventory(gpus=file.gpus, topology=topology, driver=file.driver, health=health), quiet)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)  # no fsync: after a crash of the machine the boot id refuses the file anyway
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
