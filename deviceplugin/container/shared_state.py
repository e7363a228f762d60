"""What the processes of containers share through files: each grant's region, and the activity rows of each GPU.

    <base>/<grant>/state/region                the container's own, writable
    <base>/<grant>/state/<uuid>.activity       the container's own row, writable
    <base>/gpus/<uuid>/<grant>                 the same row by another name; the directory is mounted read-only
    <base>/gpus/<uuid>/.<grant>                what the agent tells neighbours of it: no container can write there
    <base>/<grant>/gpus/<uuid>/                where that directory is mounted: /etc/vcuda itself is read-only
    <base>/.ended-<grant>/                     the directory of a grant that has ended, until it is removed

In: grants that share a GPU, and the GPU's UUID. Out: these files, complete before a container starts, because the
runtime makes an empty directory where a mount has no source; empty at each start; gone with the grant. Invariant: a
row keeps its inode as long as its version stays, because neighbours have it mapped; a file that is corrupted is made
again only while its container does not run. Files are mounted one by one, not their directory: root in a container
ignores a directory's mode, and could put files on the node's disk.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from deviceplugin.container import activity, region, shared_file
from deviceplugin.container.directories import make_base, make_directory
from deviceplugin.container.shared_file import SharedFiles, ignored, is_untouched
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid

STATE = "state"
GPUS = "gpus"
_BOOT = ".boot"
_ENDED = ".ended-"


class SharedState:
    """All of it below one base path, the grants' directories included. `delayed` as in `SharedFiles`."""

    def __init__(self, base: Path, delayed: Callable[[Path, str], None] = ignored) -> None:
        self._base = base
        self._files = SharedFiles(delayed)

    def region(self, grant: GrantId) -> Path:
        return self._base / grant / STATE / region.FILE_NAME

    def own_row(self, grant: GrantId, uuid: GpuUuid) -> Path:
        return self._base / grant / STATE / f"{uuid}{activity.SUFFIX}"

    def row(self, grant: GrantId, uuid: GpuUuid) -> Path:
        return self._base / GPUS / uuid / grant

    def shown_limits(self, grant: GrantId, uuid: GpuUuid) -> Path:
        return self._base / GPUS / uuid / f".{grant}"

    def prepare(self, grant: GrantId, uuids: Collection[GpuUuid]) -> None:
        """Everything exists; what is there and whole stays as it is. Raises ContainerError."""
        self._make_directories(grant, uuids)
        if not shared_file.is_kept(self.region(grant), region.form(grant)):
            shared_file.make(self.region(grant), region.form(grant))
        for uuid in uuids:
            if not shared_file.is_kept(self.own_row(grant, uuid), activity.form(grant)):
                shared_file.make(self.own_row(grant, uuid), activity.form(grant))
            self._publish(grant, uuid)

    def renew(self, grant: GrantId, uuids: Collection[GpuUuid]) -> None:
        """Before a start of the container, when nothing of it runs: as new. Raises ContainerError."""
        self.prepare(grant, uuids)
        for uuid in uuids:
            if not shared_file.is_unused(self.own_row(grant, uuid), activity.form(grant)):
                self._renew_row(grant, uuid)
        if not shared_file.is_unused(self.region(grant), region.form(grant)):
            # Another inode: a process of the previous run that is still ending writes into the old one.
            shared_file.make(self.region(grant), region.form(grant))

    def _renew_row(self, grant: GrantId, uuid: GpuUuid) -> None:
        """With the same inode, but where a process of the previous run still holds a lease of it."""
        try:
            shared_file.wipe(self.own_row(grant, uuid), activity.form(grant))
        except ContainerError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            shared_file.make(self.own_row(grant, uuid), activity.form(grant))
            self._publish(grant, uuid)

    def show_limits(self, grant: GrantId, uuid: GpuUuid, *, cores: int, soft_cores: int) -> None:
        """A container from before this version has no such file, and nothing reads it."""
        if self.own_row(grant, uuid).exists():
            path = self.shown_limits(grant, uuid)
            before = activity.read_shown_limits(path)
            assumed = before.assumed_cores if before is not None else 0
            activity.write_shown_limits(path, activity.ShownLimits(cores, soft_cores, assumed))
            activity.write_row_limits(self.own_row(grant, uuid), cores=cores, soft_cores=soft_cores)

    def assume(self, grant: GrantId, uuid: GpuUuid, cores: int) -> None:
        """Neighbours take it that the container uses so much, whatever its row says; 0: they believe its row.

        Raises ContainerError.
        """
        path = self.shown_limits(grant, uuid)
        before = activity.read_shown_limits(path)
        if before is not None and before.assumed_cores != cores:
            activity.write_shown_limits(path, before._replace(assumed_cores=cores))

    def restore(self, grant: GrantId, uuids: Collection[GpuUuid]) -> str:
        """Undoes what the container may not do to its files; says what that was, empty for nothing."""
        own = f"{self._base}/{grant}/{STATE}/"
        rows_untouched = (is_untouched(f"{own}{uuid}{activity.SUFFIX}", activity.SIZE) for uuid in uuids)
        if is_untouched(own + region.FILE_NAME, region.SIZE) and all(rows_untouched):
            return ""
        rows = (self._files.restore(self.own_row(grant, uuid), activity.form(grant)) for uuid in uuids)
        return ", ".join(filter(None, (self._files.restore(self.region(grant), region.form(grant)), *rows)))

    def restore_all(self) -> tuple[str, ...]:
        """The same for every container, because no room is left; one phrase for each file."""
        regions = self._base.glob(f"g-*/{STATE}/{region.FILE_NAME}")
        rows = self._base.glob(f"g-*/{STATE}/*{activity.SUFFIX}")
        forms = [
            *((path, region.form(_grant_of(path))) for path in regions),
            *((path, activity.form(_grant_of(path))) for path in rows),
        ]
        found = ((path, self._files.restore(path, form)) for path, form in forms)
        return tuple(f"{_grant_of(path)}: {wrong}" for path, wrong in found if wrong)

    def is_held(self, boot_id: str) -> bool:
        """Whether running containers may have mounted something below the base; none has started before its agent."""
        with contextlib.suppress(OSError):
            marked = (self._base / GPUS / _BOOT).read_text(errors="replace")
            if marked and boot_id and marked != boot_id:
                return False
        try:
            return any(path.name != GPUS for path in self._base.iterdir())
        except OSError:
            return False

    def booted(self, boot_id: str) -> None:
        """After a reboot every row is wiped: the node's clock began again, and old times would lie in the future."""
        mark = self._base / GPUS / _BOOT
        with contextlib.suppress(OSError):
            if not boot_id or mark.read_bytes() == boot_id.encode():
                return
        for path in self._base.glob(f"{GPUS}/*/g-*"):
            with contextlib.suppress(ContainerError):
                shared_file.wipe(path, activity.form(GrantId(path.name)))
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.write_text(boot_id)
        except OSError as error:
            raise ContainerError(f"{mark} could not be written: {error.strerror}; check the disk") from error

    def end(self, grant: GrantId, uuids: Collection[GpuUuid]) -> None:
        """Nothing is left under the grant's name; GPUs without any row lose their directory. `discard` is to follow."""
        directory = self._base / grant
        with contextlib.suppress(OSError):  # a disk that takes no writes: the sweep after the next start
            if directory.is_dir():
                directory.rename(self._ended(grant))
        for row in (path for uuid in uuids for path in (self.shown_limits(grant, uuid), self.row(grant, uuid))):
            with contextlib.suppress(OSError):
                row.unlink(missing_ok=True)
                row.parent.rmdir()

    def discard(self, *grants: GrantId) -> None:
        """Removes what `end` has left: most of the work, and for nobody to wait for. Any thread may call it.

        The directories go while the files are open: rmdir waits for the kernel to free what was in them.
        """
        for directory in map(self._ended, grants):
            with shared_file.freed_in_a_thread((directory / STATE).glob("*")):
                shutil.rmtree(directory, ignore_errors=True)

    def remove_all_but(self, keep: Collection[GrantId]) -> None:
        """Removes what is here of grants that have ended, and empty directories of GPUs; other files stay."""
        patterns = ("g-*", f"{GPUS}/*/g-*", f"{GPUS}/*/.g-*")
        found = {path.name.removeprefix(".") for pattern in patterns for path in self._base.glob(pattern)}
        uuids = [GpuUuid(path.name) for path in self._base.glob(f"{GPUS}/[!.]*")]
        for grant in found.difference(keep):
            self.end(GrantId(grant), uuids)
        self.discard(*(GrantId(path.name.removeprefix(_ENDED)) for path in self._base.glob(f"{_ENDED}g-*")))
        for directory in self._base.glob(f"{GPUS}/*"):
            with contextlib.suppress(OSError):  # not empty, or no directory
                directory.rmdir()

    def _ended(self, grant: GrantId) -> Path:
        return self._base / f"{_ENDED}{grant}"

    def _make_directories(self, grant: GrantId, uuids: Collection[GpuUuid]) -> None:
        tables = [self._base / grant / GPUS, self._base / GPUS]
        wanted = [self._base / grant / STATE, *tables, *(table / uuid for table in tables for uuid in uuids)]
        missing = [directory for directory in wanted if not directory.is_dir()]
        if missing:
            make_base(self._base)
        for directory in missing:
            make_directory(directory, what="state directory")

    def _publish(self, grant: GrantId, uuid: GpuUuid) -> None:
        own, public = self.own_row(grant, uuid), self.row(grant, uuid)
        if _is_same(own, public):
            return
        fresh = own.with_suffix(".link")  # not where neighbours look for rows
        try:
            fresh.unlink(missing_ok=True)
            os.link(own, fresh)
            fresh.replace(public)
        except OSError as error:
            raise ContainerError(
                f"activity row {public} could not be made: {error.strerror}; check the disk"
            ) from error


def _grant_of(own: Path) -> GrantId:
    return GrantId(own.parent.parent.name)


def _is_same(own: Path, public: Path) -> bool:
    try:
        return os.path.samestat(own.stat(), public.stat())
    except OSError:
        return False
