"""What each node and GPU lacks for a pod, evaluated with the code that filter uses; and how near a node is.

In: the cache, and a pod with what it requests. Out: values that `explain` turns into sentences. Nothing is reserved or
recorded. A walk over all nodes yields the event loop regularly, because kube-scheduler waits for its own answers on the
same loop; so the nodes are not all evaluated at one moment. Where the steps of the answer are spent, the nodes that are
left count as far away, and the answer says how many were not compared.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from operator import itemgetter

import msgspec

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import total_request
from deviceplugin.cluster.extender.rejection import (
    FITS_NOW,
    MAYBE_ROOM,
    NOT_PLACED_YET,
    NOT_READY,
    RESOURCE_FIT,
    ROOM,
    UNSCHEDULABLE,
    Rejection,
    rejection_of,
)
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.cluster.extender.turns import AnswerBudget
from deviceplugin.latest import others_turn
from deviceplugin.model.gpu import Gpu
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.request import Request
from deviceplugin.placement.budget import AT_ONCE, Budget
from deviceplugin.placement.candidates import Restrictions, Survey, survey
from deviceplugin.placement.describe import rejection_text
from deviceplugin.placement.fit import GpuAmount, GpuRejection, demand_of
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.prefilter import Prefilter
from deviceplugin.placement.snapshot import GpuView
from deviceplugin.structs import replace

FAR = 1 << 30
_UNWANTED, _ABSENT = 1_000, 2_000  # thousandths of a request; its whole memory is 1,000
_STEPS_PER_TURN = 2_000  # some 2 ms
_MOST_STEPS = 1_500_000  # some 0.8 s
_STEPS_OF_NODE = 30
_STEPS_OF_SURVEY = 60  # eight GPUs
_MOST_TRIED = 20  # nodes on which the containers of a pod are placed together, some milliseconds each
_MOST_KEPT = 500


class Evaluation(msgspec.Struct):
    """`rejections` has every node; `changes` what must change on a node whose GPUs have room.

    `open`: nodes that can serve the pod as far as is known. `blocked`: how many nodes have room on their GPUs, but fail
    a check of kube-scheduler. `untried`: on how many nodes the containers were not placed together. `resource_fit`: how
    many nodes have enough by kube-scheduler's sums, whatever their single GPUs have.
    """

    rejections: dict[str, Rejection] = msgspec.field(default_factory=dict)
    changes: dict[str, str] = msgspec.field(default_factory=dict)
    open: list[str] = msgspec.field(default_factory=list)
    several_containers: bool = False
    blocked: int = 0
    untried: int = 0
    resource_fit: int = 0


Lacking = tuple[Gpu, int, int]
"""A GPU with the cores and blocks that must become free on it."""
GpuLines = tuple[tuple[Gpu, str], ...]


class Shortfall(msgspec.Struct, frozen=True):
    """What a node lacks for a pod; of several containers or requests, for the first that finds no room.

    `lacks`: the GPUs on which least must become free; None if the end of no pod helps. `together`: the outcome of
    placing all containers, where each alone has room; None while it is not known. `gpus` makes a line for each GPU, in
    minor order, of what speaks against it: most are never read. `beyond`: what its GPUs lack also when they are empty.
    """

    lacks: tuple[Lacking, ...] | None = None
    together: Rejection | None = None
    gpus: Callable[[], GpuLines] = tuple
    beyond: int = 0

    @property
    def distance(self) -> int:
        """How much must become free, in thousandths of a GPU; farther, how much no end of a pod brings."""
        if self.lacks is None:
            is_known = self.gpus is not tuple
            return FAR + min(self.beyond, FAR - 1) if is_known else 2 * FAR
        if self.together is not None and self.together != FITS_NOW:
            return FAR - 1
        return sum(map(distance_of, self.lacks))


def distance_of(lacking: Lacking) -> int:
    gpu, cores, blocks = lacking
    return max(cores * 10, blocks * 1000 // max(1, gpu.blocks))


def nearest_gpus(able: Iterable[Lacking], needed: int) -> tuple[Lacking, ...] | None:
    """So many on which least must become free, of those that could serve when pods end; None if they are too few."""
    found = sorted(able, key=lambda one: (distance_of(one), one[1:], one[0].minor))[:needed]
    return tuple(found) if len(found) == needed else None


def beyond_of(lacking: Iterable[int], needed: int) -> int:
    """What the best `needed` GPUs lack when they are empty; `lacking`: of each GPU that there is."""
    best = heapq.nsmallest(needed, lacking)
    return sum(best) + _ABSENT * (needed - len(best))


def memory_beyond(wanted: int, blocks: int) -> int:
    """The part of the wanted memory that a GPU of so many blocks does not have, in thousandths."""
    return max(0, wanted - blocks) * 1000 // max(1, wanted)


_Place = tuple[bool, int, str]


def place_of(node: str, why: Rejection, distance: int) -> _Place:
    """Among the nodes: first those where the end of a pod helps, and of these the nearest."""
    return (not why.resolvable, distance, node)


class Evaluator:
    """For one pod; reads only."""

    def __init__(self, snapshot: ClusterSnapshot, pod: ClusterPod, asked: PodRequest) -> None:
        self._snapshot, self._cache = snapshot, snapshot.cache
        self._pod = pod
        self._asked = asked
        self._prefilter = Prefilter(asked)
        self._alone = {each.request: each for each in asked.containers}
        self._budget = AnswerBudget(most=_MOST_STEPS, each_turn=_STEPS_PER_TURN)
        self.uncompared = 0

    async def evaluate(self) -> Evaluation:
        """Every node as filter would see it now."""
        found = Evaluation(several_containers=len(self._asked.containers) > 1)
        for node_info in tuple(self._cache.nodes.values()):
            await self._budget.took(_STEPS_OF_NODE + self._prefilter.steps + 4 * self._counted(node_info))
            state = await self._state(node_info.name)
            if node_info.node is not None:
                self._evaluate_node(found, node_info, node_info.node, state)
        if found.several_containers:
            await self._place_together(found)
        return found

    def _counted(self, node_info: NodeInfo) -> int:
        """What must be gone through to add up what kube-scheduler counts there."""
        unbound = (self._cache.pod(uid) for uid, held in node_info.holds.items() if not held.is_bound)
        return len(node_info.holds) + sum(len(pod.pod.containers) for pod in unbound if pod is not None)

    async def with_room(self, names: Iterable[str]) -> list[str]:
        """Those of these nodes on whose GPUs the pod has room, as far as each container alone shows it."""
        found: list[str] = []
        for name in names:
            await self._budget.took(_STEPS_OF_NODE + self._prefilter.steps)
            state = await self._state(name)
            if not isinstance(state, Rejection) and self._prefilter(state) is None:
                found.append(name)
        return found

    async def nearest(self, rejections: Mapping[str, Rejection], *, most: int) -> list[tuple[str, Shortfall]]:
        """The nodes that lack least; first those where the end of a pod helps."""
        found: list[tuple[_Place, Shortfall | None]] = []
        for name, why in rejections.items():
            await self._budget.took(len(self._alone) * _STEPS_OF_SURVEY)
            lacks = self._shortfall(name) if self._budget.left else None
            self.uncompared += lacks is None
            found.append((place_of(name, why, FAR if lacks is None else lacks.distance), lacks))
            if len(found) > _MOST_KEPT:
                found = heapq.nsmallest(most, found, key=itemgetter(0))
        shown: list[tuple[_Place, Shortfall]] = []
        for (_, _, name), lacks in heapq.nsmallest(most, found, key=itemgetter(0)):
            if lacks is None:
                await others_turn()
                lacks = self._shortfall(name)
            if lacks.lacks == () and lacks.together is None:
                await others_turn()
                lacks = replace(lacks, together=self._placed_together(name))
            shown.append((place_of(name, rejections[name], lacks.distance), lacks))
        return [(name, lacks) for (_, _, name), lacks in sorted(shown, key=itemgetter(0))]

    async def _state(self, name: str) -> NodeState | Rejection:
        """With the nominated pods of the node, which may take several turns."""
        while True:
            turn = Budget(AT_ONCE, is_last=False)
            state = self._snapshot.node(self._pod, name, turn)
            await self._budget.took(turn.others)
            if state is not NOT_PLACED_YET or not self._budget.left:
                return state

    def _state_now(self, name: str) -> NodeState | Rejection:
        return self._snapshot.node(self._pod, name, Budget(0))

    def _evaluate_node(
        self, found: Evaluation, node_info: NodeInfo, node: ClusterNode, state: NodeState | Rejection
    ) -> None:
        name = node.name
        short = self._resource_shortfall(node_info, node)
        found.resource_fit += not short
        reason = state if isinstance(state, Rejection) else self._prefilter(state)
        if reason is not None:
            found.rejections[name] = reason if isinstance(reason, Rejection) else rejection_of(reason)
        elif (blocked := _scheduler_check(node, short)) is not None:
            found.rejections[name], found.changes[name] = blocked
            found.blocked += 1
        else:
            found.rejections[name] = ROOM
            found.open.append(name)

    def _resource_shortfall(self, node_info: NodeInfo, node: ClusterNode) -> str:
        """What is short by kube-scheduler's sums, empty if nothing is.

        kube-scheduler adds up each resource over all GPUs of a node and compares with what kubelet offers: the sum may
        leave room where no single GPU has any, and none if one has (an unhealthy GPU).
        """
        used = GpuAmount()
        for uid, held in node_info.holds.items():
            if uid == self._pod.uid:
                continue
            if held.is_bound:
                used += held.total
            elif (other := self._cache.pod(uid)) is not None:
                used += total_request(other.pod)
        names, asked = self._snapshot.settings.names, self._request
        return "; ".join(
            f"the pod requests {wanted} {what} in total, and {max(0, offered - taken)} of {offered} are free"
            for what, wanted, taken, offered in (
                (names.core, asked.cores, used.cores, node.cores),
                (names.memory, asked.blocks, used.blocks, node.blocks),
            )
            if offered - taken < wanted
        )

    async def _place_together(self, found: Evaluation) -> None:
        """The emptiest node first, until one serves all containers; only that one is certain."""
        maybe, found.open = sorted(found.open, key=lambda name: (-self._free_cores(name), name)), []
        found.rejections |= dict.fromkeys(maybe, MAYBE_ROOM)
        found.untried = max(0, len(maybe) - _MOST_TRIED)
        for at, name in enumerate(maybe[:_MOST_TRIED], start=1):
            outcome = self._placed_together(name)
            if outcome == FITS_NOW:
                found.open, found.untried, found.rejections[name] = [name], len(maybe) - at, ROOM
                return
            found.rejections[name] = outcome
            await others_turn()

    def _free_cores(self, name: str) -> int:
        state = self._state_now(name)
        return 0 if isinstance(state, Rejection) else state.open_gpus.summary.free.cores

    def _shortfall(self, name: str) -> Shortfall:
        state = self._state_now(name)
        if isinstance(state, Rejection):
            return Shortfall()
        restrictions = Restrictions(self._asked.preferences.gpus, state.cordoned)
        surveys = [(each, survey(each.request, state.snapshot, restrictions)) for each in self._alone.values()]
        short = [(each, found) for each, found in surveys if len(found.candidates.views) < each.request.gpus]
        if short:
            container, found = short[0]
            lacks = _lacking(container.request, found)
            beyond = _beyond(container.request, found) if lacks is None else 0
            return Shortfall(lacks, gpus=partial(_gpu_lines, found), beyond=beyond)
        is_one = len(self._asked.containers) == 1
        return Shortfall((), FITS_NOW if is_one else None, partial(_gpu_lines, surveys[0][1]))

    @cached_property
    def _request(self) -> GpuAmount:
        return total_request(self._pod.pod)

    def _placed_together(self, name: str) -> Rejection:
        """Of containers that have room alone."""
        state = self._state_now(name)
        if isinstance(state, Rejection):
            return state
        return self._snapshot.rejection_together(self._asked, state) or FITS_NOW


def _scheduler_check(node: ClusterNode, short: str) -> tuple[Rejection, str] | None:
    """A check of kube-scheduler that the node fails, and what must change. CPU, taints, affinity are not known here."""
    if node.unschedulable:
        return UNSCHEDULABLE, f"kubectl uncordon {node.name}"
    if not node.ready:
        return NOT_READY, "its kubelet must report that the node is ready"
    return (RESOURCE_FIT, short) if short else None


def _lacking(request: Request, found: Survey) -> tuple[Lacking, ...] | None:
    demand = demand_of(request)
    able = [
        (view.gpu, *(demand.takes(view.gpu.blocks) - view.free))
        for view, rejection in found.rejected
        if rejection.resolvable
    ]
    return nearest_gpus(able, request.gpus - len(found.candidates.views))


def _beyond(request: Request, found: Survey) -> int:
    able, blocks = [0] * len(found.candidates.views), request.blocks_per_gpu
    return beyond_of([*able, *(_beyond_of_gpu(blocks, *each) for each in found.rejected)], request.gpus)


def _beyond_of_gpu(blocks: int, view: GpuView, rejection: GpuRejection) -> int:
    """A GPU that only its state closes is nearer than a smaller one, and that nearer than one that the pod excludes."""
    if rejection.resolvable:
        return 0
    excluded = rejection in (GpuRejection.UNWANTED, GpuRejection.MODEL)
    closed = rejection is not GpuRejection.SMALL
    return memory_beyond(blocks, view.gpu.blocks) + (_UNWANTED if excluded else int(closed))


def _gpu_lines(found: Survey) -> GpuLines:
    free = [(view.gpu, "") for view in found.candidates.views]
    closed = [(view.gpu, rejection_text(rejection, view)) for view, rejection in found.rejected]
    return tuple(sorted((*free, *closed), key=lambda one: (one[0].minor, one[0].uuid)))
