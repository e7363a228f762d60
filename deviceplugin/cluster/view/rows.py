"""The rows of the view: a node, its GPUs and who holds them, and the pods.

In: nodes of the scheduler's cache and pods, as they are now. Out: the types of `model.cluster_view`. What is allocated
is what placement counts, so a container whose GPU is not known yet counts on every GPU where it may be. Why a pod waits
is a sentence, and one of few constant texts, so that pods can be counted by it; `/explain` has the whole answer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHold, ClaimHolds, requests_of, whole_gpus_of
from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.explain.explain import gates_sentence
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict
from deviceplugin.cluster.extender.recent_events import ClusterEvent
from deviceplugin.cluster.extender.rejection import AGENT_DOWN, NO_INVENTORY
from deviceplugin.model.allocation import Allocation
from deviceplugin.model.claims import DeviceRequest
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
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
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
_MOST_SHARES = 1024
_MOST_ASKED = 256


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU with what is allocated of it; `closed` says why it takes no new pods, `source` how it is offered."""

    gpu: Gpu
    allocated: GpuAmount
    closed: str
    healthy: bool
    source: ShareSource = ShareSource.PLUGIN

    def takes_pods(self, info: NodeInfo) -> bool:
        """Claims need the node, and nothing of its device plugin."""
        serves = info.node is not None if self.source is ShareSource.CLAIM else info.problem is None
        return serves and not self.closed


def gpu_states(info: NodeInfo) -> tuple[GpuState, ...]:
    """Every GPU of the node, in the order of the minors where claims have some."""
    return _plugin_states(info) if info.claims.is_empty else _all_states(info)


def _all_states(info: NodeInfo) -> tuple[GpuState, ...]:
    """A GPU has the source by which it is offered now; what the other still holds of it counts too."""
    held: dict[GpuUuid, GpuAmount] = defaultdict(GpuAmount)
    for hold in info.claims.holds:
        held[info.gpu_of(hold.device)[0]] += hold.amount
    found = {state.gpu.uuid: state for state in _plugin_states(info)}
    for each in info.claims.gpus.values():
        known = found.get(each.gpu.uuid) or GpuState(each.gpu, NOTHING, "", healthy=True)
        found[each.gpu.uuid] = replace(known, closed=each.closed, healthy=each.healthy, source=ShareSource.CLAIM)
    states = (replace(state, allocated=state.allocated + held[uuid]) for uuid, state in found.items())
    return tuple(sorted(states, key=lambda each: (each.gpu.minor, each.gpu.uuid)))


def _plugin_states(info: NodeInfo) -> tuple[GpuState, ...]:
    """None if its inventory is not known."""
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


def node_row(info: NodeInfo, gpus: tuple[GpuState, ...], *, by_claims: int, rows: tuple[GpuRow, ...] = ()) -> NodeRow:
    """`by_claims`: how many pods hold something by claims alone; `rows`: the GPUs, where the caller asked for them."""
    driver = _driver(info)
    usable = [each for each in gpus if each.takes_pods(info)]
    return NodeRow(
        node=info.name,
        problem=_problem(info, gpus),
        driver="" if driver is None else driver.version,
        cuda="" if driver is None else ".".join(map(str, driver.cuda)),
        models=dict(sorted(Counter(each.gpu.model for each in gpus).items())),
        gpu_count=len(gpus),
        free_gpus=sum(each.allocated == NOTHING for each in usable),
        unusable_gpus=len(gpus) - len(usable),
        cores=CORES_PER_GPU * len(gpus),
        cores_allocated=sum(each.allocated.cores for each in gpus),
        blocks=sum(each.gpu.blocks for each in gpus),
        blocks_allocated=sum(each.allocated.blocks for each in gpus),
        pods=len(info.holds) + by_claims,
        gpus=rows,
    )


def _driver(info: NodeInfo) -> Driver | None:
    """Of a node whose GPUs are all for claims the slice says it too."""
    said = None if info.inventory is None else info.inventory.driver
    return said if said is not None and said.version else info.claims.driver or said


def _problem(info: NodeInfo, gpus: tuple[GpuState, ...]) -> str:
    """That nothing is offered through the device plugin is none if claims get every GPU."""
    if info.problem in (NO_INVENTORY, AGENT_DOWN) and gpus and all(each.source is ShareSource.CLAIM for each in gpus):
        return ""
    return info.sentence or ("" if info.problem is None else info.problem.text)


def gpu_rows(info: NodeInfo, gpus: Iterable[GpuState], *, with_holders: bool = True) -> tuple[GpuRow, ...]:
    holders = _holders(info)

    def row(each: GpuState) -> GpuRow:
        held = tuple(holders.get(each.gpu.uuid, ()))
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
    for claimed in info.claims.holds:
        found[info.gpu_of(claimed.device)[0]].append(_claim_holder(claimed))
    return found


def _claim_holder(hold: ClaimHold) -> HolderRow:
    """A claim that one container uses is shown as that container, as the agent does it."""
    pod, container = hold.holder.pod, hold.holder.name
    return HolderRow(
        uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        stage=stage_of(hold),
        cores=hold.amount.cores,
        blocks=hold.amount.blocks,
        source=ShareSource.CLAIM,
        claim=hold.claim.name,
        users=hold.users,
    )


def stage_of(hold: PodHold | ClaimHold) -> PodStage:
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


def claimed_containers(pod: ClusterPod, info: NodeInfo) -> tuple[ContainerRow, ...]:
    """What the containers of a pod hold by claims, in the pod's order. A claim that several share counts for each.

    The sums are of all; single shares are shown of a part, where hundreds of containers share hundreds of claims.
    """
    found, left = [], _MOST_SHARES
    for name, held in info.claims.held_by(pod):
        if held:
            found.append(_container(name, held, held[:left], info))
            left = max(0, left - len(held))
    return tuple(found)


def _container(name: str, held: list[ClaimHold], first: list[ClaimHold], info: NodeInfo) -> ContainerRow:
    cores, blocks = sum((each.amount for each in held), NOTHING)
    shares = tuple(ShareRow(*info.gpu_of(each.device), *each.amount) for each in first)
    return ContainerRow(name, cores, blocks, shares, source=ShareSource.CLAIM, claim=held[0].claim.name)


def asked_rows(pod: ClusterPod, claims: ClaimHolds) -> tuple[ContainerRow, ...]:
    """What the containers of a pod that waits ask for; of a prioritized list the first. Of very many rows a part."""
    return tuple(islice(_asked_rows(pod, claims), _MOST_ASKED))


def _asked_rows(pod: ClusterPod, claims: ClaimHolds) -> Iterator[ContainerRow]:
    for container in pod.pod.containers:
        for name, requests in requests_of(container).items():
            claim = claims.claim((pod.pod.ref.namespace, name))
            for each in () if claim is None else claim.requests:
                if each.alternatives and ("" in requests or each.name in requests):
                    yield _asked_row(container.ref.name, each.alternatives[0], name)
    for container_name, count in whole_gpus_of(pod):
        yield _asked_row(container_name, DeviceRequest(claims.names.whole_gpus, count), None)


def _asked_row(container: str, wanted: DeviceRequest, claim: str | None) -> ContainerRow:
    """All memory of a GPU, whichever it will be, is 0 blocks: as for whole GPUs of the device plugin."""
    count = wanted.count or 1
    cores = CORES_PER_GPU if wanted.cores is None else wanted.cores
    return ContainerRow(container, cores * count, (wanted.blocks or 0) * count, source=ShareSource.CLAIM, claim=claim)


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


def requested_containers(pod: ClusterPod) -> tuple[ContainerRow, ...]:
    """What they ask by the device plugin's resources."""
    return tuple(ContainerRow(each.ref.name, each.cores, each.blocks) for each in pod.pod.containers if each.is_gpu)


def pod_row(pod: ClusterPod, stage: PodStage, node: str, containers: tuple[ContainerRow, ...], reason: str) -> PodRow:
    """Of a pod without a hold; `node` is empty if it waits."""
    return PodRow(
        uid=pod.uid,
        namespace=pod.pod.ref.namespace,
        pod=pod.pod.ref.name,
        stage=stage,
        node=node or None,
        created=pod.pod.created,
        containers=containers,
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
    """Of a pod that asks by claims alone, by kube-scheduler's own words.

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
