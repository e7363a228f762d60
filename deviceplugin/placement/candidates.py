"""Which GPUs could serve a request, and what speaks against each of the others.

In: a request, a snapshot, and restrictions: the pod's filter, the operator's cordon. Out: the candidates
that an evaluator chooses from, and one rejection for every other GPU; `Selection` is the answer of an evaluator. An
unhealthy GPU, one in MIG mode and one whose compute mode is prohibited are never candidates. Not here: any order among
candidates, and whether a set of them is on one NUMA node (`pod`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from deviceplugin.model.gpu import ComputeMode, GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.placement.fit import GpuRejection, demand_of
from deviceplugin.placement.snapshot import GpuView, Snapshot
from deviceplugin.structs import replace


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


class Candidates(msgspec.Struct, frozen=True):
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


class Survey(msgspec.Struct, frozen=True):
    """Every GPU of the snapshot once: as a candidate or with its rejection."""

    candidates: Candidates
    rejected: tuple[tuple[GpuView, GpuRejection], ...]


_ORDER = attrgetter("gpu.minor", "gpu.uuid")


def survey(request: Request, snapshot: Snapshot, restrictions: Restrictions = NO_RESTRICTIONS) -> Survey:
    """Of a GPU's rejections those that hold whatever is asked come first, then the rule of fit."""
    demand = demand_of(request)
    fitting: list[GpuView] = []
    free: list[int] = []
    rejected: list[tuple[GpuView, GpuRejection]] = []
    for view in sorted(snapshot.gpus, key=_ORDER):
        closed = state_rejection(view)
        if closed is None and view.capacity.is_whole:
            free.append(view.gpu.minor)
        rejection = _filter_rejection(view, restrictions) or closed or demand.rejection(view.capacity)
        if rejection is None:
            fitting.append(view)
        else:
            rejected.append((view, rejection))
    return Survey(Candidates(request, tuple(fitting), frozenset(free), snapshot.topology), tuple(rejected))


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


class Selection(msgspec.Struct, frozen=True):
    """`chosen` in minor order; `against` makes a phrase for each candidate that was not chosen: most are never read."""

    chosen: tuple[GpuView, ...]
    reason: str
    against: Callable[[], Mapping[GpuUuid, str]]


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Where two keys of one order part; equal keys part behind their last place."""
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return at
    return len(one)
