"""Whether a pod can fit on a node at all, in a few microseconds.

In: what the pod asks, and a node. Out: None, or the reason why not: a constant text, because kube-scheduler groups
equal ones in the event that the user reads. Exact for pods of one container; of several it says no only where the pod
cannot fit, and `pod.place_pod` decides. For one pod and many nodes, make one `Prefilter` and
call it for each. Not here: CPU and memory of the node (`NodeState.spare`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.assign import phases
from deviceplugin.placement.node_state import NodeState, OpenGpus
from deviceplugin.placement.rejection import NodeRejection
from deviceplugin.placement.snapshot import GpuView, Summary, summaries_by_numa, summarize


def prefilter(pod: PodRequest, state: NodeState) -> NodeRejection | None:
    return Prefilter(pod)(state)


@dataclass(frozen=True, slots=True)
class _Need:
    """What one container takes of each of `count` GPUs."""

    count: int
    whole: bool
    cores: int
    blocks: int

    def fits(self, summary: Summary) -> bool:
        if self.whole:
            return summary.fits_whole(self.count, self.blocks)
        return summary.fits_share(self.count, self.cores, self.blocks)

    def fits_empty(self, summary: Summary) -> bool:
        sizes = summary.sizes if self.whole else summary.share_sizes
        return len(sizes) >= self.count and sizes[self.count - 1] >= self.blocks


@dataclass(frozen=True, slots=True)
class _Load:
    """What all containers of one phase need together: whole GPUs, and cores and blocks over all."""

    whole: int
    cores: int
    blocks: int


class Prefilter:
    """One pod; what it has found out of a model is kept for the next node."""

    def __init__(self, pod: PodRequest) -> None:
        self._filter = wanted = pod.preferences.gpus
        self._any_gpu = not (wanted.models or wanted.not_models or wanted.uuids or wanted.not_uuids)
        self._one_numa = wanted.one_numa and any(each.request.gpus > 1 for each in pod.containers)
        self._needs = tuple(dict.fromkeys(_need(each.request) for each in pod.containers))
        self._loads = _loads(pod.containers) if len(pod.containers) > 1 else ()
        self._has_share = any(not need.whole for need in self._needs)
        self._models: dict[str, bool] = {}

    def __call__(self, state: NodeState) -> NodeRejection | None:
        if not self._needs:
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
        for need in self._needs:
            if not need.fits(summary):
                reason = _why_not(need, summary)
                apart = self._one_numa and reason.resolvable and self._on_numa(state, views, (need,))
                return NodeRejection.TOO_FEW_ON_NUMA if apart is NodeRejection.TOO_FEW_ON_NUMA else reason
        for load in self._loads:
            if load.whole > len(summary.whole) or load.cores > summary.cores or load.blocks > summary.blocks:
                return _why_not_all(load, summary)
        return self._on_numa(state, views, self._needs) if self._one_numa else None

    def _on_numa(self, state: NodeState, views: Sequence[GpuView], needs: Sequence[_Need]) -> NodeRejection | None:
        nodes = state.numa_nodes if views is state.open_gpus.views else summaries_by_numa(views)
        for need in needs:
            if need.count > 1 and not any(need.fits(node) for node in nodes):
                empty = any(need.fits_empty(node) for node in nodes)
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


def _need(request: Request) -> _Need:
    whole = request.kind is not RequestKind.SHARE
    return _Need(request.gpus, whole, 0 if whole else request.cores_per_gpu, request.blocks_per_gpu)


def _loads(containers: Sequence[ContainerRequest]) -> tuple[_Load, ...]:
    by_phase: dict[int, list[Request]] = {}
    for each, running in zip(containers, phases(containers), strict=True):
        for phase in running:
            by_phase.setdefault(phase, []).append(each.request)
    return tuple(
        _Load(
            whole=sum(each.gpus for each in requests if each.kind is not RequestKind.SHARE),
            cores=sum(each.cores for each in requests),
            blocks=sum(each.blocks for each in requests),
        )
        for requests in by_phase.values()
        if len(requests) > 1
    )


def _why_not(need: _Need, summary: Summary) -> NodeRejection:
    if not need.fits_empty(summary):
        sizes = summary.sizes if need.whole else summary.share_sizes
        return NodeRejection.TOO_SMALL if len(sizes) >= need.count and sizes[0] < need.blocks else NodeRejection.TOO_FEW
    if need.whole:
        return NodeRejection.WHOLE
    if need.count > 1:
        return NodeRejection.SHARES
    return NodeRejection.CORES if summary.shares[0][0] < need.cores else NodeRejection.MEMORY


def _why_not_all(load: _Load, summary: Summary) -> NodeRejection:
    gpus = len(summary.sizes)
    too_large = load.whole > gpus or load.cores > gpus * CORES_PER_GPU or load.blocks > sum(summary.sizes)
    return NodeRejection.POD_TOO_LARGE if too_large else NodeRejection.POD
