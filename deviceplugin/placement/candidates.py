"""Which GPUs could serve a request, and what speaks against each of the others.

In: a request, a snapshot, and the rules of the moment: the pod's filter, the operator's cordon. Out: the candidates
that an evaluator chooses from, and one obstacle for every other GPU, the lasting ones first; `Selection` is the answer
of an evaluator. Not here: any order among
candidates. An unhealthy GPU, one in MIG mode and one whose compute mode is prohibited are never candidates; one in
exclusive-process mode only as a whole. That a container's GPUs be on one NUMA node is about sets and `place`'s.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from deviceplugin.model.gpu import ComputeMode, GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.placement.fit import Demand, demand_of
from deviceplugin.placement.rejection import GpuRejection
from deviceplugin.placement.snapshot import GpuView, Snapshot


@dataclass(frozen=True, slots=True)
class Rules:
    """What narrows the GPUs beside their state. `only` (None: all) is hard as the others and says no reason."""

    wanted: GpuFilter = ANY_GPU
    cordoned: Collection[GpuUuid] = ()
    only: Collection[GpuUuid] | None = None


NO_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Candidates:
    """GPUs that could serve the request, in minor order.

    `free` holds the minors of all whole GPUs that work may land on, candidates or not: evaluators count them to see how
    full a branch of the tree is.
    """

    request: Request
    views: tuple[GpuView, ...]
    free: frozenset[int]
    topology: Topology

    def among(self, uuids: Collection[GpuUuid]) -> "Candidates":
        return replace(self, views=tuple(view for view in self.views if view.gpu.uuid in uuids))


@dataclass(frozen=True, slots=True)
class Survey:
    """Every GPU of the snapshot once: as a candidate or with its obstacle."""

    candidates: Candidates
    obstacles: tuple[tuple[GpuView, GpuRejection], ...]


def survey(request: Request, snapshot: Snapshot, rules: Rules = NO_RULES) -> Survey:
    views = sorted(snapshot.gpus, key=_order)
    demand = demand_of(request)
    judged = [(view, _obstacle(view, rules, demand)) for view in views]
    candidates = Candidates(
        request=request,
        views=tuple(view for view, obstacle in judged if obstacle is None),
        free=frozenset(view.gpu.minor for view in views if view.is_whole and broken(view) is None),
        topology=_covering(snapshot),
    )
    return Survey(candidates, tuple((view, obstacle) for view, obstacle in judged if obstacle is not None))


def _order(view: GpuView) -> tuple[int, GpuUuid]:
    return (view.gpu.minor, view.gpu.uuid)


def _obstacle(view: GpuView, rules: Rules, demand: Demand) -> GpuRejection | None:
    """What the pod and the GPU refuse whatever is asked comes first, then the rule of fit."""
    return _against(view, rules) or broken(view) or demand.rejection(view.capacity)


def is_open(view: GpuView, rules: Rules) -> bool:
    """Whether any work of the pod may land there, were it empty."""
    return _against(view, rules) is None and broken(view) is None


def _against(view: GpuView, rules: Rules) -> GpuRejection | None:
    uuid = view.gpu.uuid
    if rules.only is not None and uuid not in rules.only:
        return GpuRejection.EXCLUDED
    if rules.wanted is not ANY_GPU and not rules.wanted.admits_uuid(uuid):
        return GpuRejection.UNWANTED
    if rules.wanted is not ANY_GPU and not rules.wanted.admits_model(view.gpu.model):
        return GpuRejection.MODEL
    return GpuRejection.CORDONED if uuid in rules.cordoned else None


def broken(view: GpuView) -> GpuRejection | None:
    """What keeps all work off a GPU."""
    if not view.health.healthy:
        return GpuRejection.UNHEALTHY
    if view.gpu.mig_enabled:
        return GpuRejection.MIG
    return GpuRejection.PROHIBITED if view.gpu.compute_mode is ComputeMode.PROHIBITED else None


def _covering(snapshot: Snapshot) -> Topology:
    """The topology, with any GPU that it does not name added as one that shares no level."""
    topology = snapshot.topology
    unnamed = {view.gpu.minor for view in snapshot.gpus}.difference(topology.minors)
    return Topology((*topology.minors, *sorted(unnamed)), topology.links) if unnamed else topology


@dataclass(frozen=True, slots=True)
class Selection:
    """`chosen` in minor order; `against` has a phrase for each candidate that was not chosen."""

    chosen: tuple[GpuView, ...]
    reason: str
    against: Mapping[GpuUuid, str]


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Where two keys of one order part; equal keys part behind their last place."""
    parted = (at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return next(parted, len(one))
