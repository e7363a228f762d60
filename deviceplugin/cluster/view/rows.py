"""The rows of the view: a node, its GPUs and who holds them, and the pods.

In: nodes of the scheduler's cache and pods, as they are now. Out: the types of `model.cluster_view`. What is allocated
is what placement counts, so a container whose GPU is not known yet counts on every GPU where it may be. Why a pod waits
is a sentence, and one of few constant texts, so that pods can be counted by it; `/explain` has the whole answer.

What the pods of each namespace have, and what agents say that they use of it, added up. Containers of one pod that run
one after the other count once. Invariant: `cores_idle` is of shares whose use is known.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHold, ClaimHolds, requests_of, whole_gpus_of
from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.explain.verdicts import Reason, reason_of
from deviceplugin.cluster.extender.rejection import AGENT_DOWN, NO_INVENTORY
from deviceplugin.cluster.view.live import NodeUse, known_sum
from deviceplugin.model.allocation import Allocation, ContainerRef
from deviceplugin.model.claims import DeviceRequest
from deviceplugin.model.cluster_view import (
    ContainerRow,
    GpuRow,
    HolderRow,
    NamespaceRow,
    NodeRow,
    PodStage,
    ShareLive,
    ShareRow,
    ShareSource,
    idle_of,
)
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import NOTHING, GpuAmount
from deviceplugin.placement.snapshot import GpuView, occupied
from deviceplugin.structs import replace

NO_CLAIM = "a ResourceClaim of it does not exist"
NO_DEVICES = "its ResourceClaims can be allocated on no node"
_CANNOT_ALLOCATE = "cannot allocate all claims"  # in kube-scheduler's message
_MOST_SHARES = 1024
_MOST_ASKED = 256


def gpu_rows(info: NodeInfo) -> tuple[GpuRow, ...]:
    """Every GPU of the node, in the order of the minors where claims have some; who holds it is not said yet."""
    return _plugin_rows(info) if info.claims.is_empty else _all_rows(info)


def _all_rows(info: NodeInfo) -> tuple[GpuRow, ...]:
    """A GPU has the source by which it is offered now; what the other still holds of it counts too."""
    held: dict[str, GpuAmount] = defaultdict(GpuAmount)
    for hold in info.claims.holds:
        held[info.gpu_of(hold.device)[0]] += hold.amount
    found = {row.uuid: row for row in _plugin_rows(info)}
    for each in info.claims.gpus.values():
        known = found.get(each.gpu.uuid) or _gpu_row(each.gpu, NOTHING, each.closed)
        # Claims need nothing of the node's device plugin.
        reason = each.closed or (_problem_of(info) if info.node is None else "")
        found[known.uuid] = replace(
            known, reason=reason, healthy=each.healthy, available=not reason, source=ShareSource.CLAIM
        )
    rows = (_holding_more(row, held[row.uuid]) for row in found.values())
    return tuple(sorted(rows, key=lambda each: (each.minor, each.uuid)))


def _holding_more(row: GpuRow, more: GpuAmount) -> GpuRow:
    cores, blocks = row.cores_allocated + more.cores, row.blocks_allocated + more.blocks
    return replace(row, cores_allocated=cores, blocks_allocated=blocks) if more != NOTHING else row


def _plugin_rows(info: NodeInfo) -> tuple[GpuRow, ...]:
    """None if its inventory is not known."""
    inventory = info.inventory
    if inventory is None:
        return ()
    if info.problem is None:
        views = info.state.snapshot.gpus
        allocated = {view.gpu.uuid: _allocated(view) for view in views}
    else:
        allocated = occupied(one for hold in info.holds.values() for one in hold.allocations)
    rows, problem = [], _problem_of(info)
    for gpu in inventory.gpus:
        row = _gpu_row(gpu, allocated.get(gpu.uuid, NOTHING), info.closed(gpu) or problem)
        rows.append(row if inventory.health_of(gpu.uuid).healthy else replace(row, healthy=False))
    return tuple(rows)


def _allocated(view: GpuView) -> GpuAmount:
    return GpuAmount(CORES_PER_GPU - view.free_cores, view.gpu.blocks - view.free_blocks)


def _gpu_row(gpu: Gpu, allocated: GpuAmount, reason: str) -> GpuRow:
    return GpuRow(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        model=gpu.model,
        numa=gpu.numa,
        memory_bytes=gpu.memory_bytes,
        blocks=gpu.blocks,
        cores_allocated=allocated.cores,
        blocks_allocated=allocated.blocks,
        healthy=True,
        available=not reason,
        reason=reason,
    )


def node_row(info: NodeInfo, gpus: tuple[GpuRow, ...], *, by_claims: int) -> NodeRow:
    """Without its GPUs. `by_claims`: how many pods hold something by claims alone."""
    driver = _driver(info)
    available = [each for each in gpus if each.available]
    problem = _problem(info, gpus)
    return NodeRow(
        node=info.name,
        problem=problem,
        driver="" if driver is None else driver.version,
        cuda="" if driver is None else ".".join(map(str, driver.cuda)),
        models=dict(sorted(Counter(each.model for each in gpus).items())),
        gpu_count=len(gpus),
        free_gpus=sum(not (each.cores_allocated or each.blocks_allocated) for each in available),
        unavailable_gpus=len(gpus) - len(available),
        cores=CORES_PER_GPU * len(gpus),
        cores_allocated=sum(each.cores_allocated for each in gpus),
        blocks=sum(each.blocks for each in gpus),
        blocks_allocated=sum(each.blocks_allocated for each in gpus),
        pods=len(info.holds) + by_claims,
        unavailable_by_reason={} if problem else _minors_by_reason(gpus),
    )


def _minors_by_reason(gpus: Iterable[GpuRow]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for each in gpus:
        if not each.available:
            found[each.reason] = (*found.get(each.reason, ()), each.minor)
    return found


def _driver(info: NodeInfo) -> Driver | None:
    """Of a node whose GPUs are all for claims the slice says it too."""
    said = None if info.inventory is None else info.inventory.driver
    return said if said is not None and said.version else info.claims.driver or said


def _problem(info: NodeInfo, gpus: tuple[GpuRow, ...]) -> str:
    """That nothing is offered through the device plugin is none if claims get every GPU."""
    if info.problem in (NO_INVENTORY, AGENT_DOWN) and gpus and all(each.source is ShareSource.CLAIM for each in gpus):
        return ""
    return _problem_of(info)


def _problem_of(info: NodeInfo) -> str:
    return info.sentence or ("" if info.problem is None else info.problem.text)


def with_holders(info: NodeInfo, rows: Iterable[GpuRow], *, named: frozenset[str] | None) -> tuple[GpuRow, ...]:
    """How many hold a part of each GPU; who, in the namespaces that may be `named`; None: in all."""
    holders = _holders(info)
    counted = ((row, tuple(holders.get(row.uuid, ()))) for row in rows)
    return tuple(
        replace(
            row,
            pods=len({each.uid for each in held}),
            holders=tuple([each for each in held if named is None or each.namespace in named]),
        )
        for row, held in counted
    )


def _holders(info: NodeInfo) -> Mapping[str, list[HolderRow]]:
    """By GPU, so that each share is looked at once."""
    found: dict[str, list[HolderRow]] = defaultdict(list)
    for hold in info.holds.values():
        for one in hold.allocations:
            for share in one.shares:
                found[share.uuid].append(_holder(hold, one.owner, share.cores, share.blocks))
    for claimed in info.claims.holds:  # one that one container uses is shown as that container, as the agent does it
        row = _holder(claimed, claimed.holder, *claimed.amount)
        row = replace(row, source=ShareSource.CLAIM, claim=claimed.claim.name, users=claimed.users)
        found[info.gpu_of(claimed.device)[0]].append(row)
    return found


def _holder(hold: PodHold | ClaimHold, of: ContainerRef, cores: int, blocks: int) -> HolderRow:
    return HolderRow(of.pod.uid, of.pod.namespace, of.pod.name, of.name, stage_of(hold), cores, blocks)


def stage_of(hold: PodHold | ClaimHold) -> PodStage:
    return PodStage.BOUND if hold.is_bound else PodStage.RESERVED


def held_containers(hold: PodHold, info: NodeInfo | None) -> tuple[ContainerRow, ...]:
    """`info`: the node, None if that is gone."""
    minors = {} if info is None else info.minors
    located = [_container_row(one, minors) for one in hold.allocations]
    unlocated = [ContainerRow(each.name, each.request.cores, each.request.blocks) for each in hold.unlocated]
    return (*located, *unlocated)


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


def requested_containers(pod: ClusterPod) -> tuple[ContainerRow, ...]:
    """What they ask by the device plugin's resources."""
    return tuple(ContainerRow(each.ref.name, each.cores, each.blocks) for each in pod.pod.containers if each.is_gpu)


def claim_reason_of(pod: ClusterPod, missing: str) -> Reason:
    """Of a pod that asks by claims alone, by kube-scheduler's own words.

    `missing`: what is said of a claim that is not there, empty if all are.
    """
    known = reason_of(pod, None)
    if pod.pod.deleting or pod.gates:
        return known
    if missing:
        return Reason(NO_CLAIM, lambda: missing)
    if pod.condition is None or not pod.is_refused:
        return Reason(known.kind, lambda: "kube-scheduler has not tried the pod yet")
    return Reason(NO_DEVICES, known.sentence) if _CANNOT_ALLOCATE in pod.condition.message else known


@dataclass(slots=True)
class NamespaceSums:
    """Of one namespace, or of several; each pod and each share is added once."""

    pods: int = 0
    cores: int = 0
    blocks: int = 0
    cores_used: float | None = None
    cores_idle: float | None = None
    memory_used_bytes: int | None = None
    throttled_seconds: float | None = None
    cores_measured: int | None = None

    def allocate(self, amount: GpuAmount) -> None:
        self.cores += amount.cores
        self.blocks += amount.blocks

    def use(self, cores: int, live: ShareLive | None) -> None:
        """`cores`: of the share whose use this is."""
        if live is None:
            return
        self.cores_used = known_sum((self.cores_used, live.cores_used))
        self.cores_idle = known_sum((self.cores_idle, idle_of(cores, live.cores_used)))
        self.memory_used_bytes = known_sum((self.memory_used_bytes, live.memory_used_bytes))
        self.throttled_seconds = known_sum((self.throttled_seconds, live.throttled_seconds))
        if live.cores_used is not None:
            self.cores_measured = known_sum((self.cores_measured, cores))

    def add(self, other: "NamespaceSums") -> None:
        self.pods += other.pods
        self.cores += other.cores
        self.blocks += other.blocks
        self.cores_used = known_sum((self.cores_used, other.cores_used))
        self.cores_idle = known_sum((self.cores_idle, other.cores_idle))
        self.memory_used_bytes = known_sum((self.memory_used_bytes, other.memory_used_bytes))
        self.throttled_seconds = known_sum((self.throttled_seconds, other.throttled_seconds))
        self.cores_measured = known_sum((self.cores_measured, other.cores_measured))

    def row(self, namespace: str) -> NamespaceRow:
        used = (self.cores_used, self.cores_idle, self.memory_used_bytes, self.throttled_seconds, self.cores_measured)
        return NamespaceRow(namespace, self.pods, self.cores, self.blocks, *used)


def total(sums: Iterable[NamespaceSums]) -> NamespaceSums:
    found = NamespaceSums()
    for each in sums:
        found.add(each)
    return found


def add_node(sums: Mapping[str, NamespaceSums], info: NodeInfo, by_claims: Iterable[ClusterPod], use: NodeUse) -> None:
    """`by_claims`: pods that have something of this node by claims alone; `sums` makes what it has not."""
    for hold in info.holds.values():
        found = sums[hold.pod.namespace]
        found.pods += 1
        found.allocate(_allocated_by(hold))
        for owner, uuid, cores in _shares_of(hold):
            found.use(cores, use.shares.get((owner.pod.uid, owner.name, uuid)))
    for pod in by_claims:
        sums[pod.pod.ref.namespace].pods += 1
    for claimed in info.claims.holds:
        found, owner = sums[claimed.claim.namespace], claimed.holder
        found.allocate(claimed.amount)
        live = use.shares.get((owner.pod.uid, owner.name, info.gpu_of(claimed.device)[0]))
        found.use(claimed.amount.cores, live)


def _allocated_by(hold: PodHold) -> GpuAmount:
    unlocated = (GpuAmount(each.request.cores, each.request.blocks) for each in hold.unlocated)
    return sum((*occupied(hold.allocations).values(), *unlocated), NOTHING)


def _shares_of(hold: PodHold) -> Iterator[tuple[ContainerRef, str, int]]:
    for one in hold.allocations:
        for share in one.shares:
            yield one.owner, share.uuid, share.cores
