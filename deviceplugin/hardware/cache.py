"""The inventory on disk, so that an agent that comes back can register before NVML answers.

In: an `Inventory` and how long critical events still count. Out: the same after a restart of the agent, within the same
boot of the machine, under the same driver, and while each GPU has the minor number that it had: a driver that is loaded
again may give others. Times are of the monotonic clock, which lives as long as the boot does. Not here: whether the
rest is still true; NVML's first answer decides. Invariant: reading never raises: a file that is
missing, torn, of another version, boot or driver is no cache. Writing replaces the file in one step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from deviceplugin.errors import ParseError
from deviceplugin.hardware.health import QuietPeriod
from deviceplugin.hardware.pci import loaded_version, minor_now, read_text
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.inventory_annotation import format_inventory, parse_inventory

_log = structlog.get_logger("vcuda.hardware")

FORMAT = 3
_LARGEST = 4 << 20


class _CacheFile(msgspec.Struct, frozen=True):
    """`inventory` as in the annotation of the node, so with whole MiB; whether there are shares does not matter."""

    format: int
    boot_id: str
    inventory: str
    quiet: dict[GpuUuid, QuietPeriod]
    nvml_closed: bool = False


@dataclass(frozen=True, slots=True)
class Remembered:
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
        """None where no file can be trusted; the log says why."""
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
        """Why the file cannot be trusted; empty where it can."""
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
