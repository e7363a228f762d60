"""Why a pod with ResourceClaims waits, or which devices it has.

In: the claims, and the nodes that offer GPUs to them. Out: an `Explanation`, the same document as for the device
plugin's pods. kube-scheduler decides, and its own sentence is in `condition`; beside it stands what the nodes have now
for each request, evaluated for this answer. A walk over all nodes yields the event loop regularly. A pod may name many
claims, each with many requests: equal ones are judged once, of very many only a part, and where the steps of the answer
are spent, so is it with the nodes that are left. The answer says how many requests and nodes were not compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHold, users_of
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.explain import (
    gates_sentence,
    must_become_free,
    of_nodes,
)
from deviceplugin.cluster.view.claim_gpus import FAR, Fit, FreeGpu, free_gpus, take, whole_gpus_of
from deviceplugin.latest import others_turn
from deviceplugin.model.claims import Claim, DeviceRequest
from deviceplugin.model.cluster_view import Explanation, GpuVerdict, NodeVerdict
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import CORES_PER_GPU, memory_text
from deviceplugin.placement.budget import Budget
from deviceplugin.placement.describe import listed
from deviceplugin.placement.fit import GpuAmount

ROOM = "its GPUs have room for the claims"
NO_ROOM = "too few GPUs with enough free cores and memory"
TAINTED = "taints close GPUs that are needed"
ELSEWHERE = "a claim of the pod is allocated on another node"
NOT_COMPARED = "not compared, because the pod asks for so many different devices"
_MOST_NODES = 20
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


Alternatives = tuple[DeviceRequest, ...]


@dataclass(frozen=True, slots=True)
class _Need:
    """A request that is not allocated yet."""

    what: str
    alternatives: Alternatives


@dataclass(slots=True)
class _Shape:
    """What one or several requests ask for: its nodes and GPUs with room, and the nearest GPU."""

    nodes: int = 0
    gpus: int = 0
    nearest: tuple[tuple[int, int, int], str, FreeGpu] | None = None


@dataclass(slots=True)
class _Found:
    """The reason of each node, and of those that were compared what fits and how much must become free at least."""

    shapes: dict[Alternatives, _Shape]
    fits: dict[str, Fit] = field(default_factory=dict)
    distances: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    tainted: int = 0

    @property
    def uncompared(self) -> int:
        return len(self.reasons) - len(self.fits)


@dataclass(slots=True)
class _Needs:
    """`skipped`: how many requests are compared with no node. `others`: lines about requests that never are."""

    needs: list[_Need] = field(default_factory=list)
    skipped: int = 0
    others: list[str] = field(default_factory=list)

    def add(self, needs: Iterable[_Need], others: Iterable[str]) -> None:
        for need in needs:
            if len(self.needs) < _MOST_NEEDS:
                self.needs.append(need)
            else:
                self.skipped += 1
        self.others += islice(others, _MOST_LINES - len(self.others))


class _Steps:
    """Of one answer."""

    def __init__(self) -> None:
        self._all = Budget(_MOST_STEPS)
        self._turn = Budget(_STEPS_PER_TURN)

    @property
    def left(self) -> int:
        return self._all.left

    async def took(self, steps: int) -> None:
        """Gives the loop its turn after so many."""
        self._all.may(steps)
        if not self._turn.may(steps):
            self._turn = Budget(_STEPS_PER_TURN)
            await others_turn()


class ClaimExplain:
    """Reads only."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._claims = cache.claims

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

    async def _waiting(self, pod: ClusterPod, with_holders: bool) -> Explanation | None:
        steps, missing = _Steps(), self._claims.missing(pod)
        asked = await self._asked(pod, steps)
        needs = tuple(asked.needs)
        if not needs and not missing and not self._claims.is_ours(pod):
            return self._foreign(pod, tuple(asked.others))
        found = await self._evaluated(needs, self._fixed(pod), steps)
        nodes = await self._verdicts(needs, found, with_holders)
        outcome = missing[0] if missing else _outcome(found, is_refused=pod.is_refused)
        return Explanation(
            pod=str(pod.pod.ref),
            sentence=f"{_history(pod)}; {outcome}{_uncompared_text(asked.skipped, found.uncompared)}",
            asked=(*(f"{each.what}: {_any_text(each.alternatives)}" for each in needs), *missing, *asked.others),
            reasons=dict(Counter(found.reasons.values()).most_common()),
            nodes=nodes,
            left_out=len(found.reasons) - len(nodes),
            now=True,
            condition=_condition(pod),
            why=tuple(_request_line(each, found) for each in needs) if found.reasons else (),
        )

    def _foreign(self, pod: ClusterPod, others: tuple[str, ...]) -> Explanation:
        names = self._claims.names
        sentence = f"no claim of the pod asks for a class of vcuda ({names.shares}, {names.whole_gpus})"
        return Explanation(str(pod.pod.ref), sentence, asked=others, now=True, condition=_condition(pod))

    async def _asked(self, pod: ClusterPod, steps: _Steps) -> _Needs:
        found = _Needs()
        for claim in self._claims.claims_of(pod):
            await steps.took(sum(len(each.alternatives) for each in claim.requests))
            found.add(self._needs(claim), self._others(claim))
            found.skipped += claim.left_out if claim.devices is None else 0
        whole = self._claims.names.whole_gpus
        asked = whole_gpus_of(pod)
        found.add((_Need(f"container {name}", (DeviceRequest(whole, count),)) for name, count in asked), ())
        return found

    def _needs(self, claim: Claim) -> Iterator[_Need]:
        for each in claim.requests if claim.devices is None else ():
            alternatives = tuple(one for one in each.alternatives if one.device_class in self._classes)
            if alternatives:
                yield _Need(f"claim {claim.ref.name}, request {each.name}", alternatives)

    def _others(self, claim: Claim) -> Iterator[str]:
        """Requests that are not evaluated here."""
        if claim.devices is not None:
            yield _allocated_text(claim)
            return
        for each in claim.requests:
            classes = sorted({one.device_class for one in each.alternatives} - set(self._classes))
            if classes:
                yield f"claim {claim.ref.name}, request {each.name}: class {listed(classes)}, none of vcuda's"

    @property
    def _classes(self) -> tuple[str, str]:
        return self._claims.names.shares, self._claims.names.whole_gpus

    def _fixed(self, pod: ClusterPod) -> frozenset[str]:
        """The nodes of claims that are allocated already."""
        return frozenset(
            each.pool
            for claim in self._claims.claims_of(pod)
            for each in claim.devices or ()
            if each.driver == self._claims.names.driver
        )

    async def _evaluated(self, needs: tuple[_Need, ...], fixed: frozenset[str], steps: _Steps) -> _Found:
        found = _Found({each.alternatives: _Shape() for each in needs})
        offering = [name for name, info in self._cache.nodes.items() if info.claims.driver is not None]
        for node in sorted(offering, key=lambda name: name not in fixed):
            info = self._cache.nodes.get(node)
            if info is None:
                continue
            await steps.took(_STEPS_OF_NODE + len(info.claims.holds))
            if steps.left:
                await self._evaluate(found, needs, node, free_gpus(info.claims), steps)
            if fixed and node not in fixed:
                found.reasons[node] = ELSEWHERE
            else:
                found.reasons.setdefault(node, NOT_COMPARED)
        return found

    async def _evaluate(
        self, found: _Found, needs: tuple[_Need, ...], node: str, gpus: tuple[FreeGpu, ...], steps: _Steps
    ) -> None:
        taken: dict[str, GpuAmount] = {}
        short: int | None = None
        for number, need in enumerate(needs):
            await steps.took(len(need.alternatives) * len(gpus))
            if not take(need.alternatives, gpus, taken):
                short = number
                break
        for alternatives, shape in found.shapes.items():
            await steps.took((3 + 2 * len(alternatives)) * len(gpus))
            shape.nodes += short is None if len(needs) == 1 else take(alternatives, gpus, {})
            shape.gpus += sum(any(map(gpu.has_room, alternatives)) for gpu in gpus)
            _note_nearest(shape, alternatives[0], node, gpus)
        found.fits[node] = known = Fit(gpus, short)
        found.distances[node] = _distance(needs, known)
        found.reasons[node] = _reason(needs, known)
        found.tainted += sum(bool(each.closed) for each in gpus)

    async def _verdicts(self, needs: tuple[_Need, ...], found: _Found, with_holders: bool) -> tuple[NodeVerdict, ...]:
        order = sorted(found.fits, key=lambda node: (found.reasons[node] == ELSEWHERE, found.distances[node], node))
        verdicts = []
        for node in order[:_MOST_NODES]:
            verdicts.append(_verdict(node, needs, found, with_holders))
            await others_turn()
        return tuple(verdicts)


def _held_line(hold: ClaimHold, uuid: GpuUuid, users: list[str]) -> str:
    held = f"{hold.amount.cores} cores and {memory_text(hold.amount.blocks)} of {hold.device} ({uuid})"
    names = listed(users) if len(users) <= _MOST_NAMED else f"{users[0]} and {len(users) - 1} more"
    who = f", for container {names}" if users else ""
    return f"claim {hold.claim.name}, request {hold.request}: {held}{who}"


def _verdict(node: str, needs: tuple[_Need, ...], found: _Found, with_holders: bool) -> NodeVerdict:
    known, reason = found.fits[node], found.reasons[node]
    short = None if known.short is None else needs[known.short].alternatives[0]
    gpus = tuple(_gpu_verdict(each, short, with_holders) for each in known.gpus)
    change = "" if reason == ELSEWHERE else _change(short, known, reason)
    return NodeVerdict(node, reason, change, gpus)


def _note_nearest(shape: _Shape, wanted: DeviceRequest, node: str, gpus: tuple[FreeGpu, ...]) -> None:
    for gpu in gpus:
        if not gpu.closed:
            place = (-gpu.distance(wanted), *gpu.free)
            if shape.nearest is None or place > shape.nearest[0]:
                shape.nearest = place, node, gpu


def joined(by_plugin: Explanation | None, by_claims: Explanation | None) -> Explanation | None:
    """A pod can ask in both ways: then the scheduler extender's explanation has the lines of its claims too."""
    if by_plugin is None or by_claims is None:
        return by_plugin or by_claims
    return replace(by_plugin, asked=(*by_plugin.asked, *by_claims.asked), why=(*by_plugin.why, *by_claims.why))


def _gpu_verdict(gpu: FreeGpu, short: DeviceRequest | None, with_holders: bool) -> GpuVerdict:
    against = gpu.closed
    if not against and short is not None and not gpu.has_room(short):
        against = f"{gpu.free.cores} cores and {memory_text(gpu.free.blocks)} are free"
    held = ((each.holder.pod, each.amount) for each in gpu.holds) if with_holders else ()
    holders = tuple(f"{who}: {amount.cores} cores, {amount.blocks} blocks (claim)" for who, amount in held)
    return GpuVerdict(gpu.gpu.uuid, gpu.gpu.minor, gpu.gpu.model, against, holders)


def _reason(needs: tuple[_Need, ...], found: Fit) -> str:
    if found.short is None:
        return ROOM
    wanted = needs[found.short].alternatives[0]
    with_room = sum(each.lacks(wanted) == (0, 0) for each in found.gpus)
    return TAINTED if with_room >= (wanted.count or 1) and any(each.closed for each in found.gpus) else NO_ROOM


def _distance(needs: tuple[_Need, ...], found: Fit) -> int:
    if found.short is None:
        return 0
    wanted = needs[found.short].alternatives[0]
    nearest = sorted(each.distance(wanted) for each in found.gpus)[: wanted.count or 1]
    return min(FAR, sum(nearest)) if len(nearest) == (wanted.count or 1) else FAR


def _change(short: DeviceRequest | None, found: Fit, reason: str) -> str:
    if short is None:
        return "nothing on its GPUs"
    if reason == TAINTED:
        return "GPUs must become healthy, or be uncordoned"
    nearest = sorted(found.gpus, key=lambda each: (each.distance(short), each.gpu.minor))[: short.count or 1]
    if len(nearest) < (short.count or 1) or any(each.distance(short) >= FAR for each in nearest):
        return "the claim must ask for less, or the node must offer other GPUs"
    lacking = [(each.gpu, *each.lacks(short)) for each in nearest if each.lacks(short) != (0, 0)]
    return "; ".join(must_become_free(*each) for each in lacking) or "room for all requests of the pod together"


def _request_line(need: _Need, found: _Found) -> str:
    shape = found.shapes[need.alternatives]
    where = f"room on {shape.nodes} of {len(found.fits)} nodes ({shape.gpus} GPU{'s' * (shape.gpus != 1)})"
    largest = ""
    if shape.nearest is not None:
        _, node, gpu = shape.nearest
        free = f"{gpu.free.cores} cores and {memory_text(gpu.free.blocks)}"
        largest = f"; the largest free share is {free}, of GPU {gpu.gpu.minor} on node {node}"
    tainted = f"; taints close {found.tainted} GPU{'s' * (found.tainted != 1)}" if found.tainted else ""
    return f"{need.what}: {where}{largest}{tainted}"


def _outcome(found: _Found, *, is_refused: bool) -> str:
    nodes = len(found.fits)
    if not found.reasons:
        return "no node offers GPUs to claims"
    room = sum(each == ROOM for each in found.reasons.values())
    if not room:
        none = "the one node has no room" if nodes == 1 else f"none of {nodes} nodes has room"
        return f"evaluated now, {none} for its claims"
    where = f"evaluated now, its claims have room on {of_nodes(room, nodes)}"
    return f"{where}, so the pod waits for another reason: {_OTHER_CHECKS}" if is_refused else where


def _uncompared_text(requests: int, nodes: int) -> str:
    """Follows the outcome."""
    more = f"; {requests} more requests or alternatives of the pod were not compared" * bool(requests)
    return more + f"; {nodes} nodes were {NOT_COMPARED}" * bool(nodes)


def _history(pod: ClusterPod) -> str:
    if pod.pod.deleting:
        return "the pod is being deleted"
    if pod.gates:
        return f"{gates_sentence(pod)}; no scheduler chooses a node before"
    return "kube-scheduler has refused the pod" if pod.is_refused else "kube-scheduler has not tried the pod yet"


def _condition(pod: ClusterPod) -> str:
    return "" if pod.condition is None else " ".join(pod.condition.message.split())


def _any_text(alternatives: tuple[DeviceRequest, ...]) -> str:
    return " or ".join(map(_text, alternatives))


def _text(wanted: DeviceRequest) -> str:
    one = "one GPU" if wanted.count == 1 else f"each of {wanted.count or 'all'} GPUs"
    if wanted.cores is None and wanted.blocks is None:
        return "1 whole GPU" if wanted.count == 1 else f"{wanted.count or 'all'} whole GPUs"
    cores = CORES_PER_GPU if wanted.cores is None else wanted.cores
    memory = "all memory" if wanted.blocks is None else memory_text(wanted.blocks)
    return f"{cores} cores and {memory} of {one}"


def _allocated_text(claim: Claim) -> str:
    pools: Mapping[str, None] = dict.fromkeys(each.pool for each in claim.devices or ())
    return f"claim {claim.ref.name}: allocated already, in pool {listed(list(pools))}, for another pod"
