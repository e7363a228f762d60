"""Where the container of a grant is: its id at the runtime, and the control group with its processes.

In: a pod's UID and a container's name. Out: a `Place`, from the runtime where it can be asked, else from what the pod's
status says and /proc. Invariant: never another container's group: a group counts only if it carries this pod's UID and
this container's id in its name.
"""

import time
from collections.abc import Callable
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
class Place:
    """A running container; an empty id says for certain that none runs. Without a `group`, /proc is searched."""

    pod: PodUid
    container_id: str
    group: Path | None


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

    async def find(self, owner: OwnerKey) -> Place | None:
        """None where neither the runtime nor the pod's status knows the container."""
        pod, name = owner
        told = await self._ask_runtime(pod, name)
        if told is not None and not told[0]:
            return Place(pod, "", None)
        container_id, pid = told or (self._id_in_status(owner), None)
        return Place(pod, container_id, self._group(pod, container_id, pid)) if container_id else None

    def members(self, place: Place) -> Members | None:
        """The processes as they are now; None where the container is gone."""
        if not place.container_id:
            return None
        if place.group is not None:
            return self._tree.members(place.group)
        found = self._table.members(place.pod, place.container_id)
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
        group = self._table.container_of(pid) if pid is not None else None
        if group is not None and (group.pod, group.container_id) == (pod, container_id):
            found = self._tree.directory(group)
            if found is not None:
                return found
        return self._tree.find(pod, container_id)
