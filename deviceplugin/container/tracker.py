"""One share, watched: what its container uses and whether it keeps to its limits.

In: at each look the grant's GPUs and limits, what the driver shows of the container's processes on them, and the
container's place where it is known. Out: `Look`. Runs in a thread, for files may be slow; one look at a time. A process
counts as dead only for sure: the container's list is complete, was read after the region, and does not have it. Then it
counts no more, and its slot is freed where no process of its pid namespace is left that could do so.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from deviceplugin.container import activity, metering, region, shared_file
from deviceplugin.container.containers import ContainerFinder, Place
from deviceplugin.container.limit_monitor import Conduct, Observed
from deviceplugin.container.metering import Reading
from deviceplugin.container.processes import Members, ProcessIdentity, ProcessTable
from deviceplugin.container.region import Region, Slot
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ParseError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import Gpu, GpuProcess, GpuUuid
from deviceplugin.model.usage import ContainerUse, GpuUse, Overrun


@dataclass(frozen=True, slots=True)
class Held:
    """One GPU of the grant as it is limited now; `cores` is the most that the container may use, borrowed included."""

    gpu: Gpu
    memory_bytes: int
    cores: float


@dataclass(frozen=True, slots=True)
class Look:
    """`members`: the container's processes, None where they are not known or it is gone. `wants_place`: find it."""

    use: ContainerUse
    members: Members | None
    wants_place: bool


@dataclass(slots=True)
class Tracker:
    """One grant over its life."""

    grant: GrantId
    container: str
    shared: SharedState
    table: ProcessTable
    finder: ContainerFinder
    conduct: Conduct = field(default_factory=Conduct)
    _before: Reading | None = None
    _known: dict[int, ProcessIdentity] = field(default_factory=dict)

    def look(
        self,
        held: Sequence[Held],
        on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]],
        *,
        place: Place | None,
        needs_members: bool = False,
    ) -> Look:
        """`on_gpu`: the container's processes as the driver shows them."""
        found, spoilt = self._read(held)
        is_used = bool(found.slots or needs_members or any(on_gpu.values()))
        members = self.finder.members(place) if place is not None and is_used else None
        is_lost = place is not None and is_used and members is None
        living = self._living(found, members, is_lost=is_lost)
        now = Reading(found, time.monotonic())
        uses = metering.uses(now, self._before, gpus=[each.gpu for each in held], living=living)
        self._before = now
        strangers = self._strangers(on_gpu, found)
        overruns = self.conduct.look(self._observed(held, on_gpu, living, strangers, spoilt), now=now.at)
        use = _use(uses, on_gpu, len(living) + len({pid for pids in strangers.values() for pid in pids}), overruns)
        return Look(use, members, wants_place=is_used and (place is None or is_lost))

    def _read(self, held: Sequence[Held]) -> tuple[Region, str]:
        """The region, and what is wrong with the container's files; they are put right where that harms nobody."""
        path = self.shared.region(self.grant)
        grown = shared_file.restore_size(path, region.form(self.grant))
        for each in held:
            row = self.shared.own_row(self.grant, each.gpu.uuid)
            grown |= shared_file.restore_size(row, activity.form(self.grant))
        try:
            found = region.read(path, grant=self.grant, devices=len(held))
        except ParseError as error:
            return Region((region.Counters(),) * len(held), ()), error.message
        if grown:
            return found, "a file was longer than it may be"
        return found, f"{found.implausible} numbers are impossible" if found.implausible else ""

    def _living(self, found: Region, members: Members | None, *, is_lost: bool) -> tuple[Slot, ...]:
        if is_lost:
            return ()
        if members is None or not members.complete or not found.slots or not self._learn(members, found):
            return tuple(slot for slot in found.slots if not slot.is_clearing)
        dead = self._dead(found)
        namespaces = {each.namespace for each in self._known.values()}
        for slot in dead:
            if slot.pid_namespace and slot.pid_namespace not in namespaces:
                region.clear(self.shared.region(self.grant), slot)
        return tuple(slot for slot in found.slots if slot not in dead and not slot.is_clearing)

    def _learn(self, members: Members, found: Region) -> bool:
        """Who the members are. False where the kernel shows one and does not say who it is: this agent lacks a right.

        A PID may be another process's by now; it is looked at again where a slot depends on it.
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

    def _dead(self, found: Region) -> tuple[Slot, ...]:
        born = {(each.namespace, each.inner): each.start_time for each in self._known.values()}

        def is_dead(slot: Slot) -> bool:
            start = born.get((slot.pid_namespace, slot.pid))
            return start is None or slot.start_time not in (None, start)

        return tuple(slot for slot in found.slots if is_dead(slot))

    def _strangers(self, on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]], found: Region) -> dict[GpuUuid, list[int]]:
        """Processes on a GPU that have no slot; one that ends while it is looked at is none."""
        slots = {(slot.pid_namespace, slot.pid) for slot in found.slots}
        strangers: dict[GpuUuid, list[int]] = {}
        for uuid, processes in on_gpu.items():
            for process in processes:
                known = self._identity(process.pid)
                if known is not None and (known.namespace, known.inner) not in slots:
                    strangers.setdefault(uuid, []).append(process.pid)
        return strangers

    def _identity(self, pid: int) -> ProcessIdentity | None:
        return self._known.get(pid) or self.table.identity(pid)

    def _observed(
        self,
        held: Sequence[Held],
        on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]],
        living: Sequence[Slot],
        strangers: Mapping[GpuUuid, Sequence[int]],
        spoilt: str,
    ) -> tuple[Observed, ...]:
        return tuple(
            Observed(
                container=self.container,
                gpu=each.gpu,
                limit_bytes=each.memory_bytes,
                limit_cores=each.cores,
                accounted_bytes=metering.held_bytes(living, index),
                seen_bytes=sum(process.memory_bytes for process in on_gpu.get(each.gpu.uuid, ())) or None,
                seen_percent=float(sum(process.sm_percent for process in on_gpu.get(each.gpu.uuid, ()))),
                strangers=tuple(strangers.get(each.gpu.uuid, ())),
                spoilt=spoilt,
            )
            for index, each in enumerate(held)
        )


def _use(
    uses: Sequence[GpuUse],
    on_gpu: Mapping[GpuUuid, Sequence[GpuProcess]],
    processes: int,
    overruns: tuple[Overrun, ...],
) -> ContainerUse:
    shown = (replace(each, pids=tuple(process.pid for process in on_gpu.get(each.uuid, ()))) for each in uses)
    return ContainerUse(tuple(shown), processes, overruns)
