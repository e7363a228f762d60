"""Where the containers of a grant are: their ids at the runtime, and the control groups with their processes.

In: pods' UIDs and containers' names. Out: a `Place`, from the runtime where it can be asked, else from what the pod's
status says and /proc. Invariant: never another container's group: a group counts only if it carries this pod's UID and
this container's id in its name.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from deviceplugin.container.processes import CgroupTree, Members, ProcessTable
from deviceplugin.container.runtime import ContainerRuntime
from deviceplugin.errors import RuntimeApiError
from deviceplugin.model.allocation import OwnerKey, PodUid

log = structlog.get_logger("vcuda.container")
_LEAVE_ALONE_S = 5.0


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A running container. Without a `group`, /proc is searched."""

    pod: PodUid
    container_id: str
    group: Path | None


@dataclass(frozen=True, slots=True)
class Place:
    """The running containers of a grant: one, or those that share a claim. None: for certain none runs.

    `is_whole`: no other container of the grant may run.
    """

    containers: tuple[FoundContainer, ...]
    is_whole: bool = True

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(each.container_id for each in self.containers)


class ContainerFinder:
    """`id_in_status` gives the container's id from the pod's status, empty where it has none."""

    def __init__(
        self,
        table: ProcessTable,
        tree: CgroupTree,
        *,
        runtime: ContainerRuntime | None,
        id_in_status: Callable[[OwnerKey], str],
    ) -> None:
        self._table = table
        self._tree = tree
        self._runtime = runtime
        self._id_in_status = id_in_status
        self._complaint = ""
        self._asks_again_at = 0.0

    async def find(self, owners: Iterable[OwnerKey]) -> Place | None:
        """None where neither the runtime nor the pods' status knows any of the containers."""
        found: list[FoundContainer] = []
        is_whole = True
        for pod, name in owners:
            told = await self._ask_runtime(pod, name)
            container_id, pid = told or (self._id_in_status((pod, name)), None)
            if container_id:
                found.append(FoundContainer(pod, container_id, self._group(pod, container_id, pid)))
            is_whole &= told is not None or bool(container_id)
        return Place(tuple(found), is_whole) if found or is_whole else None

    def members(self, place: Place) -> Members | None:
        """The processes as they are now; None where the containers are gone, not complete where one of them is."""
        each = [self._members(one) for one in place.containers]
        living = [one for one in each if one is not None]
        if not living:
            return None
        pids = sorted({pid for one in living for pid in one.pids})
        is_complete = place.is_whole and len(living) == len(each) and all(one.complete for one in living)
        return Members(tuple(pids), is_complete)

    def _members(self, container: FoundContainer) -> Members | None:
        if container.group is not None:
            return self._tree.members(container.group)
        found = self._table.members(container.pod, container.container_id)
        return found if found.pids else None

    async def _ask_runtime(self, pod: PodUid, name: str) -> tuple[str, int | None] | None:
        """The running container's id, empty where none runs, and its PID; None where the runtime does not answer."""
        if self._runtime is None or time.monotonic() < self._asks_again_at:
            return None
        try:
            found = (await self._runtime.running(pod)).get(name, "")
            result = (found, await self._runtime.pid(found) if found else None)
        except RuntimeApiError as error:
            if error.message != self._complaint:
                log.warning("runtime_unavailable", error=error.message)
            self._complaint, self._asks_again_at = error.message, time.monotonic() + _LEAVE_ALONE_S
            return None
        self._complaint = ""
        return result

    def _group(self, pod: PodUid, container_id: str, pid: int | None) -> Path | None:
        path = self._table.group_of(pid, pod, container_id) if pid is not None else ""
        found = self._tree.directory(path) if path else None
        return found or self._tree.find(pod, container_id)
