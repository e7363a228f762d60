"""The GPUs that claims have on a node: as rows of the view, and as room for the claims of a pod that waits.

In: the claims of a node (`claim_books`), and the GPUs that its device plugin has. Out: `GpuState`s with both, holders
by GPU, rows of pods; a `Fit`. A GPU has the source by which it is offered now; what the other still holds of it counts
too. A claim that one container uses is shown as that container, as the agent does it; one that several share, or none
yet, by its own name and that of its request. A fit takes devices as kube-scheduler does it, request by request and the
first GPUs with room; selectors, constraints and tolerations are kube-scheduler's alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from deviceplugin.cluster.view.claim_books import AskedPart, ClaimPart, NodeClaims
from deviceplugin.cluster.view.rows import GpuState, gang_name
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.claims import ClaimNames, DeviceRequest, OfferedGpu, minor_of_device
from deviceplugin.model.cluster_view import ContainerRow, HolderRow, PodRow, PodStage, ShareRow, ShareSource
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import NOTHING, GpuAmount

FAR = 1 << 30
_MOST_SHARES = 1024
_MOST_ASKED = 256


def with_claims(
    states: tuple[GpuState, ...], claims: NodeClaims, inventory: Inventory | None, names: ClaimNames
) -> tuple[GpuState, ...]:
    """Every GPU of the node, in the order of the minors."""
    held: dict[GpuUuid, GpuAmount] = defaultdict(GpuAmount)
    for part in claims.parts:
        held[gpu_of(part.device, claims, inventory)[0]] += GpuAmount(part.cores, part.blocks)
    offered = {each.gpu.uuid: each for each in claims.gpus}
    found = [_both(state, held.get(state.gpu.uuid, NOTHING), offered.get(state.gpu.uuid), names) for state in states]
    known = {state.gpu.uuid for state in states}
    for uuid, each in offered.items():
        if uuid not in known:
            found.append(_both(GpuState(each.gpu, NOTHING, "", healthy=True), held.get(uuid, NOTHING), each, names))
    return tuple(sorted(found, key=lambda each: (each.gpu.minor, each.gpu.uuid)))


def _both(state: GpuState, held: GpuAmount, offered: OfferedGpu | None, names: ClaimNames) -> GpuState:
    allocated = state.allocated + held
    if offered is None:
        return replace(state, allocated=allocated)
    closed = closed_text(offered, names)
    healthy = all(taint.key != names.unhealthy for taint in offered.taints)
    return GpuState(state.gpu, allocated, closed, healthy, ShareSource.CLAIM)


def closed_text(offered: OfferedGpu, names: ClaimNames) -> str:
    """Why the GPU gets no new pods, by its taints."""
    words = {names.unhealthy: "unhealthy", names.cordoned: "cordoned"}
    texts = (
        (each.value or words[each.key])
        if each.key in words
        else f"taint {each.key}{f'={each.value}' if each.value else ''}"
        for each in offered.taints
    )
    return ", ".join(texts)


def gpu_of(device: str, claims: NodeClaims, inventory: Inventory | None) -> tuple[GpuUuid, int | None]:
    """The GPU of a device that is held, by UUID and minor.

    One that is not offered any more may be the device plugin's now. Where nobody reports it, the name of the device
    stands for the UUID.
    """
    if (offered := claims.devices.get(device)) is not None:
        return offered.gpu.uuid, offered.gpu.minor
    minor, known = minor_of_device(device), () if inventory is None else inventory.gpus
    return next(((gpu.uuid, gpu.minor) for gpu in known if gpu.minor == minor), (GpuUuid(device), None))


def holders(claims: NodeClaims, inventory: Inventory | None) -> Mapping[GpuUuid, tuple[HolderRow, ...]]:
    """By GPU."""
    found: dict[GpuUuid, list[HolderRow]] = defaultdict(list)
    for part in claims.parts:
        found[gpu_of(part.device, claims, inventory)[0]].append(_holder(part))
    return {uuid: tuple(each) for uuid, each in found.items()}


def _holder(part: ClaimPart) -> HolderRow:
    who, container = named(part)
    return HolderRow(
        uid=who.uid,
        namespace=who.namespace,
        pod=who.name,
        container=container,
        stage=PodStage.BOUND if part.is_bound else PodStage.RESERVED,
        cores=part.cores,
        blocks=part.blocks,
        source=ShareSource.CLAIM,
        claim=part.claim.name,
        users=part.users,
    )


def named(part: ClaimPart) -> tuple[PodRef, str]:
    """Under which names a part is shown, and is found in what the agent says of use."""
    if part.user is not None:
        return part.user.pod, part.user.container
    return PodRef(PodUid(part.claim.uid), part.claim.namespace, part.claim.name), part.request


def containers_of(pod: ClusterPod, claims: NodeClaims, inventory: Inventory | None) -> tuple[ContainerRow, ...]:
    """What the containers of a pod hold by claims, in the pod's order. A claim that several share counts for each.

    The sums are of all; single shares are shown of a part, where hundreds of containers share hundreds of claims.
    """
    found, left = [], _MOST_SHARES
    for name, parts in claims.held_by(pod):
        if parts:
            found.append(_container(name, parts, parts[:left], claims, inventory))
            left = max(0, left - len(parts))
    return tuple(found)


def _container(
    name: str,
    parts: tuple[ClaimPart, ...],
    first: tuple[ClaimPart, ...],
    claims: NodeClaims,
    inventory: Inventory | None,
) -> ContainerRow:
    shares = tuple(ShareRow(*gpu_of(each.device, claims, inventory), each.cores, each.blocks) for each in first)
    return ContainerRow(
        name,
        sum(each.cores for each in parts),
        sum(each.blocks for each in parts),
        shares,
        source=ShareSource.CLAIM,
        claim=parts[0].claim.name,
    )


def asked_rows(asked: Iterable[AskedPart]) -> tuple[ContainerRow, ...]:
    """What the containers of a pod that waits ask for; of a prioritized list the first. Of very many rows a part."""
    return tuple(_asked_row(each) for each in islice(asked, _MOST_ASKED) if each.alternatives)


def _asked_row(asked: AskedPart) -> ContainerRow:
    """All memory of a GPU, whichever it will be, is 0 blocks: as for whole GPUs of the device plugin."""
    first = asked.alternatives[0]
    count = first.count or 1
    cores = CORES_PER_GPU if first.cores is None else first.cores
    claim = None if asked.claim is None else asked.claim[1]
    return ContainerRow(
        asked.container, cores * count, (first.blocks or 0) * count, source=ShareSource.CLAIM, claim=claim
    )


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


@dataclass(frozen=True, slots=True)
class FreeGpu:
    """What claims can still have of a GPU; `closed`: its taints. `capacity` is what they can have at all."""

    gpu: Gpu
    device: str
    capacity: GpuAmount
    free: GpuAmount
    closed: str
    parts: tuple[ClaimPart, ...]

    def lacks(self, wanted: DeviceRequest) -> GpuAmount:
        return demand(wanted, self.gpu) - self.free

    def has_room(self, wanted: DeviceRequest) -> bool:
        return not self.closed and self.free.covers(demand(wanted, self.gpu))

    def distance(self, wanted: DeviceRequest) -> int:
        """How much must become free, in thousandths of the GPU; FAR where the end of no claim helps."""
        if self.closed or not self.capacity.covers(demand(wanted, self.gpu)):
            return FAR
        lacks = self.lacks(wanted)
        return max(lacks.cores * 10, lacks.blocks * 1000 // max(1, self.gpu.blocks))


@dataclass(frozen=True, slots=True)
class Fit:
    """`short`: the first request without room, after those before it were placed; None if all have room."""

    gpus: tuple[FreeGpu, ...]
    short: int | None


def demand(wanted: DeviceRequest, gpu: Gpu) -> GpuAmount:
    cores = CORES_PER_GPU if wanted.cores is None else wanted.cores
    return GpuAmount(cores, gpu.blocks if wanted.blocks is None else wanted.blocks)


def free_gpus(claims: NodeClaims, names: ClaimNames) -> tuple[FreeGpu, ...]:
    """In the order of the slice, which is that in which kube-scheduler tries them."""
    parts: dict[str, list[ClaimPart]] = defaultdict(list)
    for part in claims.parts:
        parts[part.device].append(part)
    found = []
    for each in claims.gpus:
        mine, capacity = tuple(parts.get(each.device, ())), GpuAmount(each.cores, each.blocks)
        held = GpuAmount(sum(part.cores for part in mine), sum(part.blocks for part in mine))
        closed = closed_text(each, names)
        found.append(FreeGpu(each.gpu, each.device, capacity, capacity - held, closed, mine))
    return tuple(found)


def fit(requests: Iterable[tuple[DeviceRequest, ...]], gpus: tuple[FreeGpu, ...]) -> Fit:
    """Each request by the first of its alternatives that has room."""
    taken: dict[str, GpuAmount] = {}
    for number, alternatives in enumerate(requests):
        if not take(alternatives, gpus, taken):
            return Fit(gpus, number)
    return Fit(gpus, None)


def take(alternatives: tuple[DeviceRequest, ...], gpus: tuple[FreeGpu, ...], taken: dict[str, GpuAmount]) -> bool:
    """Whether one more request has room beside what is taken, by device; adds it there."""
    chosen = next(filter(None, (_taken(each, gpus, taken) for each in alternatives)), None)
    taken |= chosen or {}
    return chosen is not None


def _taken(
    wanted: DeviceRequest, gpus: tuple[FreeGpu, ...], taken: Mapping[str, GpuAmount]
) -> dict[str, GpuAmount] | None:
    found: dict[str, GpuAmount] = {}
    opened = [each for each in gpus if not each.closed]
    count = len(opened) if wanted.count is None else wanted.count
    for each in opened if len(opened) >= count else ():
        needed = demand(wanted, each.gpu)
        if (already := taken.get(each.device)) is not None:
            needed += already
        if each.free.covers(needed):
            found[each.device] = needed
            if len(found) == count:
                return found
    return None
