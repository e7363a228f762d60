"""Files for gpu-manager's client: `vcuda.config` and `pids.config`, at the top and in the folder that it asked for.

In: a grant, the name that the client registered with, limits, PIDs. Out: files in the grant's directory, each put there
by rename. The folder's name comes from a tenant: it must be one that exists or a new one, and there are only so many.
What registered before the container's last start is forgotten at the next.

`vcuda.config` is 8,240 bytes that vcuda-controller's client reads as one C struct (x86-64, little endian, no magic and
no version; see docs/reference/container.md): a change of any offset breaks every client without a message, so a test
holds golden bytes. `pids.config` is a bare array of 32-bit integers in native order. The client searches it by
bisection and takes 1,024 at most, so it is sorted and cut. Not here: the limits file of our library (`limits_file`).
"""

import os
import re
import shutil
import struct
from collections.abc import Iterable

import msgspec

from deviceplugin.container import limits_file
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.shared_state import GPUS, STATE
from deviceplugin.errors import ContainerError
from deviceplugin.gpu_manager.registration import SOCKET_NAME
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.units import CORES_PER_GPU

LIMITS_FILE, PIDS_FILE = "vcuda.config", "pids.config"
_OWN_FOLDERS = frozenset({STATE, GPUS})
_RESERVED = _OWN_FOLDERS | {limits_file.FILE_NAME, LIMITS_FILE, PIDS_FILE, SOCKET_NAME}
_MOST_FOLDERS = 4
_MOST_PIDS = 1024

#  0 pod_uid[48] | 48 limit | 52 padding[4044] | 4096 container_name[4096] | 8192 bus_id[16] | 8208 gpu_memory
#  8216 utilization | 8220 hard_limit | 8224 driver major, minor | 8232 enable | 8236 padding[4]
LIMITS_LAYOUT = struct.Struct("<48si4044x4096s16sQiiiii4x")


class ContainerLimits(msgspec.Struct, frozen=True):
    """What the client enforces. Memory in bytes; `soft_cores` above 0: may borrow idle time up to that percentage."""

    pod_uid: str
    container: str
    cores: int
    memory_bytes: int
    soft_cores: int = 0
    driver_version: str = ""

    @property
    def enforced(self) -> bool:
        """Whole GPUs run on the untouched driver."""
        return self.cores < CORES_PER_GPU


class ClientFiles:
    """The files of all grants; they alone remember the registrations, so these outlive the agent."""

    def __init__(self, directories: GrantDirectories) -> None:
        self._directories = directories

    def is_registered(self, grant: GrantId) -> bool:
        return (self._directories.path(grant) / PIDS_FILE).exists()

    def register(self, grant: GrantId, name: str, config: bytes) -> None:
        """Raises ContainerError."""
        folders = self._folders(grant)
        if name and name not in _RESERVED and (name in folders or len(folders) < _MOST_FOLDERS):
            self._directories.write(grant, LIMITS_FILE, config, below=name)
        self._directories.write(grant, LIMITS_FILE, config)

    def limit(self, grant: GrantId, config: bytes) -> None:
        """Changed limits, for clients that have registered."""
        if not self.is_registered(grant):
            return
        for name in self._folders(grant):
            self._directories.write(grant, LIMITS_FILE, config, below=name)

    def show_processes(self, grant: GrantId, pids: Iterable[int]) -> None:
        data = encode_pids(pids)
        for name in ("", *self._folders(grant)):
            self._directories.write(grant, PIDS_FILE, data, below=name)

    def forget(self, grant: GrantId) -> None:
        """Before a start: the next container has another id. Raises ContainerError."""
        base = self._directories.path(grant)
        for name in self._folders(grant):
            shutil.rmtree(base / name, ignore_errors=True)
        try:
            (base / PIDS_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise ContainerError(
                f"{base / PIDS_FILE} could not be removed: {error.strerror}; check the disk"
            ) from error

    def _folders(self, grant: GrantId) -> frozenset[str]:
        try:
            found = os.scandir(self._directories.path(grant))
        except OSError:
            return frozenset()
        return frozenset(each.name for each in found if each.is_dir(follow_symlinks=False)) - _OWN_FOLDERS


def encode_limits(limits: ContainerLimits) -> bytes:
    """The bytes of `vcuda.config`; names longer than their field are cut, as the reader expects a NUL at the end."""
    major, minor = _driver_numbers(limits.driver_version)
    return LIMITS_LAYOUT.pack(
        _text(limits.pod_uid, 48),
        min(limits.soft_cores, CORES_PER_GPU),
        _text(limits.container, 4096),
        b"",
        limits.memory_bytes,
        limits.cores,
        0 if limits.soft_cores else 1,
        major,
        minor,
        1 if limits.enforced else 0,
    )


def encode_pids(pids: Iterable[int]) -> bytes:
    """The bytes of `pids.config`: PIDs as the host numbers them."""
    known = sorted(set(pids))[:_MOST_PIDS]
    return struct.pack(f"={len(known)}i", *known)


def _text(value: str, size: int) -> bytes:
    return value.encode()[: size - 1]


def _driver_numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
