"""What Volcano's scheduler asks about its tasks: does one fit on a node, and on which GPUs; and who must go for it.

In: tasks and names of nodes, the scheduler's cache. Out: verdicts, and reservations in the cache. Volcano places the
tasks of a gang one after the other and says each time which node it chose (`allocate`), so each is judged with the GPUs
of those before; what it takes back (`deallocate`) is free again. It says nothing at the end, and its Binding says no
GPUs: the cache keeps them when the Binding comes, and `Announcements` writes them to the pod. A reservation ends when
its pod is bound, given back, gone, or by time, because vc-scheduler may die between the two.

A task that Volcano pipelines waits on a node for what others still hold there; nothing is reserved for it, and what
ends goes to the pod that is asked about first. Invariant: a GPU is promised to one pod at a time, by any scheduler; and
one question takes one turn of the loop, however large the gang is or full the node. What it costs is told to its
`budget`.

`Announcements` writes to pods which GPUs they were promised, once Volcano has bound them.

In: pods that are bound where they were promised GPUs. Out: the annotations of a Binding of ours, so that the node's
agent, which waits for them, gives exactly these GPUs. Nothing waits for a write here. Why not before: Volcano copies
the annotations of its pod, as it knew it, into its Binding, and the API server would write these over newer ones; and
the admission policy lets nobody else bind with them. What the agent said meanwhile stays. Invariant: a pod without a
node is never written to. A write that fails is said once, and tried again after a wait of its own, which doubles.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Protocol

import msgspec
import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.cluster.extender.bind import binding_annotations
from deviceplugin.cluster.extender.cache.node_info import needs_of
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold, reserved_hold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.filter import scaled
from deviceplugin.cluster.extender.preempt import fewest_victims
from deviceplugin.cluster.extender.rejection import BOUND_ELSEWHERE, NOT_PLACED_YET, Rejection
from deviceplugin.cluster.extender.snapshot import Asking, ClusterSnapshot
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.volcano.wire import Code, VolcanoTask
from deviceplugin.errors import (
    CapacityError,
    KubeConflictError,
    KubeNotFoundError,
    ParseError,
    RequestError,
    VcudaError,
)
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import placeable_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.budget import AT_ONCE, ON_ONE_NODE, Budget
from deviceplugin.placement.fragmentation import NO_NEEDS
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import PodChoice, place_pod
from deviceplugin.structs import replace

_MOST_KNOWN = 4096
_MOST_MEMBERS = 64
_STEPS_BESIDE = 60  # to take a member of one container from the state of a node; measured, like the numbers below


class TaskVerdict(msgspec.Struct, frozen=True):
    """`reason` is empty if the task fits."""

    reason: str = ""
    code: Code = Code.FITS


FITS = TaskVerdict()


class _Asking(Asking, frozen=True, dict=True):
    """A member of a gang is compared with the others too."""

    @cached_property
    def size(self) -> tuple[int, int]:
        """Cores and blocks of its largest part of a GPU."""
        return max((each.request.cores_per_gpu, each.request.blocks_per_gpu) for each in self.request.containers)


class VolcanoTasks:
    """`clock` is monotonic."""

    def __init__(self, snapshot: ClusterSnapshot, *, clock: Callable[[], float]) -> None:
        self._snapshot, self._cache, self._settings = snapshot, snapshot.cache, snapshot.settings
        self._clock = clock
        self._asking: OrderedDict[PodUid, _Asking] = OrderedDict()
        self._last: OrderedDict[PodUid, frozenset[GpuUuid]] = OrderedDict()

    def predicate(self, task: VolcanoTask, node: str, budget: Budget | None = None) -> TaskVerdict:
        """Also true if it fits once pods that are being deleted have gone: Volcano decides whether to wait."""
        budget = budget or Budget()
        self._cache.expire()
        bound = self._cache.bound_to(task.uid)
        if bound is not None or self._cache.is_over(task.uid):
            return FITS if bound == node else _verdict(BOUND_ELSEWHERE)
        try:
            asking = self._read(task)
        except (RequestError, ParseError) as error:
            return TaskVerdict(error.message, Code.UNRESOLVABLE)
        if asking is None:
            return FITS
        refused = self._snapshot.refusal(asking, node, budget)
        if refused is None:
            return FITS
        if refused is NOT_PLACED_YET:
            budget.put_off()
            return _verdict(refused)
        leaving = self._leaving(node)
        if leaving and refused.resolvable and self._snapshot.refusal(asking, node, budget, without=leaving) is None:
            return FITS
        return _verdict(refused)

    def scores(self, task: VolcanoTask, nodes: Sequence[str], budget: Budget | None = None) -> dict[str, float]:
        """From 0 to 100, in the order of the node policy."""
        budget = budget or Budget()
        try:
            asking = self._read(task)
        except (RequestError, ParseError):
            asking = None
        if asking is None:
            return dict.fromkeys(nodes, 0.0)
        states = self._snapshot.nodes(asking.pod, nodes, budget).states
        ranked = self._snapshot.scorer.ranked(asking.request, states, needs=needs_of(asking.pod.needs), budget=budget)
        scores = scaled([ranked.get(name) for name in nodes])
        return {name: 10.0 * score for name, score in zip(nodes, scores, strict=True)}

    def allocate(self, task: VolcanoTask, budget: Budget | None = None) -> str:
        """Reserves GPUs on the task's node; else the sentence why Volcano must take the placement back.

        The task gets its GPUs whatever is left of the budget. For members of its gang that the budget has no steps for,
        no room is kept. A pipelined task waits for pods that Volcano is about to evict, and may not have told the API
        server yet.
        """
        self._cache.expire()
        if task.is_pipelined or self._cache.bound_to(task.uid) == task.node:
            return ""
        try:
            asking = self._read(task)
            if asking is not None:
                self._reserve(asking, task.node, budget or Budget(AT_ONCE))
        except (RequestError, ParseError, CapacityError) as error:
            return error.message
        return ""

    def deallocate(self, task: VolcanoTask) -> None:
        held = self._cache.on(task.node, task.uid)
        if held is not None and held.state is HoldState.RESERVED:
            self._cache.release(task.uid, task.node)

    async def victims(
        self, evictor: VolcanoTask, evictees: Sequence[VolcanoTask], turns: Turns | None = None
    ) -> tuple[VolcanoTask, ...]:
        """As few as make room for the evictor on one node; none if all of a node would not help."""
        try:
            asking = self._read(evictor)
        except (RequestError, ParseError):
            return ()
        if asking is None:
            return tuple(evictees)
        by_node: dict[str, list[VolcanoTask]] = {}
        for each in evictees:
            by_node.setdefault(each.node, []).append(each)
        found: list[VolcanoTask] = []
        async for budget, (node, tasks) in (turns or Turns()).each(asking.pod.pod.ref.namespace, by_node.items()):
            found += self._victims_on(asking, node, tasks, budget)
        return tuple(found)

    def _victims_on(
        self, asking: _Asking, node: str, tasks: Sequence[VolcanoTask], budget: Budget
    ) -> tuple[VolcanoTask, ...]:
        leaving = self._leaving(node)
        candidates = [each for each in tasks if self._cache.on(node, each.uid) is not None]

        def enough(chosen: Collection[VolcanoTask]) -> bool:
            without = (*leaving, *(each.uid for each in chosen))
            return self._snapshot.refusal(asking, node, budget, without=without) is None

        return fewest_victims(candidates, on=partial(self._gpus, node), enough=enough, budget=budget) or ()

    def _gpus(self, node: str, task: VolcanoTask) -> frozenset[GpuUuid]:
        held = self._cache.on(node, task.uid)
        return held.uuids if held is not None else frozenset()

    def namespace(self, task: VolcanoTask) -> str:
        """Of its pod; empty if the task cannot be read, which its verdict says."""
        try:
            asking = self._read(task)
        except (RequestError, ParseError):
            return ""
        return "" if asking is None else asking.pod.pod.ref.namespace

    def _read(self, task: VolcanoTask) -> _Asking | None:
        """None for a pod that asks for no GPU. The watch's version counts before the one in the request."""
        pod = self._cache.pod(task.uid)
        if pod is None and (known := self._asking.get(task.uid)) is not None:
            return known
        return self._remember(pod or task.pod(self._settings.names))

    def _remember(self, pod: ClusterPod) -> _Asking | None:
        known = self._asking.get(pod.uid)
        if known is not None and known.pod is pod:
            self._asking.move_to_end(pod.uid)
            return known
        if not pod.pod.is_gpu:
            return None
        asked = placeable_request(pod.pod, self._settings.names)
        self._asking[pod.uid] = found = _Asking(pod, asked)
        self._asking.move_to_end(pod.uid)
        if len(self._asking) > _MOST_KNOWN:
            self._asking.popitem(last=False)
        return found

    def _leaving(self, node: str) -> tuple[PodUid, ...]:
        """Pods of the node that are being deleted; their containers still run."""
        info = self._cache.nodes.get(node)
        return () if info is None else tuple(uid for uid, held in info.holds.items() if held.deleting)

    def _reserve(self, asking: _Asking, node: str, budget: Budget) -> None:
        pod, state = asking.pod, self._snapshot.node(asking.pod, node, budget)
        if pod.pod.deleting:
            raise CapacityError(f"pod {pod.pod.ref} is being deleted")
        if isinstance(state, Rejection):
            raise CapacityError(f"pod {pod.pod.ref} does not fit on node {node}: {state.text}")
        held = self._cache.on(node, pod.uid)
        if held is not None and held.state is not HoldState.RESERVED:  # what it may take must stay its own
            raise CapacityError(f"pod {pod.pod.ref} may be bound to node {node} already; its Binding has no answer yet")
        before = self._last.pop(pod.uid, frozenset())
        placed, until = self._place(asking, state, before, budget), self._clock() + self._settings.reservation_time
        hold = replace(reserved_hold(pod, node, placed.allocations, asking.request, expires=until), announced=True)
        self._cache.put_hold(hold)
        self._last[pod.uid] = hold.uuids
        if len(self._last) > _MOST_KNOWN:
            self._last.popitem(last=False)

    def _place(self, asking: _Asking, state: NodeState, prefer: Collection[GpuUuid], budget: Budget) -> PodChoice:
        """Beside the larger members of its gang that have no GPU yet, if they leave it room here.

        Volcano brings members in any order, and small ones that fill up a GPU leave none for a large one.
        """
        place = partial(place_pod, asking.request, policy=self._settings.gpu_policy, prefer=prefer)
        own = Budget(ON_ONE_NODE)
        try:
            alone = place(state, budget=own)
        finally:
            budget.may(own.spent)
        look = Budget(max(0, budget.left - own.spent))  # the rest is to place it once more
        beside = self._beside_gang(asking, state, look)
        budget.may(min(look.spent, look.most))
        if beside is not state:
            with suppress(CapacityError):
                return place(beside, budget=budget)
        return alone

    def _beside_gang(self, asking: _Asking, state: NodeState, look: Budget) -> NodeState:
        """The node less what those members will take that `look` has steps for, the largest first."""
        for each in self._larger_members(asking, look):
            if not look.may(_STEPS_BESIDE + 8 * len(each.request.containers)):
                break
            with suppress(CapacityError, RequestError):
                placed = place_pod(each.request, state, policy=self._settings.gpu_policy, budget=look)
                state = state.with_pod(placed.allocations, needs=NO_NEEDS)
        return state

    def _larger_members(self, asking: _Asking, look: Budget) -> list[_Asking]:
        """The largest first. Half of `look` is for reading those that are not known; later questions know them."""
        gang, found, reading = asking.pod.gang, list[_Asking](), Budget(look.left // 2)
        if gang is None:
            return []
        for uid in self._cache.waiting_gangs.largest(gang, above=asking.size, most=_MOST_MEMBERS):
            member = self._member(self._cache.waiting[uid], reading)
            if member is not None and member.size > asking.size:
                found.append(member)
        look.may(min(reading.spent, reading.most))
        return sorted(found, key=lambda each: each.size, reverse=True)

    def _member(self, pod: ClusterPod, reading: Budget) -> _Asking | None:
        """None if it cannot be read, or not now."""
        known = self._asking.get(pod.uid)
        if (known is None or known.pod is not pod) and not reading.may(_steps_to_read(pod)):
            return None
        with suppress(RequestError, ParseError):
            return self._remember(pod)
        return None


def _steps_to_read(pod: ClusterPod) -> int:
    return 30 + 15 * len(pod.pod.containers) + sum(map(len, pod.pod.annotations.values())) // 20


def _verdict(why: Rejection) -> TaskVerdict:
    return TaskVerdict(why.text, Code.UNSCHEDULABLE if why.resolvable else Code.UNRESOLVABLE)


log = structlog.get_logger("vcuda.volcano")
_AT_ONCE = 16
_AGAIN_S = 1.0
_MOST_AGAIN_S = 60.0
WHY = "Volcano chose the node"


class AnnotateApi(Protocol):
    """What `Announcements` needs of the API server."""

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None: ...


class Announcements:
    """`announce` is cheap; `run` writes until it is cancelled."""

    def __init__(
        self,
        cache: SchedulerCache,
        api: AnnotateApi,
        *,
        names: ResourceNames,
        again_s: float = _AGAIN_S,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._cache = cache
        self._api = api
        self._names = names
        self._again_s = again_s
        self._wall_ns = wall_ns
        self._waits: dict[PodUid, Backoff] = {}
        self._due: asyncio.Queue[tuple[PodUid, str]] = asyncio.Queue()

    def announce(self, hold: PodHold) -> None:
        self._due.put_nowait((hold.pod.uid, hold.node))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_AT_ONCE):
                group.create_task(self._write_all(), name=f"annotations {number}")

    async def _write_all(self) -> None:
        while True:
            uid, node = await self._due.get()
            if not await self._write(uid, node):
                self._waits.pop(uid, None)

    async def _write(self, uid: PodUid, node: str) -> bool:
        """Whether it is to be tried again."""
        held = self._cache.on(node, uid)
        if held is None or not (held.announced and held.is_bound):
            return False  # it has ended, or the agent has said what it gave
        info = self._cache.nodes[node]
        wanted = binding_annotations(held, info.inventory, now_ns=self._wall_ns(), names=self._names, why=WHY)
        try:
            await self._api.annotate_pod(held.pod, wanted)
        except (KubeNotFoundError, KubeConflictError):
            return False  # the pod is gone; the watch will say so
        except VcudaError as error:
            if uid not in self._waits:
                log.warning("annotation_failed", pod=str(held.pod), error=error.message)
                self._waits[uid] = Backoff(first=self._again_s, most=_MOST_AGAIN_S)
            wait = self._waits[uid].next()
            asyncio.get_running_loop().call_later(wait, self._due.put_nowait, (uid, node))
            return True
        return False
