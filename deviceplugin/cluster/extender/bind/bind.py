"""bind: checks again, assumes the pod in memory, and writes one Binding.

In: a pod's reference and a node. Out: an empty string, or the sentence that kube-scheduler puts into the pod's
condition. The Binding carries the allocation, so node and GPUs become visible together or not at all. `binding_writer`
finds out its result. Two equal requests at the same time are one. A pod with an unconfirmed Binding is bound with the
same GPUs again or not at all, because either of the two Bindings may be the one that takes effect.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from deviceplugin.cluster.extender.bind.binding_writer import BindApi, BindingWriter, binding_annotations
from deviceplugin.cluster.extender.bind.unconfirmed import UnconfirmedBindings
from deviceplugin.cluster.extender.cache.pod_hold import NEVER, HoldState, PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.wire import BindingArgs
from deviceplugin.errors import CapacityError, VcudaError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.placement.pod import place_pod


@dataclass(frozen=True, slots=True)
class _InFlight:
    node: str
    task: "asyncio.Task[str]"


class Bind:
    """One Binding at a time for each pod."""

    def __init__(
        self,
        cache: SchedulerCache,
        api: BindApi,
        *,
        settings: Settings,
        clock: Callable[[], float],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._cache = cache
        self._api = api
        self._settings = settings
        self._wall_ns = wall_ns
        self._in_flight: dict[PodUid, _InFlight] = {}
        self.unconfirmed = UnconfirmedBindings(
            cache, api, clock=clock, timeout=settings.timeouts.unconfirmed, busy=lambda uid: uid in self._in_flight
        )
        self._writer = BindingWriter(api, self.unconfirmed)

    async def bind(self, order: BindingArgs) -> str:
        """Runs to its end even if the caller disconnects: kube-scheduler's timeout is shorter than the API server's."""
        uid = order.pod.uid
        # A task that is done stays in the table for a moment; awaiting it again and again would never let it leave.
        while (running := self._in_flight.get(uid)) is not None and not running.task.done():
            said = await asyncio.shield(running.task)
            if running.node == order.node:
                return said
        task = asyncio.create_task(self._bind(order), name=f"bind {order.pod}")
        self._in_flight[uid] = mine = _InFlight(order.node, task)
        task.add_done_callback(lambda _: self._forget(uid, mine))
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Waits until no Binding is in flight; only then may another replica lead."""
        while self._in_flight:
            await asyncio.wait([running.task for running in self._in_flight.values()])
            await asyncio.sleep(0)

    def _forget(self, uid: PodUid, done: _InFlight) -> None:
        if self._in_flight.get(uid) is done:
            del self._in_flight[uid]

    async def _bind(self, order: BindingArgs) -> str:
        try:
            if (done := self._known_result(order)) is not None:
                return done
            asked = await self._request(order)
            if (done := self._known_result(order)) is not None:  # the watch was faster than the API server's answer
                return done
            annotations = self._assume(order, asked)
        except VcudaError as error:
            self._drop_reservation(order)
            return error.message
        return await self._writer.write(order, annotations)

    async def _request(self, order: BindingArgs) -> PodRequest:
        """What the pod requests: from its reservation, else from the watch, else from the API server."""
        for held in self._cache.holds(order.pod.uid):
            if held.request is not None:
                return held.request
        known = self._cache.waiting.get(order.pod.uid)
        pod = await self._api.get_pod(order.pod) if known is None else known.pod
        return pod_request(pod, self._settings.names)

    def _known_result(self, order: BindingArgs) -> str | None:
        """The answer, if nothing is left to do."""
        uid = order.pod.uid
        if self._cache.is_over(uid):
            return f"pod {order.pod} has ended or was deleted"
        nodes = {held.state: held.node for held in self._cache.holds(uid)}
        bound = nodes.get(HoldState.BOUND) or nodes.get(HoldState.ASSUMED)
        if bound is None:
            return None
        return "" if bound == order.node else f"pod {order.pod} is already bound to node {bound}"

    def _assume(self, order: BindingArgs, asked: PodRequest) -> dict[str, str]:
        """Takes the GPUs before the Binding is written; raises a CapacityError where the pod fits no longer."""
        uid, node = order.pod.uid, order.node
        self._cache.expire()
        if (problem := self._cache.problem(node)) is not None:
            raise CapacityError(f"pod {order.pod} cannot be bound to node {node}: {problem.text}")
        node_info, held = self._cache.nodes[node], self._cache.on(node, uid)
        fits = held is not None and node_info.still_fits(uid)
        if held is not None and held.state is HoldState.UNCONFIRMED and not fits:
            raise CapacityError(
                f"pod {order.pod} cannot be bound to node {node} again yet: an earlier Binding got no answer and may "
                "still take effect, but its GPUs cannot be used any more; kube-scheduler retries the pod"
            )
        if held is None or not fits:
            prefer = {uuid for each in held.allocations for uuid in each.uuids} if held else set()
            state = node_info.state_without({uid})
            placed = place_pod(asked, state, policy=self._settings.gpu_policy, prefer=prefer)
            priority = held.priority if held else 0
            held = PodHold(
                order.pod,
                node,
                HoldState.RESERVED,
                placed.allocations,
                priority=priority,
                request=asked,
                needs=self._cache.needs_of(uid),
            )
        assumed = replace(held, state=HoldState.ASSUMED, expires=NEVER)
        annotations = binding_annotations(
            assumed, node_info.inventory, now_ns=self._wall_ns(), names=self._settings.names
        )
        self._cache.put_hold(assumed)
        return annotations

    def _drop_reservation(self, order: BindingArgs) -> None:
        held = self._cache.on(order.node, order.pod.uid)
        if held is not None and held.state is HoldState.RESERVED:
            self._cache.release(order.pod.uid, order.node)
