"""Whether a pod can fit on a node at all, in a few microseconds.

In: what the pod asks, and a node. Out: None, or the reason why not: a constant text, because kube-scheduler groups
equal ones in the event that the user reads. Exact for pods of one container; for several it rejects only if the pod
cannot fit, and `pod.place_pod` decides. For one pod and many nodes, make one `Prefilter` and call it for each. Not
here: CPU and memory of the node (`NodeState.spare`).
"""

from collections.abc import Sequence

import msgspec

from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.placement.fit import NOTHING, Demand, GpuAmount, NodeRejection, Sharing, demand_of
from deviceplugin.placement.node_state import NodeState, OpenGpus
from deviceplugin.placement.snapshot import GpuView, Summary, phases, summaries_by_numa, summarize


def prefilter(pod: PodRequest, state: NodeState) -> NodeRejection | None:
    return Prefilter(pod)(state)


class _PhaseLoad(msgspec.Struct, frozen=True):
    """What all containers of one phase need together: whole GPUs, and cores and blocks over all."""

    whole: int
    total: GpuAmount


class Prefilter:
    """For one pod; whether it admits a model is looked up once for all nodes."""

    def __init__(self, pod: PodRequest) -> None:
        self._filter = wanted = pod.preferences.gpus
        self._any_gpu = not (wanted.models or wanted.not_models or wanted.names_gpus)
        self._one_numa = wanted.one_numa and any(each.request.gpus > 1 for each in pod.containers)
        self._demands = tuple(dict.fromkeys(demand_of(each.request) for each in pod.containers))
        self._loads = _loads(pod.containers) if len(pod.containers) > 1 else ()
        self._has_share = any(each.sharing is Sharing.SHARE for each in self._demands)
        self._models: dict[str, bool] = {}

    @property
    def steps(self) -> int:
        """What one node costs, in the steps of `budget`."""
        return 4 * (1 + len(self._demands) + len(self._loads))

    def __call__(self, state: NodeState) -> NodeRejection | None:
        if not self._demands:
            return None
        if self._has_share and not state.share_mode:
            return NodeRejection.NO_SHARES
        gpus = state.open_gpus
        if not gpus.views:
            return NodeRejection.NO_OPEN_GPU if state.snapshot.gpus else NodeRejection.NO_GPU
        if self._any_gpu:
            return self._among(state, gpus.views, gpus.summary)
        admitted = self._admitted(gpus)
        if isinstance(admitted, NodeRejection):
            return admitted
        same = len(admitted) == len(gpus.views)
        return self._among(state, admitted, gpus.summary if same else summarize(admitted))

    def _among(self, state: NodeState, views: Sequence[GpuView], summary: Summary) -> NodeRejection | None:
        for demand in self._demands:
            if not summary.fits(demand):
                reason = _why_not(demand, summary)
                apart = self._one_numa and reason.resolvable and self._on_numa(state, views, (demand,))
                return NodeRejection.TOO_FEW_ON_NUMA if apart is NodeRejection.TOO_FEW_ON_NUMA else reason
        for load in self._loads:
            if load.whole > len(summary.now[Sharing.WHOLE]) or not summary.free.covers(load.total):
                return _why_not_all(load, summary)
        return self._on_numa(state, views, self._demands) if self._one_numa else None

    def _on_numa(self, state: NodeState, views: Sequence[GpuView], demands: Sequence[Demand]) -> NodeRejection | None:
        nodes = state.numa_nodes if views is state.open_gpus.views else summaries_by_numa(views)
        for demand in demands:
            if demand.gpus > 1 and not any(node.fits(demand) for node in nodes):
                empty = any(node.fits_empty(demand) for node in nodes)
                return NodeRejection.ON_NUMA if empty else NodeRejection.TOO_FEW_ON_NUMA
        return None

    def _admitted(self, gpus: OpenGpus) -> Sequence[GpuView] | NodeRejection:
        wanted = self._filter
        by_uuid = (wanted.uuids and not wanted.uuids >= gpus.uuids) or not wanted.not_uuids.isdisjoint(gpus.uuids)
        views = tuple(view for view in gpus.views if wanted.admits_uuid(view.gpu.uuid)) if by_uuid else gpus.views
        if not views:
            return NodeRejection.UNWANTED
        if all(map(self._admits, gpus.models)):
            return views
        return tuple(view for view in views if self._admits(view.gpu.model)) or NodeRejection.MODEL

    def _admits(self, model: str) -> bool:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = self._filter.admits_model(model)
        return known


def _loads(containers: Sequence[ContainerRequest]) -> tuple[_PhaseLoad, ...]:
    by_phase: dict[int, list[Demand]] = {}
    for each, running in zip(containers, phases(containers), strict=True):
        for phase in running:
            by_phase.setdefault(phase, []).append(demand_of(each.request))
    return tuple(
        _PhaseLoad(
            whole=sum(each.gpus for each in demands if each.sharing is Sharing.WHOLE),
            total=sum((each.total for each in demands), NOTHING),
        )
        for demands in by_phase.values()
        if len(demands) > 1
    )


def _why_not(demand: Demand, summary: Summary) -> NodeRejection:
    empty = summary.empty[demand.sharing]
    if not summary.fits_empty(demand):
        is_small = len(empty) >= demand.gpus and empty[0][1] < demand.amount.blocks
        return NodeRejection.TOO_SMALL if is_small else NodeRejection.TOO_FEW
    if demand.sharing is Sharing.WHOLE:
        return NodeRejection.WHOLE
    if demand.gpus > 1:
        return NodeRejection.SHARES
    most_cores = summary.now[demand.sharing][0][0]
    return NodeRejection.CORES if most_cores < demand.amount.cores else NodeRejection.MEMORY


def _why_not_all(load: _PhaseLoad, summary: Summary) -> NodeRejection:
    too_large = load.whole > len(summary.models) or not summary.whole.covers(load.total)
    return NodeRejection.POD_TOO_LARGE if too_large else NodeRejection.POD
