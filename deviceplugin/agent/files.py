"""The grant files of this node: joins what kubelet decided with what `guest` writes.

In: grants and answers. Out: the grant's directory before Allocate answers, its limits at PreStartContainer, nothing
left of grants that are no more. The mounts' sources are made here too: the runtime refuses a container whose mount
has no source; the driver mirror's content is not ours to make.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from deviceplugin.errors import GuestError
from deviceplugin.guest.cdi import CdiSpecs, ContainerEdits
from deviceplugin.guest.directories import GrantDirectories
from deviceplugin.guest.legacy_limits import FILE_NAME, ContainerLimits, encode
from deviceplugin.kubelet.answer import Answer
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.units import BLOCK_BYTES

MIRRORS = ("nvidia", "origin")


class AgentFiles:
    """`driver_version` is asked at each start of a container: the driver may be upgraded under a running agent."""

    def __init__(
        self,
        directories: GrantDirectories,
        *,
        mirror: Path,
        cdi: CdiSpecs | None,
        driver_version: Callable[[], str],
    ) -> None:
        self._directories = directories
        self._mirror = mirror
        self._cdi = cdi
        self._driver_version = driver_version

    def open(self) -> None:
        """Once at start: the mirror's directories exist, and CDI files are back after a reboot."""
        for name in MIRRORS:
            try:
                (self._mirror / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise GuestError(
                    f"driver mirror {self._mirror / name} could not be made: {error.strerror}; "
                    "check --driver-mirror-path"
                ) from error
        if self._cdi is not None:
            self._cdi.restore()

    def prepare(self, grant: Grant, answer: Answer) -> None:
        self._directories.prepare(grant.id)
        if self._cdi is not None:
            self._cdi.write(grant.id, ContainerEdits(answer.devices, answer.mounts, answer.env))

    def fill(self, grant: Grant) -> bool:
        owner, request = grant.allocation.owner, grant.allocation.request
        limits = ContainerLimits(
            pod_uid=owner.pod.uid,
            container=owner.name,
            cores=request.cores,
            memory_bytes=request.blocks * BLOCK_BYTES,
            soft_cores=grant.soft_cores,
            driver_version=self._driver_version(),
        )
        return self._directories.write(grant.id, FILE_NAME, encode(limits))

    def drop(self, grant: Grant) -> None:
        """Removes what belongs to a grant that is no more."""
        self._directories.remove(grant.id)
        if self._cdi is not None:
            self._cdi.remove(grant.id)

    def sweep(self, grants: Iterable[Grant]) -> None:
        """Removes what belongs to none of these grants: a crash may have left it."""
        keep = {grant.id for grant in grants}
        self._directories.remove_all_but(keep)
        if self._cdi is not None:
            self._cdi.remove_all_but(keep)
