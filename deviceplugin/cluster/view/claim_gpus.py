"""The GPUs that claims have on a node, as rows of the view.

In: a node of the scheduler's cache, with its GPUs of both kinds. Out: `GpuState`s with both, holders
by GPU, rows of pods. A GPU has the source by which it is offered now; what the other still holds of it counts
too. A claim that one container uses is shown as that container, as the agent does it; one that several share, or none
yet, by its own name and that of its request.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from deviceplugin.cluster.extender.cache.claim_holds import ClaimGpu, ClaimHold, ClaimHolds, requests_of, whole_gpus_of
from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.view.rows import GpuState, gang_name
from deviceplugin.model.claims import DeviceRequest
from deviceplugin.model.cluster_view import ContainerRow, HolderRow, PodRow, PodStage, ShareRow, ShareSource
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import NOTHING, GpuAmount

_MOST_SHARES = 1024
_MOST_ASKED = 256


def with_claims(states: tuple[GpuState, ...], info: NodeInfo) -> tuple[GpuState, ...]:
    """Every GPU of the node, in the order of the minors."""
    if info.claims.is_empty:
        return states
    held: dict[GpuUuid, GpuAmount] = defaultdict(GpuAmount)
    for hold in info.claims.holds:
        held[info.gpu_of(hold.device)[0]] += hold.amount
    offered = {each.gpu.uuid: each for each in info.claims.gpus.values()}
    found = [_both(state, held.get(state.gpu.uuid, NOTHING), offered.get(state.gpu.uuid)) for state in states]
    known = {state.gpu.uuid for state in states}
    for uuid, each in offered.items():
        if uuid not in known:
            found.append(_both(GpuState(each.gpu, NOTHING, "", healthy=True), held.get(uuid, NOTHING), each))
    return tuple(sorted(found, key=lambda each: (each.gpu.minor, each.gpu.uuid)))


def _both(state: GpuState, held: GpuAmount, offered: ClaimGpu | None) -> GpuState:
    allocated = state.allocated + held
    if offered is None:
        return replace(state, allocated=allocated)
    return GpuState(state.gpu, allocated, offered.closed, offered.healthy, ShareSource.CLAIM)


def holders(info: NodeInfo) -> Mapping[GpuUuid, tuple[HolderRow, ...]]:
    """By GPU."""
    found: dict[GpuUuid, list[HolderRow]] = defaultdict(list)
    for hold in info.claims.holds:
        found[info.gpu_of(hold.device)[0]].append(_holder(hold))
    return {uuid: tuple(each) for uuid, each in found.items()}


def _holder(hold: ClaimHold) -> HolderRow:
    holder = hold.holder
    return HolderRow(
        uid=holder.pod.uid,
        namespace=holder.pod.namespace,
        pod=holder.pod.name,
        container=holder.name,
        stage=PodStage.BOUND if hold.is_bound else PodStage.RESERVED,
        cores=hold.amount.cores,
        blocks=hold.amount.blocks,
        source=ShareSource.CLAIM,
        claim=hold.claim.name,
        users=hold.users,
    )


def containers_of(pod: ClusterPod, info: NodeInfo) -> tuple[ContainerRow, ...]:
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


def pod_row(
    pod: ClusterPod, stage: PodStage, node: str | None, containers: tuple[ContainerRow, ...], reason: str
) -> PodRow:
    """Of a pod that asks by claims alone."""
    return PodRow(
        uid=pod.uid,
        namespace=pod.pod.ref.namespace,
        pod=pod.pod.ref.name,
        stage=stage,
        node=node,
        created=pod.pod.created,
        containers=containers,
        reason=reason,
        priority=pod.priority,
        gang=gang_name(pod),
        scheduler=pod.scheduler,
    )
