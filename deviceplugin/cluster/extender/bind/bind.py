"""bind: checks again, commits in memory, and has it written once.

In: a pod's reference and a node. Out: an empty string, or the sentence that kube-scheduler puts into the pod's
condition. The Binding carries the allocation, so that node and GPUs become visible together or not at all. What becomes
of it is found out by `carry_out`. The same order twice at once is one order. A pod whose Binding is in doubt is sent
with the same GPUs again or not at all: either of the two may be the one that is carried out.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from deviceplugin.cluster.extender.bind.binding import binding_annotations, written_allocation
from deviceplugin.cluster.extender.bind.binding_writer import Api, CarryOut
from deviceplugin.cluster.extender.bind.unconfirmed import Unconfirmed
from deviceplugin.cluster.extender.cache.pod_hold import NEVER, Hold, Holding
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.wire import BindOrder
from deviceplugin.errors import CapacityError, VcudaError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.placement.pod import place_pod


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
        self._wall_ns = wall_ns
        self._running: dict[PodUid, _Running] = {}
        self.unconfirmed = Unconfirmed(
            books, api, clock=clock, patience=settings.patience.doubt, busy=lambda uid: uid in self._running
        )
        self._carry_out = CarryOut(api, self.unconfirmed)

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

    async def idle(self) -> None:
        """Until nothing is under way any more, also of callers that have gone."""
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()])
            await asyncio.sleep(0)

    def _forget(self, uid: PodUid, done: _Running) -> None:
        if self._running.get(uid) is done:
            del self._running[uid]

    async def _bind(self, order: BindOrder) -> str:
        try:
            asked = await self._asked(order)
            done = self._done(order)
            if done is not None:
                return done
            annotations = self._commit(order, asked)
        except VcudaError as error:
            self._give_up(order)
            return error.message
        return await self._carry_out.write(order, annotations)

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
        nodes = {held.hold: held.node for held in self._books.holdings(uid)}
        bound = nodes.get(Hold.BOUND) or nodes.get(Hold.COMMITTED)
        if bound is None:
            return None
        return "" if bound == order.node else f"pod {order.pod} is bound to node {bound} already"

    def _commit(self, order: BindOrder, asked: PodRequest) -> dict[str, str]:
        """From here on what the Binding is to carry is nobody else's; raises where it does not fit any more."""
        uid, node = order.pod.uid, order.node
        self._books.lapse()
        if (problem := self._books.problem(node)) is not None:
            raise CapacityError(f"pod {order.pod} cannot be bound to node {node}: {problem.text}")
        book, held = self._books.nodes[node], self._books.on(node, uid)
        fits = held is not None and book.still_fits(uid)
        if held is not None and held.hold is Hold.DOUBTFUL and not fits:
            raise CapacityError(
                f"pod {order.pod} cannot be bound to node {node} again: the GPUs that an earlier Binding without an "
                "answer gave it cannot be used any more, and that Binding may still be carried out; it is tried again"
            )
        if held is None or not fits:
            prefer = {uuid for each in held.allocations for uuid in each.uuids} if held else set()
            state = book.state_without({uid})
            placed = place_pod(asked, state, policy=self._settings.gpu_policy, prefer=prefer)
            priority = held.priority if held else 0
            held = Holding(
                order.pod,
                node,
                Hold.RESERVED,
                placed.allocations,
                priority=priority,
                request=asked,
                needs=self._books.needs_of(uid),
            )
        committed = replace(held, hold=Hold.COMMITTED, expires=NEVER, written=written_allocation(held))
        annotations = binding_annotations(committed, book.inventory, now_ns=self._wall_ns(), names=self._settings.names)
        self._books.hold(committed)
        return annotations

    def _give_up(self, order: BindOrder) -> None:
        held = self._books.on(order.node, order.pod.uid)
        if held is not None and held.hold is Hold.RESERVED:
            self._books.release(order.pod.uid, order.node)
