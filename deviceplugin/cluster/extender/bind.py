"""bind: checks again, commits in memory, and writes once.

In: a pod's reference and a node. Out: an empty string, or the sentence that kube-scheduler puts into the pod's
condition. The Binding carries the allocation, so that node and GPUs become visible together or not at all. Whatever the
API server answers, a failure is followed by a look at the pod: it may be bound all the same. Where even that leaves it
open, what was committed is held until no request can still be on its way. The same order twice at once is one order.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.binding import binding_annotations, still_fits
from deviceplugin.cluster.extender.books import Books
from deviceplugin.cluster.extender.holding import NEVER, Hold, Holding
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.wire import BindOrder
from deviceplugin.errors import CapacityError, KubeError, KubeNotFoundError, VcudaError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.pod import Pod
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.placement.pod import place_pod

log = structlog.get_logger("vcuda.cluster")
_TIMED_OUT = 408


class Api(Protocol):
    """What bind needs of the API server."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None: ...

    async def get_pod(self, pod: PodRef) -> Pod: ...


@dataclass(frozen=True, slots=True)
class _Running:
    node: str
    task: "asyncio.Task[str]"


class Bind:
    """The only writer of the extender's pods."""

    def __init__(
        self,
        books: Books,
        api: Api,
        *,
        settings: Settings,
        clock: Callable[[], float],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._books = books
        self._api = api
        self._settings = settings
        self._clock = clock
        self._wall_ns = wall_ns
        self._running: dict[PodUid, _Running] = {}

    async def bind(self, order: BindOrder) -> str:
        """Goes on to its end when the caller goes away: kube-scheduler gives up earlier than the API server."""
        uid = order.pod.uid
        # A task that is done stays in the table for a moment; awaiting it again and again would never let it leave.
        while (running := self._running.get(uid)) is not None and not running.task.done():
            said = await asyncio.shield(running.task)
            if running.node == order.node:
                return said
        task = asyncio.create_task(self._bind(order), name=f"bind {order.pod}")
        self._running[uid] = mine = _Running(order.node, task)
        task.add_done_callback(lambda _: self._forget(uid, mine))
        return await asyncio.shield(task)

    def _forget(self, uid: PodUid, done: _Running) -> None:
        if self._running.get(uid) is done:
            del self._running[uid]

    async def _bind(self, order: BindOrder) -> str:
        try:
            asked = await self._asked(order)
            done = self._done(order)
            if done is not None:
                return done
            committed = self._commit(order, asked)
        except VcudaError as error:
            self._give_up(order, hold=Hold.RESERVED)
            return error.message
        return await self._write(order, committed)

    async def _asked(self, order: BindOrder) -> PodRequest:
        """What the pod wants: filter has asked, or the watch has told, or the API server says."""
        for held in self._books.holdings(order.pod.uid):
            if held.request is not None:
                return held.request
        known = self._books.waiting.get(order.pod.uid)
        if known is None and self._done(order) is None:
            return pod_request(await self._api.get_pod(order.pod), self._settings.names)
        return pod_request(known.pod, self._settings.names) if known else PodRequest(order.pod, ())

    def _done(self, order: BindOrder) -> str | None:
        """The answer, where there is nothing left to do."""
        uid = order.pod.uid
        if self._books.is_over(uid):
            return f"pod {order.pod} has ended or was deleted"
        bound = self._books.bound_to(uid)
        if bound is None and any(held.hold is Hold.COMMITTED for held in self._books.holdings(uid)):
            bound = next(held.node for held in self._books.holdings(uid) if held.hold is Hold.COMMITTED)
        if bound is None:
            return None
        return "" if bound == order.node else f"pod {order.pod} is bound to node {bound} already"

    def _commit(self, order: BindOrder, asked: PodRequest) -> Holding:
        """From here on to the Binding what the pod gets is nobody else's; raises where it does not fit any more."""
        uid, node = order.pod.uid, order.node
        self._books.lapse()
        if (problem := self._books.problem(node)) is not None:
            raise CapacityError(f"pod {order.pod} cannot be bound to node {node}: {problem.text}")
        state = self._books.nodes[node].state_without({uid})
        held = self._books.on(node, uid)
        if held is None or not (held.hold is Hold.DOUBTFUL or still_fits(held.allocations, state)):
            prefer = {uuid for each in held.allocations for uuid in each.uuids} if held else set()
            placed = place_pod(asked, state, policy=self._settings.gpu_policy, prefer=prefer)
            priority = held.priority if held else 0
            held = Holding(order.pod, node, Hold.RESERVED, placed.allocations, priority=priority, request=asked)
        committed = replace(held, hold=Hold.COMMITTED, expires=NEVER)
        self._books.hold(committed)
        return committed

    async def _write(self, order: BindOrder, committed: Holding) -> str:
        inventory = self._books.nodes[order.node].inventory
        annotations = binding_annotations(committed, inventory, now_ns=self._wall_ns(), names=self._settings.names)
        try:
            await self._api.bind(order.pod, order.node, annotations)
        except VcudaError as error:
            return await self._look(order, error)
        except BaseException:
            self._doubt(order)
            raise
        return ""

    async def _look(self, order: BindOrder, error: VcudaError) -> str:
        """After a failure: is the pod bound all the same?"""
        log.warning("a Binding failed", pod=str(order.pod), node=order.node, cause=error.message)
        try:
            found = await self._api.get_pod(order.pod)
        except KubeNotFoundError:
            self._give_up(order, hold=Hold.COMMITTED)
            return error.message
        except VcudaError:
            self._doubt(order)
            return error.message
        except BaseException:
            self._doubt(order)
            raise
        if found.node:
            held = self._books.on(order.node, order.pod.uid)
            self._books.put_pod(ClusterPod(found, priority=held.priority if held else 0))
            return "" if found.node == order.node else f"pod {order.pod} is bound to node {found.node} already"
        if _is_final(error):
            self._give_up(order, hold=Hold.COMMITTED)
        else:
            self._doubt(order)
        return error.message

    def _doubt(self, order: BindOrder) -> None:
        held = self._books.on(order.node, order.pod.uid)
        if held is not None and held.hold is Hold.COMMITTED:
            until = self._clock() + self._settings.patience.doubt
            self._books.hold(replace(held, hold=Hold.DOUBTFUL, expires=until))

    def _give_up(self, order: BindOrder, *, hold: Hold) -> None:
        held = self._books.on(order.node, order.pod.uid)
        if held is not None and held.hold is hold:
            self._books.release(order.pod.uid, order.node)


def _is_final(error: VcudaError) -> bool:
    """The API server has refused: this Binding will not be carried out later."""
    return isinstance(error, KubeError) and 400 <= error.code < 500 and error.code != _TIMED_OUT
