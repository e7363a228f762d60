"""Which device name a GPU has for kube-scheduler: its first one, for as long as the node has the GPU.

In: GPUs. Out: `gpu-N`. A claim is allocated by a device's name and may outlive a boot, while the minor number, of which
the name is made, may change with it: a name that followed the minor would turn a claim's GPU into another one. So a new
GPU takes the name of its minor, or the lowest that is free, and keeps it in a file. Where the file is lost, names are
made again; `prepare` refuses claims whose GPU they do not fit.
"""

from collections.abc import Collection
from pathlib import Path

import msgspec
import structlog

from deviceplugin.kubelet.dra.published import device_name
from deviceplugin.ledger.durable_files import replace_file
from deviceplugin.model.gpu import Gpu, GpuUuid

log = structlog.get_logger("vcuda.dra")
_FILE = "device-names.json"
_MOST = 1 << 16


class DeviceNames:
    """Of one node; `folder` is where the agent keeps what it must not forget."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._names = self._read()

    def name(self, gpu: Gpu) -> str:
        if (known := self._names.get(gpu.uuid)) is not None:
            return known
        taken = set(self._names.values())
        free = (f"gpu-{number}" for number in range(len(taken) + 1))
        name = own if (own := device_name(gpu)) not in taken else next(each for each in free if each not in taken)
        self._names[gpu.uuid] = name
        self._write()
        return name

    def forget_all_but(self, uuids: Collection[GpuUuid]) -> None:
        """Others are not on this node any more, and no claim has them."""
        kept = {uuid: name for uuid, name in self._names.items() if uuid in uuids}
        if kept != self._names:
            self._names = kept
            self._write()

    def _read(self) -> dict[GpuUuid, str]:
        try:
            with self._path.open("rb") as file:
                found = msgspec.json.decode(file.read(_MOST), type=dict[GpuUuid, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("device_names_lost", path=str(self._path), error=str(error))
            return {}
        return found if len(set(found.values())) == len(found) else {}

    def _write(self) -> None:
        try:
            replace_file(self._path, msgspec.json.encode(self._names))
        except OSError as error:
            log.warning("device_names_not_kept", path=str(self._path), error=str(error))
