"""Why a pod with ResourceClaims waits, or which devices it has.

In: the cache, with what nodes offer to claims. Out: an `Explanation`, the same document as for the device plugin's
pods. kube-scheduler decides, and its own sentence is in `condition`; beside it stands what the nodes have now for each
request, evaluated for this answer. Devices are taken as kube-scheduler does it, request by request and the first GPUs
with room; selectors, constraints and tolerations are its own. A pod may name many claims, each with many requests:
equal ones are judged once, of very many only a part, and where the steps of the answer are spent, so is it with the
nodes that are left. The answer says how many requests and nodes were not compared.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from deviceplugin.cluster.extender.cache.claim_holds import ClaimGpu, ClaimHold, NodeClaims, users_of, whole_gpus_of
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.evaluate import (
    FAR,
    GpuLines,
    Lacking,
    Shortfall,
    beyond_of,
    distance_of,
    memory_beyond,
    nearest_gpus,
    place_of,
)
from deviceplugin.cluster.extender.explain.explain import (
    MOST_NODES,
    evaluated,
    held_back,
    must_become_free,
    node_verdict,
    of_nodes,
)
from deviceplugin.cluster.extender.rejection import ROOM_FOR_CLAIMS, Rejection
from deviceplugin.cluster.extender.turns import AnswerBudget
from deviceplugin.latest import others_turn
from deviceplugin.model.claims import Claim, DeviceRequest
from deviceplugin.model.cluster_view import Explanation, NodeVerdict
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import CORES_PER_GPU, memory_text
from deviceplugin.placement.describe import listed
from deviceplugin.placement.fit import NOTHING, GpuAmount

NO_ROOM = Rejection("too few GPUs with enough free cores and memory")
TAINTED = Rejection("taints close GPUs that are needed")
ELSEWHERE = Rejection("a claim of the pod is allocated on another node", resolvable=False)
NOT_COMPARED = Rejection("not compared, because the pod asks for so many different devices")
_MOST_NEEDS = 256  # requests, as many as a pod may have claims
_MOST_LINES = 256  # of requests that are not evaluated
_MOST_NAMED = 16  # containers that share a device
_STEPS_PER_TURN = 4_000  # some 3 ms; a step is one look at one GPU for one alternative
_MOST_STEPS = 900_000  # some 0.8 s
_STEPS_OF_NODE = 30
_OTHER_CHECKS = (
    "selectors, constraints or tolerations of its claims, CPU, memory, affinity or another check that only "
    "kube-scheduler makes"
)

_CHANGES = {
    ROOM_FOR_CLAIMS: "nothing on its GPUs",
    TAINTED: "GPUs must become healthy, or be uncordoned",
    ELSEWHERE: "",
}

Alternatives = tuple[DeviceRequest, ...]


class FreeGpu(msgspec.Struct, frozen=True):
    """A GPU that only claims get, with what is free of it."""

    offered: ClaimGpu
    free: GpuAmount

    def lacks(self, wanted: DeviceRequest) -> GpuAmount:
        return _demand(wanted, self.offered.gpu) - self.free

    def has_room(self, wanted: DeviceRequest) -> bool:
        return not self.offered.closed and self.free.covers(_demand(wanted, self.offered.gpu))

    def may_serve(self, wanted: DeviceRequest) -> bool:
        """If nobody held anything of it."""
        return not self.offered.closed and self.offered.capacity.covers(_demand(wanted, self.offered.gpu))

    def lacking(self, wanted: DeviceRequest) -> Lacking:
        return (self.offered.gpu, *self.lacks(wanted))

    def distance(self, wanted: DeviceRequest) -> int:
        return distance_of(self.lacking(wanted)) if self.may_serve(wanted) else FAR

    def beyond(self, wanted: DeviceRequest) -> int:
        """What it lacks if nobody held anything of it, in thousandths."""
        if self.may_serve(wanted):
            return 0
        return memory_beyond(_demand(wanted, self.offered.gpu).blocks, self.offered.gpu.blocks) + 1

    def against(self, wanted: DeviceRequest | None) -> str:
        if self.offered.closed or wanted is None or self.has_room(wanted):
            return self.offered.closed
        return f"{self.free.cores} cores and {memory_text(self.free.blocks)} are free"


def _demand(wanted: DeviceRequest, gpu: Gpu) -> GpuAmount:
    cores = CORES_PER_GPU if wanted.cores is None else wanted.cores
    return GpuAmount(cores, gpu.blocks if wanted.blocks is None else wanted.blocks)


def free_gpus(claims: NodeClaims) -> tuple[FreeGpu, ...]:
    """In the order of the slice, which is that in which kube-scheduler tries them."""
    held: dict[str, GpuAmount] = defaultdict(GpuAmount)
    for hold in claims.holds:
        held[hold.device] += hold.amount
    return tuple(FreeGpu(each, each.capacity - held[device]) for device, each in claims.gpus.items())


def take(alternatives: Alternatives, gpus: tuple[FreeGpu, ...], taken: dict[str, GpuAmount]) -> bool:
    """Whether one more request has room beside what is taken, by device; adds it there."""
    chosen = next(filter(None, (_taken(each, gpus, taken) for each in alternatives)), None)
    taken |= chosen or {}
    return chosen is not None


def _taken(
    wanted: DeviceRequest, gpus: tuple[FreeGpu, ...], taken: Mapping[str, GpuAmount]
) -> dict[str, GpuAmount] | None:
    found: dict[str, GpuAmount] = {}
    opened = [each for each in gpus if not each.offered.closed]
    count = len(opened) if wanted.count is None else wanted.count
    for each in opened if len(opened) >= count else ():
        device = each.offered.device
        needed = _demand(wanted, each.offered.gpu) + taken.get(device, NOTHING)
        if each.free.covers(needed):
            found[device] = needed
            if len(found) == count:
                return found
    return None


def shortfall(wanted: DeviceRequest | None, gpus: tuple[FreeGpu, ...]) -> Shortfall:
    """What a node lacks for the first request without room; None if all have room."""
    lines = partial(_gpu_lines, wanted, gpus)
    if wanted is None:
        return Shortfall((), gpus=lines)
    needed = wanted.count or 1
    lacks = nearest_gpus((each.lacking(wanted) for each in gpus if each.may_serve(wanted)), needed)
    beyond = beyond_of((each.beyond(wanted) for each in gpus), needed) if lacks is None else 0
    return Shortfall(lacks, gpus=lines, beyond=beyond)


def _gpu_lines(wanted: DeviceRequest | None, gpus: tuple[FreeGpu, ...]) -> GpuLines:
    return tuple((each.offered.gpu, each.against(wanted)) for each in gpus)


class _Need(msgspec.Struct, frozen=True):
    """A request that is not allocated yet."""

    what: str
    alternatives: Alternatives


class _AskedByClaims(NamedTuple):
    """`skipped`: how many requests are compared with no node. `others`: lines about requests that never are."""

    needs: list[_Need]
    skipped: int
    others: list[str]


class _Shape(msgspec.Struct):
    """What one or several requests ask for: its nodes and GPUs with room, and the GPU nearest to it."""

    nodes: int = 0
    gpus: int = 0
    nearest: tuple[tuple[int, int, int], str, FreeGpu] | None = None


class _ClaimEvaluation(msgspec.Struct):
    """The reason of each node, and of those that were compared what they lack."""

    shapes: dict[Alternatives, _Shape]
    lacks: dict[str, Shortfall] = msgspec.field(default_factory=dict)
    rejections: dict[str, Rejection] = msgspec.field(default_factory=dict)
    tainted: int = 0

    @property
    def uncompared(self) -> int:
        return len(self.rejections) - len(self.lacks)


class ClaimExplain:
    """Reads only."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._claims = cache.claims
        self._classes = self._claims.names.shares, self._claims.names.whole_gpus

    async def explain(self, namespace: str, name: str, *, with_holders: bool = True) -> Explanation | None:
        """None if no pod of that name has claims."""
        pod = self._claims.find(namespace, name)
        if pod is None:
            return None
        node = self._claims.place(pod)
        return self._placed(pod, node) if node else await self._waiting(pod, with_holders)

    def _placed(self, pod: ClusterPod, node: str) -> Explanation | None:
        every = tuple(self._held_lines(pod, node))
        more = len(every) - _MOST_LINES
        lines = every if more <= 0 else (*every[:_MOST_LINES], f"{more} more devices")
        if not lines:
            return None  # devices of other drivers
        sentence = (
            f"the pod is bound to node {node}; kube-scheduler chose the node and the GPUs for its claims"
            if pod.pod.node
            else f"kube-scheduler chose node {node} and GPUs for the claims, and has not bound the pod yet"
        )
        return Explanation(str(pod.pod.ref), sentence, node=node, asked=lines)

    def _held_lines(self, pod: ClusterPod, node: str) -> Iterator[str]:
        info, uses = self._cache.nodes.get(node), users_of(pod)
        if info is None:
            return
        for claim in self._claims.claims_of(pod):
            known = info.claims.allocated.get(claim.key)
            mine = uses.get(claim.ref.name, {}) if pod.uid in claim.consumers else {}
            for hold in () if known is None else known.holds_on(node):
                users = [each.name for request in ("", hold.request) for each in mine.get(request, ())]
                yield _held_line(hold, info.gpu_of(hold.device)[0], users)

    async def _waiting(self, pod: ClusterPod, with_holders: bool) -> Explanation:
        budget, missing = AnswerBudget(most=_MOST_STEPS, each_turn=_STEPS_PER_TURN), self._claims.missing(pod)
        asked = await self._asked(pod, budget)
        if not asked.needs and not missing and not self._claims.is_ours(pod):
            sentence = f"no claim of the pod asks for a class of vcuda ({', '.join(self._classes)})"
            return evaluated(pod, sentence, tuple(asked.others))
        found = await self._evaluated(asked.needs, self._fixed(pod), budget)
        outcome = missing[0] if missing else _outcome(found, is_refused=pod.is_refused)
        return evaluated(
            pod,
            f"{held_back(pod) or _history(pod)}; {outcome}{_uncompared_text(asked.skipped, found.uncompared)}",
            (*(f"{each.what}: {_any_text(each.alternatives)}" for each in asked.needs), *missing, *asked.others),
            found.rejections,
            await self._verdicts(pod, found, with_holders),
            why=tuple(_request_line(each, found) for each in asked.needs) if found.rejections else (),
        )

    async def _asked(self, pod: ClusterPod, budget: AnswerBudget) -> _AskedByClaims:
        needs, others, left_out = list[_Need](), list[str](), 0
        for claim in self._claims.claims_of(pod):
            await budget.took(sum(len(each.alternatives) for each in claim.requests))
            if claim.devices is None:
                needs += self._needs(claim)
                left_out += claim.left_out
            others += self._others(claim)
        _, whole = self._classes
        needs += (_Need(f"container {name}", (DeviceRequest(whole, count),)) for name, count in whole_gpus_of(pod))
        skipped = max(0, len(needs) - _MOST_NEEDS) + left_out
        return _AskedByClaims(needs[:_MOST_NEEDS], skipped, others[:_MOST_LINES])

    def _needs(self, claim: Claim) -> Iterator[_Need]:
        for each in claim.requests:
            alternatives = tuple(one for one in each.alternatives if one.device_class in self._classes)
            if alternatives:
                yield _Need(f"claim {claim.ref.name}, request {each.name}", alternatives)

    def _others(self, claim: Claim) -> Iterator[str]:
        """Requests that are not evaluated here."""
        if claim.devices is not None:
            pools = dict.fromkeys(each.pool for each in claim.devices)
            yield f"claim {claim.ref.name}: allocated already, in pool {listed([*pools])}, for another pod"
            return
        for each in claim.requests:
            classes = sorted({one.device_class for one in each.alternatives}.difference(self._classes))
            if classes:
                yield f"claim {claim.ref.name}, request {each.name}: class {listed(classes)}, none of vcuda's"

    def _fixed(self, pod: ClusterPod) -> frozenset[str]:
        """The nodes of claims that are allocated already."""
        devices = (each for claim in self._claims.claims_of(pod) for each in claim.devices or ())
        return frozenset(each.pool for each in devices if each.driver == self._claims.names.driver)

    async def _evaluated(self, needs: list[_Need], fixed: frozenset[str], budget: AnswerBudget) -> _ClaimEvaluation:
        found = _ClaimEvaluation({each.alternatives: _Shape() for each in needs})
        offering = [info for info in self._cache.nodes.values() if info.claims.driver is not None]
        for info in sorted(offering, key=lambda info: info.name not in fixed):
            await budget.took(_STEPS_OF_NODE + len(info.claims.holds))
            if budget.left:
                await self._evaluate(found, needs, info.name, free_gpus(info.claims), budget)
            if fixed and info.name not in fixed:
                found.rejections[info.name] = ELSEWHERE
            else:
                found.rejections.setdefault(info.name, NOT_COMPARED)
        return found

    async def _evaluate(
        self, found: _ClaimEvaluation, needs: list[_Need], node: str, gpus: tuple[FreeGpu, ...], budget: AnswerBudget
    ) -> None:
        taken: dict[str, GpuAmount] = {}
        short: DeviceRequest | None = None
        for need in needs:
            await budget.took(len(need.alternatives) * len(gpus))
            if not take(need.alternatives, gpus, taken):
                short = need.alternatives[0]
                break
        for alternatives, shape in found.shapes.items():
            await budget.took((3 + 2 * len(alternatives)) * len(gpus))
            shape.nodes += short is None if len(needs) == 1 else take(alternatives, gpus, {})
            shape.gpus += sum(any(map(gpu.has_room, alternatives)) for gpu in gpus)
            _note_nearest(shape, alternatives[0], node, gpus)
        found.lacks[node] = shortfall(short, gpus)
        found.rejections[node] = _rejection(short, gpus)
        found.tainted += sum(bool(each.offered.closed) for each in gpus)

    async def _verdicts(self, pod: ClusterPod, found: _ClaimEvaluation, with_holders: bool) -> tuple[NodeVerdict, ...]:
        order = sorted(place_of(node, found.rejections[node], lacks.distance) for node, lacks in found.lacks.items())
        verdicts = []
        for _, _, node in order[:MOST_NODES]:
            info, why, lacks = self._cache.nodes.get(node), found.rejections[node], found.lacks[node]
            change = _change(why, lacks)
            verdicts.append(node_verdict(node, info, why, lacks, change, but=pod.uid, with_holders=with_holders))
            await others_turn()
        return tuple(verdicts)


def _held_line(hold: ClaimHold, uuid: GpuUuid, users: list[str]) -> str:
    held = f"{hold.amount.cores} cores and {memory_text(hold.amount.blocks)} of {hold.device} ({uuid})"
    names = listed(users) if len(users) <= _MOST_NAMED else f"{users[0]} and {len(users) - 1} more"
    who = f", for container {names}" if users else ""
    return f"claim {hold.claim.name}, request {hold.request}: {held}{who}"


def _note_nearest(shape: _Shape, wanted: DeviceRequest, node: str, gpus: tuple[FreeGpu, ...]) -> None:
    for gpu in gpus:
        if not gpu.offered.closed:
            place = (-gpu.distance(wanted), *gpu.free)
            if shape.nearest is None or place > shape.nearest[0]:
                shape.nearest = place, node, gpu


def _rejection(short: DeviceRequest | None, gpus: tuple[FreeGpu, ...]) -> Rejection:
    if short is None:
        return ROOM_FOR_CLAIMS
    with_room = sum(each.lacks(short) == NOTHING for each in gpus)
    is_tainted = with_room >= (short.count or 1) and any(each.offered.closed for each in gpus)
    return TAINTED if is_tainted else NO_ROOM


def _change(why: Rejection, found: Shortfall) -> str:
    if why in _CHANGES:
        return _CHANGES[why]
    if found.lacks is None:
        return "the claim must ask for less, or the node must offer other GPUs"
    return must_become_free(found.lacks) or "room for all requests of the pod together"


def _request_line(need: _Need, found: _ClaimEvaluation) -> str:
    shape = found.shapes[need.alternatives]
    where = f"room on {shape.nodes} of {len(found.lacks)} nodes ({shape.gpus} GPU{'s' * (shape.gpus != 1)})"
    largest = ""
    if shape.nearest is not None:
        _, node, gpu = shape.nearest
        free = f"{gpu.free.cores} cores and {memory_text(gpu.free.blocks)}"
        largest = f"; the largest free share is {free}, of GPU {gpu.offered.gpu.minor} on node {node}"
    tainted = f"; taints close {found.tainted} GPU{'s' * (found.tainted != 1)}" if found.tainted else ""
    return f"{need.what}: {where}{largest}{tainted}"


def _outcome(found: _ClaimEvaluation, *, is_refused: bool) -> str:
    nodes = len(found.lacks)
    if not found.rejections:
        return "no node offers GPUs to claims"
    room = sum(each is ROOM_FOR_CLAIMS for each in found.rejections.values())
    if not room:
        none = "the one node has no room" if nodes == 1 else f"none of {nodes} nodes has room"
        return f"evaluated now, {none} for its claims"
    where = f"evaluated now, its claims have room on {of_nodes(room, nodes)}"
    return f"{where}, so the pod is Pending for another reason: {_OTHER_CHECKS}" if is_refused else where


def _uncompared_text(requests: int, nodes: int) -> str:
    """Follows the outcome."""
    more = f"; {requests} more requests or alternatives of the pod were not compared" * bool(requests)
    return more + f"; {nodes} nodes were {NOT_COMPARED.text}" * bool(nodes)


def _history(pod: ClusterPod) -> str:
    return "kube-scheduler has refused the pod" if pod.is_refused else "kube-scheduler has not tried the pod yet"


def _any_text(alternatives: Alternatives) -> str:
    return " or ".join(map(_text, alternatives))


def _text(wanted: DeviceRequest) -> str:
    one = "one GPU" if wanted.count == 1 else f"each of {wanted.count or 'all'} GPUs"
    if wanted.cores is None and wanted.blocks is None:
        return "1 whole GPU" if wanted.count == 1 else f"{wanted.count or 'all'} whole GPUs"
    cores = CORES_PER_GPU if wanted.cores is None else wanted.cores
    memory = "all memory" if wanted.blocks is None else memory_text(wanted.blocks)
    return f"{cores} cores and {memory} of {one}"
