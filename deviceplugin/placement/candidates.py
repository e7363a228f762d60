"""Which GPUs could serve a request, and what speaks against each of the others.

In: a request, a snapshot, and restrictions: the pod's filter, the operator's cordon. Out: the candidates
that an evaluator chooses from, and one rejection for every other GPU; `Selection` is the answer of an evaluator. An
unhealthy GPU, one in MIG mode and one whose compute mode is prohibited are never candidates. Not here: any order among
candidates, and whether a set of them is on one NUMA node (`place`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deviceplugin.model.gpu import ComputeMode, GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.placement.fit import Demand, GpuRejection, demand_of
from deviceplugin.placement.snapshot import GpuView, Snapshot


@dataclass(frozen=True, slots=True)
class Restrictions:
    """What narrows the GPUs beside their state."""

    wanted: GpuFilter = ANY_GPU
    cordoned: Collection[GpuUuid] = ()
    _models: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def admits_model(self, model: str) -> bool:
        """Asked for each GPU and container; a pod may name hundreds of models."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = self.wanted.admits_model(model)
        return known


NO_RESTRICTIONS = Restrictions()


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
    """Every GPU of the snapshot once: as a candidate or with its rejection."""

    candidates: Candidates
    rejected: tuple[tuple[GpuView, GpuRejection], ...]


def survey(request: Request, snapshot: Snapshot, restrictions: Restrictions = NO_RESTRICTIONS) -> Survey:
    views = sorted(snapshot.gpus, key=_order)
    demand = demand_of(request)
    judged = [(view, _rejection(view, restrictions, demand)) for view in views]
    candidates = Candidates(
        request=request,
        views=tuple(view for view, rejection in judged if rejection is None),
        free=frozenset(view.gpu.minor for view in views if view.is_whole and state_rejection(view) is None),
        topology=snapshot.topology,
    )
    return Survey(candidates, tuple((view, rejection) for view, rejection in judged if rejection is not None))


def _order(view: GpuView) -> tuple[int, GpuUuid]:
    return (view.gpu.minor, view.gpu.uuid)


def _rejection(view: GpuView, restrictions: Restrictions, demand: Demand) -> GpuRejection | None:
    """Reasons that hold whatever is asked come first, then the rule of fit."""
    return _filter_rejection(view, restrictions) or state_rejection(view) or demand.rejection(view.capacity)


def is_open(view: GpuView, restrictions: Restrictions) -> bool:
    """Whether any work of the pod may land there, were it empty."""
    return _filter_rejection(view, restrictions) is None and state_rejection(view) is None


def _filter_rejection(view: GpuView, restrictions: Restrictions) -> GpuRejection | None:
    uuid = view.gpu.uuid
    # By identity, as nearly all pods take any GPU: then no filter is asked, for each GPU of each node.
    if restrictions.wanted is not ANY_GPU and not restrictions.wanted.admits_uuid(uuid):
        return GpuRejection.UNWANTED
    if restrictions.wanted is not ANY_GPU and not restrictions.admits_model(view.gpu.model):
        return GpuRejection.MODEL
    return GpuRejection.CORDONED if uuid in restrictions.cordoned else None


def state_rejection(view: GpuView) -> GpuRejection | None:
    """What keeps all work off a GPU."""
    if not view.health.healthy:
        return GpuRejection.UNHEALTHY
    if view.gpu.mig_enabled:
        return GpuRejection.MIG
    return GpuRejection.PROHIBITED if view.gpu.compute_mode is ComputeMode.PROHIBITED else None


@dataclass(frozen=True, slots=True)
class Selection:
    """`chosen` in minor order; `against` makes a phrase for each candidate that was not chosen: most are never read."""

    chosen: tuple[GpuView, ...]
    reason: str
    against: Callable[[], Mapping[GpuUuid, str]]


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Where two keys of one order part; equal keys part behind their last place."""
    parted = (at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return next(parted, len(one))
