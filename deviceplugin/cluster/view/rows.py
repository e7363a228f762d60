"""The rows of the view: a node, its GPUs and who holds them, and the pods.

In: nodes of the scheduler's cache and pods, as they are now. Out: the types of `model.cluster_view`. What is allocated
is what placement counts, so a container whose GPU is not known yet counts on every GPU where it may be. Why a pod waits
is a sentence, and one of few constant texts, so that pods can be counted by it; `/explain` has the whole answer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.explain.explain import gates_sentence
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict
from deviceplugin.cluster.extender.recent_events import ClusterEvent
from deviceplugin.cluster.extender.rejection import AGENT_DOWN, NO_INVENTORY
from deviceplugin.model.allocation import Allocation
from deviceplugin.model.cluster_view import (
    ClusterEventRow,
    ContainerRow,
    GpuRow,
    HolderRow,
    NodeRow,
    PodRow,
    PodStage,
    ShareRow,
    ShareSource,
)
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.candidates import state_rejection
from deviceplugin.placement.fit import NOTHING, GpuAmount
from deviceplugin.placement.snapshot import GpuView, occupied

DELETED = "being deleted"
GATED = "scheduling gates"
NOT_ASKED = "kube-scheduler has not asked yet"
REFUSED = "refused by kube-scheduler for a reason outside vcuda"
BINDING = "chosen and not bound yet"
NO_CLAIM = "a ResourceClaim of it does not exist"
NO_DEVICES = "its ResourceClaims can be allocated on no node"
_CANNOT_ALLOCATE = "cannot allocate all claims"  # in kube-scheduler's message
_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU with what is allocated of it; `closed` says why it takes no new pods, `source` how it is offered."""

    gpu: Gpu
    allocated: GpuAmount
    closed: str
    healthy: bool
    source: ShareSource = ShareSource.PLUGIN

    def takes_pods(self, info: NodeInfo) -> bool:
        """Claims need nothing of the node's device plugin."""
        return not self.closed and (self.source is ShareSource.CLAIM or info.problem is None)


def gpu_states(info: NodeInfo) -> tuple[GpuState, ...]:
    """Every GPU of the node; none if its inventory is not known."""
    inventory = info.inventory
    if inventory is None:
        return ()
    if info.problem is None:
        state = info.state
        return tuple(
            _state(view.gpu, _allocated(view), inventory, is_cordoned=view.gpu.uuid in state.cordoned)
            for view in state.snapshot.gpus
        )
    held = occupied(one for hold in info.holds.values() for one in hold.allocations)
    return tuple(_state(gpu, held.get(gpu.uuid, NOTHING), inventory, is_cordoned=False) for gpu in inventory.gpus)


def _allocated(view: GpuView) -> GpuAmount:
    return GpuAmount(CORES_PER_GPU - view.free_cores, view.gpu.blocks - view.free_blocks)


def _state(gpu: Gpu, allocated: GpuAmount, inventory: Inventory, *, is_cordoned: bool) -> GpuState:
    health = inventory.health_of(gpu.uuid)
    if not health.healthy:
        closed = health.reason or "unhealthy"
    elif is_cordoned:
        closed = "cordoned"
    else:
        rejection = state_rejection(GpuView(gpu, 0, 0, health=health))
        closed = "" if rejection is None else rejection.value
    return GpuState(gpu, allocated, closed, health.healthy)


def node_row(info: NodeInfo, gpus: tuple[GpuState, ...], *, rows: tuple[GpuRow, ...] = ()) -> NodeRow:
    """`rows`: the GPUs, where the caller asked for them."""
    inventory = info.inventory
    usable = [each for each in gpus if each.takes_pods(info)]
    return NodeRow(
        node=info.name,
        problem=_problem(info, gpus),
        driver="" if inventory is None else inventory.driver.version,
        cuda="" if inventory is None else ".".join(map(str, inventory.driver.cuda)),
        models=dict(sorted(Counter(each.gpu.model for each in gpus).items())),
        gpu_count=len(gpus),
        free_gpus=sum(each.allocated == NOTHING for each in usable),
        unusable_gpus=len(gpus) - len(usable),
        cores=CORES_PER_GPU * len(gpus),
        cores_allocated=sum(each.allocated.cores for each in gpus),
        blocks=sum(each.gpu.blocks for each in gpus),
        blocks_allocated=sum(each.allocated.blocks for each in gpus),
        pods=len(info.holds),
        gpus=rows,
    )


def _problem(info: NodeInfo, gpus: tuple[GpuState, ...]) -> str:
    """That nothing is offered through the device plugin is none if claims get every GPU."""
    if info.problem in (NO_INVENTORY, AGENT_DOWN) and gpus and all(each.source is ShareSource.CLAIM for each in gpus):
        return ""
    return info.sentence or ("" if info.problem is None else info.problem.text)


def gpu_rows(
    info: NodeInfo,
    gpus: Iterable[GpuState],
    by_claims: Mapping[GpuUuid, tuple[HolderRow, ...]] = {},
    *,
    with_holders: bool = True,
) -> tuple[GpuRow, ...]:
    by_plugin = _holders(info)

    def row(each: GpuState) -> GpuRow:
        held = (*by_plugin.get(each.gpu.uuid, ()), *by_claims.get(each.gpu.uuid, ()))
        return _gpu_row(info, each, held if with_holders else (), pods=len({one.uid for one in held}))

    return tuple(map(row, gpus))


def _gpu_row(info: NodeInfo, state: GpuState, holders: tuple[HolderRow, ...], *, pods: int) -> GpuRow:
    gpu = state.gpu
    return GpuRow(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        model=gpu.model,
        numa=gpu.numa,
        memory_bytes=gpu.memory_bytes,
        blocks=gpu.blocks,
        cores_allocated=state.allocated.cores,
        blocks_allocated=state.allocated.blocks,
        healthy=state.healthy,
        usable=state.takes_pods(info),
        reason=state.closed,
        pods=pods,
        holders=holders,
        source=state.source,
    )


def _holders(info: NodeInfo) -> Mapping[GpuUuid, list[HolderRow]]:
    """By GPU, so that each share is looked at once."""
    found: dict[GpuUuid, list[HolderRow]] = defaultdict(list)
    for hold in info.holds.values():
        for one in hold.allocations:
            for share in one.shares:
                found[share.uuid].append(
                    HolderRow(
                        uid=hold.pod.uid,
                        namespace=hold.pod.namespace,
                        pod=hold.pod.name,
                        container=one.owner.name,
                        stage=stage_of(hold),
                        cores=share.cores,
                        blocks=share.blocks,
                    )
                )
    return found


def stage_of(hold: PodHold) -> PodStage:
    return PodStage.BOUND if hold.is_bound else PodStage.RESERVED


def held_pod_row(hold: PodHold, info: NodeInfo | None, pod: ClusterPod | None) -> PodRow:
    """`pod`: its last version, None if only the hold is known. `info`: its node, None if that is gone."""
    inventory = None if info is None else info.inventory
    minors = {} if inventory is None else {gpu.uuid: gpu.minor for gpu in inventory.gpus}
    located = [_container_row(one, minors) for one in hold.allocations]
    unlocated = [ContainerRow(each.name, each.request.cores, each.request.blocks) for each in hold.unlocated]
    return PodRow(
        uid=hold.pod.uid,
        namespace=hold.pod.namespace,
        pod=hold.pod.name,
        stage=stage_of(hold),
        node=hold.node,
        created=0.0 if pod is None else pod.pod.created,
        containers=(*located, *unlocated),
        reason=hold.problem,
        priority=hold.priority,
        gang=gang_name(pod),
        scheduler="" if pod is None else pod.scheduler,
    )


def _container_row(one: Allocation, minors: Mapping[GpuUuid, int]) -> ContainerRow:
    shares = tuple(ShareRow(each.uuid, minors.get(each.uuid), each.cores, each.blocks) for each in one.shares)
    return ContainerRow(one.owner.name, one.request.cores, one.request.blocks, shares)


def event_row(event: ClusterEvent) -> ClusterEventRow:
    return ClusterEventRow(
        kind=event.kind,
        first=event.first,
        at=event.at,
        count=event.count,
        uid="" if event.pod is None else event.pod.uid,
        namespace="" if event.pod is None else event.pod.namespace,
        pod="" if event.pod is None else event.pod.name,
        node=event.node,
        sentence=event.sentence,
    )


def waiting_pod_row(pod: ClusterPod, reason: str) -> PodRow:
    containers = (ContainerRow(each.ref.name, each.cores, each.blocks) for each in pod.pod.containers if each.is_gpu)
    return PodRow(
        uid=pod.uid,
        namespace=pod.pod.ref.namespace,
        pod=pod.pod.ref.name,
        stage=PodStage.WAITING,
        node=None,
        created=pod.pod.created,
        containers=tuple(containers),
        reason=reason,
        priority=pod.priority,
        gang=gang_name(pod),
        scheduler=pod.scheduler,
    )


def gang_name(pod: ClusterPod | None) -> str | None:
    return str(pod.gang) if pod is not None and pod.gang is not None else None


@dataclass(frozen=True, slots=True)
class Reason:
    """`kind` groups pods, `sentence` is for one pod."""

    kind: str
    sentence: str


def reason_of(pod: ClusterPod, verdict: LastVerdict | None) -> Reason:
    if pod.pod.deleting:
        return Reason(DELETED, "the pod is being deleted")
    if pod.gates:
        return Reason(GATED, gates_sentence(pod))
    if verdict is not None and not verdict.is_superseded_by(pod):
        return _judged(verdict)
    condition = pod.condition
    if condition is None or condition.is_true:
        return Reason(NOT_ASKED, NOT_ASKED)
    return Reason(REFUSED, " ".join(condition.message.split()) or REFUSED)


def claim_reason_of(pod: ClusterPod, missing: str) -> Reason:
    """Of a pod that asks by claims alone: kube-scheduler's own words.

    `missing`: what is said of a claim that is not there, empty if all are.
    """
    if pod.pod.deleting or pod.gates:
        return reason_of(pod, None)
    if missing:
        return Reason(NO_CLAIM, missing)
    condition = pod.condition
    if condition is None or condition.is_true:
        return Reason(NOT_ASKED, "kube-scheduler has not tried the pod yet")
    sentence = " ".join(condition.message.split())
    return Reason(NO_DEVICES if _CANNOT_ALLOCATE in sentence else REFUSED, sentence or REFUSED)


def _judged(verdict: LastVerdict) -> Reason:
    if verdict.fits:
        where = f"node {verdict.node}" if verdict.node else "a node"
        return Reason(BINDING, f"{where} was chosen; kube-scheduler has not bound the pod yet")
    counted = verdict.counted[:_MOST_REASONS]
    if not counted:
        return Reason(NOT_ASKED, "kube-scheduler asked about no node")
    named = ", ".join(f"{why.text} ({count})" for why, count in counted)
    return Reason(counted[0][0].text, f"it fits on none of {len(verdict.names)} nodes: {named}")
