"""One share, watched: what its container uses and whether it keeps to its limits.

In: at each reading the grant's GPUs and limits, what the driver shows of the container's processes on them, and the
container's place where it is known. Containers that share a claim are one here. Out: `ShareReport`. Runs in a thread,
because files may be slow; one reading at a time. What a reading costs is the container's choice, so its caller knows it
(`cost`) and may `judge` without one. A process counts as dead only for certain: the container's list is
complete, was read after the region, and does not have it. Then it counts no more, and its slot is freed where no
process of its pid namespace is left to free it.

What is not known is None and never 0: how much memory is held while the container's processes cannot be found, and
all of it while its region cannot be read. `uses` is pure. A container can write anything into its region, so no number
leaves here that the GPU could not have: memory ends at the GPU's own size, time at the time that has passed.
"""

import time
from collections.abc import Collection, Mapping, Sequence

import msgspec
import structlog

from deviceplugin.container import activity, region
from deviceplugin.container.containers import ContainerFinder, Place
from deviceplugin.container.limit_monitor import GpuReading, LimitMonitor
from deviceplugin.container.processes import Members, ProcessIdentity, ProcessTable
from deviceplugin.container.region import Counters, ProcessSlot, Region
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ContainerError, ParseError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import ContainerUse, Gpu, GpuProcess, GpuUse, GpuUuid
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.container")

_NS = 1e9
_TOLD_FOR_S = 60.0  # longer than the monitor's patience: what is undone at once must not be forgotten at once
_RING_COST = 16  # a ring of an activity file, against a slot of a region
MOST_CLEARED = 64  # slots in one reading
MOST_BEYOND_PROCESSES = 128
"""Slots of dead processes: those that run clear them within a second, what these have imported from the dead stays."""
_IN_FORCE_UNIT = 1000  # effective_cores is in thousandths of a percent


class HeldGpu(msgspec.Struct, frozen=True):
    """One GPU of the grant with its present limits; `cores` includes what the container `may_borrow`."""

    gpu: Gpu
    memory_bytes: int
    cores: float
    may_borrow: bool = False


class ShareReport(msgspec.Struct, frozen=True):
    """`members`: the container's processes, None where they are not known or it is gone. `wants_place`: find it.

    `lost_files`: it runs and its region is not there, so somebody removed the directory that it has mounted.
    `assumed_cores`: what neighbours shall assume that it uses of each GPU; 0: they believe its activity file.
    """

    use: ContainerUse
    members: Members | None
    wants_place: bool
    lost_files: bool = False
    assumed_cores: Mapping[GpuUuid, int] = msgspec.field(default_factory=dict)


class Reading(msgspec.Struct, frozen=True):
    """A region at one moment of the monotonic clock, in seconds."""

    region: Region
    at: float


class _Judged(msgspec.Struct, frozen=True):
    """The last reading, for the rounds without one. Who has come since may have a slot by now: not `unmanaged`."""

    report: ShareReport
    accounted: tuple[int, ...]
    corrupted: str
    unmanaged: frozenset[int]


class Tracker(msgspec.Struct):
    """One grant over its life."""

    grant: GrantId
    container: str
    shared: SharedState
    table: ProcessTable
    finder: ContainerFinder
    monitor: LimitMonitor = msgspec.field(default_factory=LimitMonitor)
    _before: Reading | None = None
    _known: dict[int, ProcessIdentity] = msgspec.field(default_factory=dict)
    _unreadable: str = ""
    _rows: dict[GpuUuid, activity.Activity] = msgspec.field(default_factory=dict)
    _tampering: str = ""
    _told_until: float = 0.0
    _found_at: Place | None = None
    _judged: _Judged | None = None

    @property
    def is_tampered(self) -> bool:
        return bool(self._tampering)

    @property
    def cost(self) -> int:
        """Of the last reading, in slots of a region for one GPU."""
        if self._before is None:
            return 0
        rings = sum(len(row.slots) for row in self._rows.values())
        return len(self._before.region.slots) * len(self._before.region.counters) + _RING_COST * rings

    def restore(self, gpus: Collection[GpuUuid]) -> None:
        """Undoes what the container may not do to its files. Seldom costs more than a stat of each."""
        found, now = self.shared.restore(self.grant, gpus), time.monotonic()
        if found:
            self._tampering, self._told_until = found, now + _TOLD_FOR_S
        elif now >= self._told_until:
            self._tampering = ""

    def _is_missing(self) -> bool:
        return not self.shared.region(self.grant).exists()

    def read(
        self,
        held: Sequence[HeldGpu | None],
        on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]],
        *,
        place: Place | None,
        needs_members: bool = False,
    ) -> ShareReport:
        """`held`: in the grant's order, None for a GPU that is gone. `on_gpu`: the container's processes as the driver
        shows them. `restore` comes before.
        """
        found, corrupted, is_read = self._region(held)
        is_missing = self._is_missing()
        is_used = bool(found.slots or needs_members or is_missing or any(on_gpu.values()))
        members = self.finder.members(place) if place is not None and is_used else None
        is_lost = place is not None and is_used and members is None
        is_stale = place is not None and len(place.containers) > 1 and members is not None and not members.complete
        is_running = members is not None and bool(members.pids)
        # Looked for again: a start makes the region first, and its processes may be younger than the first look.
        lost_files = is_missing and is_running and self._is_missing()
        corrupted = corrupted or _crowded(found, members)
        living = self._living(found, members, is_lost=is_lost)
        counted = None if is_lost and self._may_live_elsewhere(place) else living
        self._found_at = place if members is not None else self._found_at
        now = Reading(found, time.monotonic())
        gpus = [each.gpu if each is not None else None for each in held]
        is_known = is_read and not lost_files
        unmanaged = self._unmanaged_pids(on_gpu, found)
        beside = {uuid: [one for one in on_gpu[uuid] if one.pid in pids] for uuid, pids in unmanaged.items()}
        gpu_uses = uses(now, self._before, gpus=gpus, living=counted, beside=beside) if is_known else _no_uses(gpus)
        self._before = now if is_known else self._before
        accounted = tuple(held_bytes(living, index) for index in range(len(held)))
        overruns = self.monitor.check(self._observed(held, on_gpu, accounted, unmanaged, corrupted), now=now.at)
        others = {pid for pids in unmanaged.values() for pid in pids}
        use = ContainerUse(
            _with_pids(gpu_uses, on_gpu),
            len(counted) + len(others) if is_known and counted is not None else None,
            overruns,
            dict(self.monitor.seconds),
            found.unknown_functions if is_known else None,
        )
        wants_place = is_used and (place is None or is_lost or is_stale)
        report = ShareReport(use, members, wants_place, lost_files, self._assumed(held))
        self._judged = _Judged(report, accounted, corrupted, frozenset(others))
        return report

    def judge(
        self, held: Sequence[HeldGpu | None], on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]]
    ) -> ShareReport | None:
        """By what the driver shows now and the files showed at the last reading; None before the first one."""
        if (last := self._judged) is None:
            return None
        pids = {uuid: [each.pid for each in found if each.pid in last.unmanaged] for uuid, found in on_gpu.items()}
        corrupted = self._tampering or last.corrupted
        observed = self._observed(held, on_gpu, last.accounted, pids, corrupted, with_rows=False)
        overruns = self.monitor.check(observed, now=time.monotonic())
        use = replace(
            last.report.use,
            gpus=_with_pids(last.report.use.gpus, on_gpu),
            overruns=overruns,
            over_seconds=dict(self.monitor.seconds),
        )
        return replace(last.report, use=use, assumed_cores=self._assumed(held))

    def _assumed(self, held: Sequence[HeldGpu | None]) -> dict[GpuUuid, int]:
        return {each.gpu.uuid: 0 for each in held if each is not None} | self.monitor.assumed_cores()

    def _may_live_elsewhere(self, place: Place | None) -> bool:
        """Its processes were never found there. Once they were, an empty place says that they have ended."""
        return place is not None and bool(place.containers) and place != self._found_at

    def _region(self, held: Sequence[HeldGpu | None]) -> tuple[Region, str, bool]:
        """The region, or the last one; what is wrong with the container's files; whether the region is of now."""
        path = self.shared.region(self.grant)
        try:
            found = region.read(path, grant=self.grant, devices=len(held))
        except ParseError as error:
            return _empty(held), error.message, False
        except ContainerError as error:
            if path.exists() and error.message != self._unreadable:
                log.warning("region_unreadable", grant=self.grant, error=error.message)
            self._unreadable = error.message
            last = _empty(held) if self._before is None else self._before.region
            return last, "", not path.exists()  # a container that has not started yet uses nothing
        self._unreadable = ""
        wrong = self._tampering or (f"{found.implausible} numbers are impossible" if found.implausible else "")
        return found, wrong, True

    def _ended(self, on_gpu: Sequence[GpuProcess]) -> float:
        """The row of a process that has ended shows nothing more, and what the driver says is older."""
        return float(sum(process.sm_percent for process in on_gpu if not self.table.exists(process.pid)))

    def _shown(self, uuid: GpuUuid, on_gpu: Sequence[GpuProcess]) -> float | None:
        """Percent of the GPU's time that the activity file shows since the last reading; None: not known."""
        before = self._rows.pop(uuid, None)
        if not on_gpu:
            return None
        try:
            now = activity.read(self.shared.own_row(self.grant, uuid), grant=self.grant)
        except ParseError:
            return 0.0
        except ContainerError:
            return None
        self._rows[uuid] = now
        return activity.shown_percent(now, before) if before is not None else None

    def _living(self, found: Region, members: Members | None, *, is_lost: bool) -> tuple[ProcessSlot, ...]:
        if is_lost:
            return ()
        if members is None or not members.complete or not found.slots or not self._learn(members, found):
            return tuple(slot for slot in found.slots if not slot.is_clearing)
        dead = self._dead(found)
        namespaces = {each.namespace for each in self._known.values()}
        gone = [slot for slot in dead if slot.pid_namespace and slot.pid_namespace not in namespaces]
        for slot in gone[:MOST_CLEARED]:
            region.clear(self.shared.region(self.grant), slot)
        indices = {slot.index for slot in dead}
        return tuple(slot for slot in found.slots if slot.index not in indices and not slot.is_clearing)

    def _learn(self, members: Members, found: Region) -> bool:
        """Identifies the members. False if the kernel shows one and does not identify it: this agent lacks a right.

        A PID may belong to another process by now, so it is read again where a slot depends on it.
        """
        slots = {(slot.pid_namespace, slot.pid) for slot in found.slots}
        known: dict[int, ProcessIdentity] = {}
        for pid in members.pids:
            each = self._known.get(pid)
            if each is not None and (each.namespace, each.inner) in slots:
                each = each if self.table.start_time(pid) == each.start_time else None
            each = each or self.table.identity(pid)
            if each is not None:
                known[pid] = each
            elif self.table.exists(pid):
                return False
        self._known = known
        return True

    def _dead(self, found: Region) -> tuple[ProcessSlot, ...]:
        born = {(each.namespace, each.inner): each.start_time for each in self._known.values()}

        def is_dead(slot: ProcessSlot) -> bool:
            start = born.get((slot.pid_namespace, slot.pid))
            return start is None or slot.start_time not in (None, start)

        return tuple(slot for slot in found.slots if is_dead(slot))

    def _unmanaged_pids(
        self, on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]], found: Region
    ) -> dict[GpuUuid, list[int]]:
        """Processes on a GPU that have no slot; one that ends meanwhile does not count."""
        slots = {(slot.pid_namespace, slot.pid) for slot in found.slots}
        unmanaged: dict[GpuUuid, list[int]] = {}
        for uuid, processes in on_gpu.items():
            for process in processes:
                known = self._identity(process.pid)
                if known is not None and (known.namespace, known.inner) not in slots:
                    unmanaged.setdefault(uuid, []).append(process.pid)
        return unmanaged

    def _identity(self, pid: int) -> ProcessIdentity | None:
        return self._known.get(pid) or self.table.identity(pid)

    def _observed(
        self,
        held: Sequence[HeldGpu | None],
        on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]],
        accounted: Sequence[int],
        unmanaged: Mapping[GpuUuid, Sequence[int]],
        corrupted: str,
        *,
        with_rows: bool = True,
    ) -> tuple[GpuReading, ...]:
        return tuple(
            GpuReading(
                container=self.container,
                gpu=each.gpu,
                limit_bytes=each.memory_bytes,
                limit_cores=each.cores,
                accounted_bytes=accounted[index],
                seen_bytes=sum(process.memory_bytes for process in on_gpu.get(each.gpu.uuid, ())) or None,
                seen_percent=float(sum(process.sm_percent for process in on_gpu.get(each.gpu.uuid, ()))),
                ended_percent=self._ended(on_gpu.get(each.gpu.uuid, ())),
                shown_percent=self._shown(each.gpu.uuid, on_gpu.get(each.gpu.uuid, ())) if with_rows else None,
                unmanaged=tuple(unmanaged.get(each.gpu.uuid, ())),
                corrupted=corrupted,
                may_borrow=each.may_borrow,
            )
            for index, each in enumerate(held)
            if each is not None
        )


def uses(
    now: Reading,
    before: Reading | None,
    *,
    gpus: Sequence[Gpu | None],
    living: Collection[ProcessSlot] | None,
    beside: Mapping[GpuUuid, Sequence[GpuProcess]] = {},
) -> tuple[GpuUse, ...]:
    """One for each GPU of the grant that is there, in the grant's order. `living` is None if that is not known.

    `beside`: the processes that run without vcuda's library. They use what the driver shows.
    """
    return tuple(
        _with(beside.get(gpu.uuid, ()), _use(index, gpu, now, before, living), gpu)
        for index, gpu in enumerate(gpus)
        if gpu is not None and index < len(now.region.counters)
    )


def held_bytes(slots: Collection[ProcessSlot], index: int) -> int:
    """What these processes hold of the grant's GPU at this position, by the library's own account."""
    return sum(max(0, slot.uses[index].used) + max(0, slot.uses[index].overhead) for slot in slots)


def _crowded(found: Region, members: Members | None) -> str:
    """A region that says more than its container can have is read seldom, because of what that costs."""
    if members is None or not members.complete:
        return ""
    claimed, processes = len(found.slots), len(members.pids)
    many = f"{claimed} processes are in its region and {processes} in the container"
    return many if claimed > processes + MOST_BEYOND_PROCESSES else ""


def _with_pids(gpu_uses: Sequence[GpuUse], on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]]) -> tuple[GpuUse, ...]:
    return tuple(replace(each, pids=tuple(one.pid for one in on_gpu.get(each.uuid, ()))) for each in gpu_uses)


def _no_uses(gpus: Sequence[Gpu | None]) -> tuple[GpuUse, ...]:
    return tuple(GpuUse(gpu.uuid) for gpu in gpus if gpu is not None)


def _empty(held: Sequence[HeldGpu | None]) -> Region:
    return Region((region.Counters(),) * len(held), ())


def _use(index: int, gpu: Gpu, now: Reading, before: Reading | None, living: Collection[ProcessSlot] | None) -> GpuUse:
    counters = now.region.counters[index]
    overhead = None if living is None else sum(max(0, slot.uses[index].overhead) for slot in living)
    return GpuUse(
        uuid=gpu.uuid,
        memory_bytes=None if living is None else min(held_bytes(living, index), gpu.memory_bytes),
        overhead_bytes=None if overhead is None else min(overhead, gpu.memory_bytes),
        peak_bytes=min(max(0, counters.peak), gpu.memory_bytes),
        refusals=max(0, counters.refusals),
        cores=_cores(counters, now.at, before, index),
        cores_in_force=min(counters.effective_cores / _IN_FORCE_UNIT, CORES_PER_GPU) or None,
        gpu_seconds=max(0, counters.charged_ns) / _NS,
        throttled_seconds=max(0, counters.throttled_ns) / _NS,
        throttled_launches=max(0, counters.throttled_launches),
    )


def _with(beside: Sequence[GpuProcess], use: GpuUse, gpu: Gpu) -> GpuUse:
    """Processes of which the driver does not show the memory make the sum unknown."""
    seen = [each.memory_bytes for each in beside]
    known = use.memory_bytes is not None and all(seen)
    memory = min((use.memory_bytes or 0) + sum(seen), gpu.memory_bytes) if known else None
    percent = sum(each.sm_percent for each in beside)
    cores = None if use.cores is None else min(use.cores + percent, CORES_PER_GPU)
    return replace(use, memory_bytes=memory, cores=cores)


def _cores(counters: Counters, at: float, before: Reading | None, index: int) -> float | None:
    """None for the first reading, and for one that the container's restart lies before."""
    if before is None or index >= len(before.region.counters) or at <= before.at:
        return None
    charged = counters.charged_ns - before.region.counters[index].charged_ns
    return min(charged / _NS / (at - before.at), 1.0) * CORES_PER_GPU if charged >= 0 else None
