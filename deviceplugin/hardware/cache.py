"""The inventory on disk, so that an agent that comes back can register before NVML answers.

In: an `Inventory` and how long critical events still count. Out: the same after a restart of the agent, within the same
boot of the machine and under the same driver. Times are of the monotonic clock, which lives as long as the boot does.
Not here: whether it is still true; NVML's first answer decides. Invariant: reading never raises: a file that is
missing, torn, of another version, boot or driver is no cache. Writing replaces the file in one step.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from deviceplugin.hardware.health import QuietPeriod
from deviceplugin.hardware.pci import loaded_version, read_text
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.topology import Level, Link, Topology

_log = structlog.get_logger("vcuda.hardware")

FORMAT = 2
_LARGEST = 4 << 20


class _CacheFile(msgspec.Struct, frozen=True):
    format: int
    boot_id: str
    driver: Driver
    gpus: tuple[Gpu, ...]
    links: tuple[tuple[int, int, Level | None, int], ...]
    health: dict[GpuUuid, Health]
    quiet: dict[GpuUuid, QuietPeriod]


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
        try:
            _replace(self._path, msgspec.json.encode(_file(remembered, self._boot_id())))
        except OSError as error:
            _log.warning("inventory_cache_write_failed", path=str(self._path), error=str(error))

    def _doubt(self, file: _CacheFile) -> str:
        """Why the file cannot be trusted; empty where it can."""
        if file.format != FORMAT:
            return f"format {file.format} is not {FORMAT}"
        if file.boot_id != self._boot_id():
            return "it is from before the last boot"
        loaded = loaded_version(self._proc / "driver/nvidia/version")  # known before NVML is
        if loaded and loaded != file.driver.version:
            return f"it is of driver {file.driver.version}, and {loaded} is loaded"
        if min(len({gpu.uuid for gpu in file.gpus}), len({gpu.minor for gpu in file.gpus})) < len(file.gpus):
            return "a UUID or a minor number stands in it twice"
        return ""

    def _boot_id(self) -> str:
        return read_text(self._proc / "sys/kernel/random/boot_id")


def _file(remembered: Remembered, boot_id: str) -> _CacheFile:
    inventory = remembered.inventory
    links = sorted(inventory.topology.links.items())
    return _CacheFile(
        format=FORMAT,
        boot_id=boot_id,
        driver=inventory.driver,
        gpus=inventory.gpus,
        links=tuple((*pair, link.level, link.nvlinks) for pair, link in links),
        health=inventory.health,
        quiet=remembered.quiet,
    )


def _remembered(file: _CacheFile) -> Remembered:
    topology = Topology(
        minors=tuple(gpu.minor for gpu in file.gpus),
        links={(one, other): Link(level, nvlinks) for one, other, level, nvlinks in file.links},
    )
    return Remembered(Inventory(file.gpus, topology, file.driver, file.health), file.quiet)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)  # no fsync: after a crash of the machine the boot id refuses the file anyway
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
