"""What containers really use, read in each sample period; reports containers that take more than their grant.

In: the ledger, the driver's samples, the containers' regions and processes. Out: `uses` for the views; events and log
lines about violations that last; current PIDs for gpu-manager's clients. A share on an idle GPU is checked seldom, so
an idle node costs nothing; nothing waits for the container runtime, which may hang. Invariant: whatever fails with the
files of one container, the round goes on for all others. Not here: what the numbers mean (`container.tracker`,
`container.limit_monitor`).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.agent.reporter import AgentReport, owner_fields
from deviceplugin.container.containers import ContainerFinder, Place, SeenProcesses
from deviceplugin.container.limit_monitor import GpuTotals, LimitMonitor
from deviceplugin.container.limits_file import soft_limit
from deviceplugin.container.processes import ContainerGroup, Members, ProcessTable
from deviceplugin.container.shared_state import SharedState
from deviceplugin.container.tracker import HeldGpu, ShareReport, Tracker
from deviceplugin.errors import ContainerError, VcudaError
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.log import Pace
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.gpu import Breach, ContainerUse, GpuProcess, GpuSample, GpuUuid, Inventory, use_of_whole
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.agent")
_IDLE_TURNS = 30
_FIND_AGAIN_S = 2.0
_OTHERS_AGAIN_S = 10.0
_FIND_BUDGET_S = 1.5
_ROUND_BUDGET = 8192
"""Slots of regions that are read in one round (`Tracker.cost`), beside those of containers that have `_FEW` of them."""
_FEW = 256
_NOTICE_S = 0.1
OnGpu = Mapping[GpuUuid, Sequence[GpuProcess]]


class _Watched(msgspec.Struct):
    """One share. `owners`: the containers that hold it; they were searched for last at `asked_at`, and for its
    registrations at `sought_at`: the first one does not wait until a look may ask again.
    """

    tracker: Tracker
    owners: frozenset[OwnerKey] = frozenset()
    place: Place | None = None
    asked_at: float = -_FIND_AGAIN_S
    sought_at: float = -_FIND_AGAIN_S
    shown: tuple[int, ...] | None = None
    look: ShareReport | None = None
    read_in: int = 0


@dataclass(slots=True)
class ContainerWatch:
    """`run` until it is cancelled; `uses` at any time. One loop; files are read in a thread.

    In each round the files of all containers are restored before any is read, and reading has a budget: a container
    with many slots is read in turn with others like it, and between two readings judged by what the driver shows.

    `holders` answers, for what is known now, which containers hold a grant: one, or all that share a claim.
    """

    ledger: Ledger
    holders: Callable[[], Callable[[Grant], frozenset[OwnerKey]]]
    samples: Callable[[], Mapping[GpuUuid, GpuSample]]
    inventory: Callable[[], Inventory | None]
    shared: SharedState
    files: AgentFiles
    table: ProcessTable
    finder: ContainerFinder
    report: AgentReport
    period_s: float
    _watched: dict[GrantId, _Watched] = field(default_factory=dict)
    _seen: SeenProcesses = field(init=False)
    _sought: dict[GrantId, Grant] = field(default_factory=dict)
    _seek: asyncio.Event = field(default_factory=asyncio.Event)
    _used: asyncio.Event = field(default_factory=asyncio.Event)
    _pace: Pace = field(default_factory=Pace)
    _totals: GpuTotals = field(default_factory=GpuTotals)
    _turn: int = 0

    def __post_init__(self) -> None:
        self._seen = SeenProcesses(self.table)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._find_all())
            group.create_task(self._notice_all())
            while True:
                try:
                    await self.look()
                except Exception:  # what a container may write must not end the agent
                    log.exception("container_watch_failed", action="please report this line")
                await asyncio.sleep(self.period_s)

    def uses(self) -> dict[GrantId, ContainerUse]:
        """Of every share that was read, and of whole GPUs as the driver shows them."""
        found = {grant: each.look.use for grant, each in self._watched.items() if each.look is not None}
        samples = self.samples()
        for grant in self.ledger.grants():
            if grant.proved and not grant.is_share:
                found[grant.id] = use_of_whole([share.uuid for share in grant.allocation.shares], samples)
        return found

    async def look(self) -> None:
        shares = [
            grant
            for grant in self.ledger.grants()
            if grant.proved and grant.is_share and not self.files.has_no_container(grant)
        ]
        self._keep(shares)
        samples, now = self.notice(), time.monotonic()
        busy = {uuid for uuid, sample in samples.items() if sample.processes}
        due = [grant for grant in shares if self._is_due(grant, busy)]
        self._turn += 1
        on_gpu = self._by_grant(shares, samples) if busy and due else {}
        jobs = [(grant, self._watched[grant.id], on_gpu.get(grant.id, {})) for grant in due]
        if shares:
            trackers = [(grant, self._watched[grant.id].tracker) for grant in shares]
            for grant, error in await asyncio.to_thread(self._restore, trackers):
                self._look_failed(grant, error)
        if not due:
            return
        for grant, watched, look in await asyncio.to_thread(self._look_at, jobs):
            self._took_or_failed(grant, watched, look, now=now)

    async def register(self, grant_id: GrantId, name: str) -> None:
        """A process with gpu-manager's client asks for its files; raises ContainerError."""
        grant = self.ledger.get(grant_id)
        if grant is None:
            return
        self._keep([grant], forget=False)
        watched = self._watched[grant_id]
        members = await self._members(watched)
        if members is None and time.monotonic() - watched.sought_at >= _FIND_AGAIN_S:
            watched.sought_at = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIND_BUDGET_S):
                    await self._find(grant, watched)
            members = await self._members(watched)
        self.files.register(grant, name)
        self._show(grant, watched, members, always=True)

    def notice(self) -> Mapping[GpuUuid, GpuSample]:
        """The samples; whose their processes are is known from now on, also when they end before the look."""
        samples = self.samples()
        self._seen.learn(samples)
        if any(each.sm_percent for sample in samples.values() for each in sample.processes):
            self._used.set()
        else:
            self._used.clear()
        return samples

    async def _notice_all(self) -> None:
        """More often than `look` while a GPU is used: a process may be shorter than its period."""
        while True:
            await self._used.wait()
            await asyncio.sleep(min(_NOTICE_S, self.period_s))
            self.notice()

    async def _members(self, watched: _Watched) -> Members | None:
        place = watched.place
        return None if place is None else await asyncio.to_thread(self.finder.members, place)

    def _is_due(self, grant: Grant, busy: set[GpuUuid]) -> bool:
        known = self._watched[grant.id]
        return (
            known.look is None
            or known.tracker.is_tampered
            or known.look.use.processes != 0
            or bool(known.look.use.overruns)
            or known.shown is not None
            or (bool(busy) and not busy.isdisjoint(grant.allocation.uuids))
            or self._turn % _IDLE_TURNS == 0
        )

    def _look_at(
        self, jobs: Sequence[tuple[Grant, _Watched, OnGpu]]
    ) -> list[tuple[Grant, _Watched, ShareReport | Exception]]:
        inventory = self.inventory()
        if inventory is None:
            return []
        read = self._within_budget(jobs)
        return [
            (grant, watched, _read(grant, watched, on_gpu, inventory, with_files=grant.id in read))
            for grant, watched, on_gpu in jobs
        ]

    def _within_budget(self, jobs: Sequence[tuple[Grant, _Watched, OnGpu]]) -> set[GrantId]:
        """Those whose files are read: all with few slots, and of the others those that have waited longest."""
        found, left = set[GrantId](), _ROUND_BUDGET
        for grant, watched, _ in sorted(jobs, key=lambda job: job[1].read_in):
            if (is_cheap := watched.tracker.cost <= _FEW) or left > 0:
                left -= 0 if is_cheap else watched.tracker.cost
                watched.read_in = self._turn
                found.add(grant.id)
        return found

    def _restore(self, trackers: Sequence[tuple[Grant, Tracker]]) -> list[tuple[Grant, Exception]]:
        self.files.make_room()
        failed = list[tuple[Grant, Exception]]()
        for grant, tracker in trackers:
            try:
                tracker.restore(grant.allocation.uuids)
            except Exception as error:  # the others are restored
                failed.append((grant, error))
        return failed

    def _took_or_failed(self, grant: Grant, watched: _Watched, look: ShareReport | Exception, *, now: float) -> None:
        if isinstance(look, Exception):
            self._look_failed(grant, look)
            return
        try:
            self._took(grant, watched, look, now=now)
        except Exception as error:  # whatever it is, it is of this container
            self._look_failed(grant, error)

    def _look_failed(self, grant: Grant, error: Exception) -> None:
        """What it used before is not what it uses."""
        if (watched := self._watched.get(grant.id)) is not None:
            watched.look = None
        if self._pace.allows("container_look_failed", grant.id):
            said = {**owner_fields(grant.allocation.owner), "action": "please report this line"}
            log.error("container_look_failed", **said, exc_info=error)

    def _took(self, grant: Grant, watched: _Watched, look: ShareReport, *, now: float) -> None:
        if self._watched.get(grant.id) is not watched:
            return  # the grant ended meanwhile
        if grant.is_of_gpu_manager:
            look = _without_our_files(look)
        self.report.violations(grant, look.use.overruns, now=now)
        if look.lost_files:
            self.report.files_lost(grant)
        watched.look = look
        self._tell_neighbours(grant, look)
        if look.wants_place:
            self._look_for(grant, watched, every_s=_FIND_AGAIN_S)
        if watched.shown is not None:
            self._show(grant, watched, look.members)

    def _tell_neighbours(self, grant: Grant, look: ShareReport) -> None:
        """On the loop, because limits are written there, into the same file."""
        for uuid, cores in look.assumed_cores.items():
            try:
                self.shared.assume(grant.id, uuid, cores)
            except ContainerError as error:
                self._failed("activity_publish_failed", grant, error)

    def _failed(self, event: str, grant: Grant, error: VcudaError) -> None:
        """The next look tries again, each second and for each container."""
        if self._pace.allows(event, grant.id):
            log.warning(event, **owner_fields(grant.allocation.owner), error=error.message)

    def _look_for(self, grant: Grant, watched: _Watched, *, every_s: float) -> None:
        if time.monotonic() - watched.asked_at >= every_s:
            self._sought[grant.id] = grant
            self._seek.set()

    async def _find_all(self) -> None:
        while True:
            await self._seek.wait()
            self._seek.clear()
            while self._sought:
                grant = self._sought.pop(next(iter(self._sought)))
                if grant.id in self._watched:
                    await self._find(grant, self._watched[grant.id])

    async def _find(self, grant: Grant, watched: _Watched) -> None:
        watched.asked_at = time.monotonic()
        try:
            found = await self.finder.find(sorted(watched.owners))
        except Exception:  # what a runtime may answer must not end the agent
            log.exception("container_search_failed", action="please report this line")
            return
        # The old place is kept until there is another: its processes have ended for certain.
        watched.place = found or watched.place

    def _show(self, grant: Grant, watched: _Watched, members: Members | None, *, always: bool = False) -> None:
        pids = members.pids if members is not None else ()
        if not always and (pids == watched.shown or self.ledger.get(grant.id) is None):
            return
        try:
            self.files.clients.show_processes(grant.id, pids)
        except VcudaError as error:
            if always:
                raise
            self._failed("pids_config_failed", grant, error)
            return
        watched.shown = pids

    def _by_grant(
        self, shares: Sequence[Grant], samples: Mapping[GpuUuid, GpuSample]
    ) -> dict[GrantId, dict[GpuUuid, list[GpuProcess]]]:
        """The driver's processes by the grant of their container; others are left out."""
        self._look_for_unknown(shares)
        by_pod: dict[PodUid, list[Grant]] = {}
        for grant in shares:
            for pod in {uid for uid, _ in self._watched[grant.id].owners}:
                by_pod.setdefault(pod, []).append(grant)
        found: dict[GrantId, dict[GpuUuid, list[GpuProcess]]] = {}
        for uuid, sample in samples.items():
            for process in sample.processes:
                group = self._seen.group(process.pid)
                if group is None:
                    continue
                held = [each for each in by_pod.get(group.pod, ()) if uuid in each.allocation.uuids]
                if (counted := self._grant_of(group, held)) is not None:
                    found.setdefault(counted.id, {}).setdefault(uuid, []).append(process)
        return found

    def _look_for_unknown(self, shares: Sequence[Grant]) -> None:
        """A GPU process has an unknown container id in a pod with grants: a container of that pod was restarted."""
        known = {each for one in self._watched.values() if one.place is not None for each in one.place.ids}
        pods = {group.pod for group in self._seen.groups() if group.container_id not in known}
        for grant in shares:
            if not pods.isdisjoint(uid for uid, _ in self._watched[grant.id].owners):
                self._look_for(grant, self._watched[grant.id], every_s=_OTHERS_AGAIN_S)

    def _grant_of(self, group: ContainerGroup, held: Sequence[Grant]) -> Grant | None:
        """Which of its pod's grants of a GPU a process in this group counts to: by the id of the container.

        A container with an unknown id was started again, or another one has handed it its open devices.
        """
        places = [self._watched[each.id].place for each in held]
        for grant, place in zip(held, places, strict=True):
            if place is not None and group.container_id in place.ids:
                return grant
        if len(held) > 1 and None in places:
            return None  # perhaps of that one, for which the runtime is being asked
        return min(held, key=self._is_found, default=None)

    def _is_found(self, grant: Grant) -> bool:
        """False also for a container that was started again."""
        look = self._watched[grant.id].look
        return look is not None and not look.wants_place

    def _keep(self, shares: Sequence[Grant], *, forget: bool = True) -> None:
        """A record for each share; with `forget`, none for other grants."""
        holders = self.holders()
        for grant in shares:
            if grant.id not in self._watched:
                monitor, name = LimitMonitor(totals=self._totals), str(grant.allocation.owner)
                tracker = Tracker(grant.id, name, self.shared, self.table, self.finder, monitor)
                shown = () if self.files.clients.is_registered(grant.id) else None
                self._watched[grant.id] = _Watched(tracker, shown=shown)
            watched, owners = self._watched[grant.id], holders(grant)
            if watched.owners != owners:  # of a claim: another pod has come, or its pod is known now
                watched.owners, watched.place = owners, None
        if forget:
            known = {grant.id for grant in shares}
            for gone in [grant for grant in self._watched if grant not in known]:
                del self._watched[gone]
                self.report.forget(gone)


def _read(
    grant: Grant, watched: _Watched, on_gpu: OnGpu, inventory: Inventory, *, with_files: bool
) -> ShareReport | Exception:
    tracker, held, needs_members = watched.tracker, _held(grant, inventory), watched.shown is not None
    try:
        judged = None if with_files else tracker.judge(held, on_gpu)
        return judged or tracker.read(held, on_gpu, place=watched.place, needs_members=needs_members)
    except Exception as error:  # the others are looked at
        return error


def _without_our_files(look: ShareReport) -> ShareReport:
    """Of a container that never had a region: nobody removed it, and a process without a slot goes around nothing."""
    overruns = tuple(each for each in look.use.overruns if each.breach is not Breach.BYPASS)
    return replace(look, use=replace(look.use, overruns=overruns), lost_files=False)


def _held(grant: Grant, inventory: Inventory) -> list[HeldGpu | None]:
    """In the order of the limits file, by which the region numbers the GPUs; None for one that is gone."""
    found: list[HeldGpu | None] = []
    for share in grant.allocation.shares:
        gpu = inventory.gpu(share.uuid)
        most = soft_limit(share.cores, grant.limits.soft_cores) or share.cores
        held = share.blocks * BLOCK_BYTES, most, most > share.cores
        found.append(HeldGpu(gpu, *held) if gpu is not None else None)
    return found
