"""Files for the lineage's client: `vcuda.config` and `pids.config`, at the top and in the folder that it asked for.

In: a grant, the name that the client registered with, the limits' bytes, PIDs. Out: files in the grant's directory,
each put there by rename. The folder's name comes from a tenant: it is one of our own making or a new one, and there are
only so many. What registered before the container's last start is forgotten at the next.
"""

import os
import shutil
from collections.abc import Iterable

from deviceplugin.container import limits_file
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.gpu_manager import pids_config
from deviceplugin.container.gpu_manager.legacy_limits import FILE_NAME
from deviceplugin.container.gpu_manager.registration import SOCKET_NAME
from deviceplugin.container.shared_state import GPUS, STATE
from deviceplugin.ledger.grant import GrantId

_OUR_FOLDERS = frozenset({STATE, GPUS})
_TAKEN = _OUR_FOLDERS | {limits_file.FILE_NAME, FILE_NAME, pids_config.FILE_NAME, SOCKET_NAME}
_MOST = 4


class LineageClients:
    """All of them; the registration itself is remembered by the files alone, so it outlives the agent."""

    def __init__(self, directories: GrantDirectories) -> None:
        self._directories = directories

    def is_registered(self, grant: GrantId) -> bool:
        return (self._directories.path(grant) / pids_config.FILE_NAME).exists()

    def register(self, grant: GrantId, name: str, config: bytes) -> None:
        """Raises GuestError."""
        folders = self._folders(grant)
        if name and name not in _TAKEN and (name in folders or len(folders) < _MOST):
            self._directories.write(grant, FILE_NAME, config, below=name)
        self._directories.write(grant, FILE_NAME, config)

    def limit(self, grant: GrantId, config: bytes) -> None:
        """Changed limits, for those that have registered."""
        if not self.is_registered(grant):
            return
        for name in self._folders(grant):
            self._directories.write(grant, FILE_NAME, config, below=name)

    def show_processes(self, grant: GrantId, pids: Iterable[int]) -> None:
        data = pids_config.encode(pids)
        for name in ("", *self._folders(grant)):
            self._directories.write(grant, pids_config.FILE_NAME, data, below=name)

    def forget(self, grant: GrantId) -> None:
        """Before a start: the next container has another id."""
        if not self.is_registered(grant):
            return
        base = self._directories.path(grant)
        for name in self._folders(grant):
            shutil.rmtree(base / name, ignore_errors=True)
        (base / pids_config.FILE_NAME).unlink(missing_ok=True)

    def _folders(self, grant: GrantId) -> frozenset[str]:
        try:
            found = os.scandir(self._directories.path(grant))
        except OSError:
            return frozenset()
        return frozenset(each.name for each in found if each.is_dir(follow_symlinks=False)) - _OUR_FOLDERS
