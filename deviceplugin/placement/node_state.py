"""One node as the choice among nodes sees it: its GPUs with what is free, and what else tasks need of it.

In: an inventory and what every pod holds (`snapshot`), or rows of a trace. Out: a value that never changes; what a pod
takes makes a new one. A node that has not changed is the same object, so what is calculated of it is kept with it
(`open_gpus`). Not here: which pods there are, and when the node's agent last reported.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec

from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.placement.candidates import state_rejection
from deviceplugin.placement.fit import NOTHING, GpuAmount
from deviceplugin.placement.snapshot import (
    GpuView,
    Snapshot,
    Summary,
    occupied,
    snapshot_for,
    summaries_by_numa,
    summarize,
)
from deviceplugin.structs import replace


class Spare(NamedTuple):
    """Free CPU (thousandths of one) and memory (MiB)."""

    cpu_milli: int
    memory_mib: int

    def covers(self, other: "Spare") -> bool:
        return self.cpu_milli >= other.cpu_milli and self.memory_mib >= other.memory_mib

    def __sub__(self, other: "Spare") -> "Spare":
        return Spare(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib)


class OpenGpus(msgspec.Struct, frozen=True):
    """Those GPUs of a node that work may land on, with what the prefilter asks of them for every pod."""

    views: tuple[GpuView, ...]
    uuids: frozenset[GpuUuid]
    models: tuple[str, ...]
    summary: Summary


# one state is one object: caches compare and hash it by identity
class NodeState(msgspec.Struct, frozen=True, eq=False, dict=True, weakref=True):
    """`spare` is None if nothing is known of CPU and memory.

    `cordoned` GPUs take no new work: their operator said so. Without `share_mode` the node gives whole GPUs only.
    """

    name: str
    snapshot: Snapshot
    share_mode: bool = True
    cordoned: frozenset[GpuUuid] = frozenset()
    spare: Spare | None = None

    @cached_property
    def open_gpus(self) -> OpenGpus:
        """Neither unhealthy nor cordoned."""
        views = tuple(view for view in self.snapshot.gpus if self.admits(view))
        uuids = frozenset(view.gpu.uuid for view in views)
        models = tuple(sorted({view.gpu.model for view in views}))
        return OpenGpus(views, uuids, models, summarize(views))

    @cached_property
    def numa_nodes(self) -> tuple[Summary, ...]:
        """Of the open GPUs, one summary for each NUMA node."""
        return summaries_by_numa(self.open_gpus.views)

    def with_spare(self, spare: Spare | None) -> "NodeState":
        """The same GPUs, with what was calculated of them; the same object where nothing is different."""
        if self.spare == spare:
            return self
        changed = replace(self, spare=spare)
        changed.__dict__.update(self.__dict__)  # what is cached with the object: none of it depends on CPU and memory
        return changed

    def with_pod(self, allocations: Iterable[Allocation], *, needs: Spare) -> "NodeState":
        """The node with one pod more, which takes `needs` beside its GPUs; nothing may be taken that is not free.

        Pods add up, so the others need not be known; what the containers of one pod hold together, `snapshot` says.
        """
        held = occupied(allocations)
        views = tuple(_taken(view, held.get(view.gpu.uuid)) for view in self.snapshot.gpus)
        spare = None if self.spare is None else self.spare - needs
        return (
            replace(self, snapshot=Snapshot(views, self.snapshot.topology), spare=spare)
            if held
            else self.with_spare(spare)
        )

    def admits(self, view: GpuView) -> bool:
        """Whether work may land on this GPU."""
        return view.gpu.uuid not in self.cordoned and state_rejection(view) is None


def node_state(
    name: str,
    inventory: Inventory,
    allocations: Iterable[Allocation],
    *,
    share_mode: bool = True,
    cordoned: frozenset[GpuUuid] = frozenset(),
) -> NodeState:
    """The node with everything that its pods hold taken away."""
    return NodeState(name, snapshot_for(inventory, allocations), share_mode=share_mode, cordoned=cordoned)


def class_key(state: NodeState) -> tuple[object, ...]:
    """All that prefilter and score look at; neither knows names, links or processes."""
    gpus = sorted(
        (
            view.gpu.model,
            view.gpu.blocks,
            view.free_cores,
            view.free_blocks,
            -1 if view.gpu.numa is None else view.gpu.numa,
            view.gpu.compute_mode.value,
            view.gpu.mig_enabled,
            view.health.healthy,
            view.gpu.uuid in state.cordoned,
        )
        for view in state.snapshot.gpus
    )
    return (state.share_mode, tuple(gpus))


def _taken(view: GpuView, held: GpuAmount | None) -> GpuView:
    if held is None:
        return view
    assert view.free.covers(held), f"more of {view.gpu.uuid} is taken than is free"
    return view.less(held)


class NodeUsage:
    """What is free on one node, brought up to date pod by pod.

    The states equal those that `node_state` calculates from all pods, at the cost of the one pod that has changed. A
    pod's containers count together, by kubelet's arithmetic; pods add up.
    """

    def __init__(
        self, name: str, inventory: Inventory, *, share_mode: bool = True, cordoned: frozenset[GpuUuid] = frozenset()
    ) -> None:
        self._empty = node_state(name, inventory, (), share_mode=share_mode, cordoned=cordoned)
        self._taken: dict[GpuUuid, GpuAmount] = {}
        self._held: dict[PodUid, Mapping[GpuUuid, GpuAmount]] = {}

    def hold(self, pod: PodUid, allocations: Iterable[Allocation]) -> None:
        """Takes the place of what the pod held before."""
        self.release(pod)
        held = self._held[pod] = occupied(allocations)
        for uuid, part in held.items():
            self._taken[uuid] = self._taken.get(uuid, NOTHING) + part

    def release(self, pod: PodUid) -> None:
        for uuid, part in self._held.pop(pod, {}).items():
            self._taken[uuid] -= part

    def state(self, *, without: Collection[PodUid] = ()) -> NodeState:
        """As it is, or as if some pods were not there."""
        taken = dict(self._taken)
        for pod in without:
            for uuid, part in self._held.get(pod, {}).items():
                taken[uuid] -= part
        return replace(self._empty, snapshot=self._empty.snapshot.less(taken))

    def still_fits(self, pod: PodUid) -> bool:
        """Whether what a pod holds would be free without it, on GPUs that accept work."""
        held, empty = self._held[pod], self._empty
        views = {view.gpu.uuid: view for view in empty.snapshot.gpus if view.gpu.uuid in held and empty.admits(view)}
        return len(views) == len(held) and all(
            views[uuid].less(self._taken[uuid] - part).free.covers(part) for uuid, part in held.items()
        )

    @property
    def is_overbooked(self) -> bool:
        """Whether of some GPU more is held than it has."""
        return any(not view.free.covers(self._taken.get(view.gpu.uuid, NOTHING)) for view in self._empty.snapshot.gpus)
