"""Where the containers of a grant are: their ids at the runtime, and the control groups with their processes.

In: pods' UIDs and containers' names. Out: a `Place`, from the runtime where it can be asked, else from what the pod's
status says and /proc. Invariant: never another container's group: a group counts only if it carries this pod's UID and
this container's id in its name. Also whose the processes are that the driver names, which may have ended since.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from deviceplugin.container.cgroup import ContainerGroup
from deviceplugin.container.processes import CgroupTree, Members, ProcessTable
from deviceplugin.container.runtime import ContainerRuntime
from deviceplugin.errors import RuntimeApiError
from deviceplugin.log import Pace
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.gpu import GpuSample, GpuUuid

log = structlog.get_logger("vcuda.container")
_LEAVE_ALONE_S = 5.0
_CHURN = 10
"""So many samples more with use by processes that nobody saw than without: no chance, and not a program that ends."""
_UNATTRIBUTED = "processes use this GPU that end before it is seen whose they are; what they use counts to no container"


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


@dataclass(frozen=True, slots=True)
class _NamedProcess:
    group: ContainerGroup | None
    start_time: int | None


class SeenProcesses:
    """The groups of the processes that the driver names, from when they were seen first until it names them no more.

    What the driver charges to a process that has ended since is charged to its container. A sample is of the processes
    that were there when it came: a PID that another one has by now is looked at again only for a newer sample.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._samples: Mapping[GpuUuid, GpuSample] = {}
        self._seen: dict[int, _NamedProcess] = {}
        self._churn: dict[GpuUuid, int] = {}
        self._pace = Pace()

    def learn(self, samples: Mapping[GpuUuid, GpuSample]) -> None:
        """Soon after each sample, and as often as one likes."""
        fresh = {uuid: sample for uuid, sample in samples.items() if self._samples.get(uuid) is not sample}
        news = {process.pid for sample in fresh.values() for process in sample.processes}
        named = {process.pid for sample in samples.values() for process in sample.processes}
        found = {pid: self._look(pid) if pid in news else self._seen.get(pid) for pid in named}
        self._seen = {pid: seen for pid, seen in found.items() if seen is not None}
        self._samples = dict(samples)
        for uuid, sample in fresh.items():
            self._count_lost(uuid, any(each.sm_percent and each.pid not in self._seen for each in sample.processes))

    def group(self, pid: int) -> ContainerGroup | None:
        seen = self._seen.get(pid)
        return seen.group if seen is not None else None

    def groups(self) -> tuple[ContainerGroup, ...]:
        return tuple(seen.group for seen in self._seen.values() if seen.group is not None)

    def _count_lost(self, uuid: GpuUuid, is_lost: bool) -> None:
        self._churn[uuid] = min(max(0, self._churn.get(uuid, 0) + (1 if is_lost else -1)), _CHURN)
        if self._churn[uuid] == _CHURN and self._pace.allows(uuid):
            log.warning("use_unattributed", gpu=uuid, error=_UNATTRIBUTED)

    def _look(self, pid: int) -> _NamedProcess | None:
        before, start = self._seen.get(pid), self._table.start_time(pid)
        if start is None or (before is not None and before.start_time == start and before.group is not None):
            return before
        return _NamedProcess(self._table.container_of(pid), start)
