"""bind: checks again, assumes the pod in memory, writes one Binding, and follows it until its result is confirmed.

In: a pod's reference and a node; afterwards events of the watch. Out: an empty string, or the sentence that
kube-scheduler puts into the pod's condition; the cache then says the same, and every hold in it has a reason. The
Binding carries the allocation, in gpu-manager's annotations and vcuda's, so node and GPUs become visible together or
not at all; the node's agent applies exactly these. Two equal requests at the same time are one. A pod with an
unconfirmed Binding is bound with the same GPUs again or not at all, because either of the two Bindings may be the one
that takes effect.

After a failure the pod is read, because it may be bound all the same. Where that leaves the result open,
`UnconfirmedBindings` keeps the pod's GPUs until the watch or the API server confirms the result. A Binding without a
clear answer may take effect as long as the API server works on one request. Its GPUs are released only when that time
is over *and* the pod was read afterwards. A pod whose Binding was answered, or that a read found bound, is read again
until the watch knows it: the watch never reports the deletion of a pod that it never listed. Reads are repeated until
one is answered. Invariant: no clock alone releases anything, and nothing is held forever.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import structlog

from deviceplugin.cluster.extender.cache.pod_hold import NEVER, HoldState, PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.wire import BindingArgs
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.errors import CapacityError, KubeError, KubeNotFoundError, VcudaError
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import ClusterPod, Pod
from deviceplugin.model.pod_request import LARGEST, PodRequest, placeable_request, size_with
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.pod import place_pod
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.cluster")
_RETRY_S = 5.0
_READS_AT_ONCE = 16
_TIMEOUT_S = 75.0  # longer than the API server works on one request (60 s)


class PodApi(Protocol):
    """What `resolve` needs of the API server: an answer that is not older than the request."""

    async def get_pod(self, pod: PodRef) -> Pod: ...


class _Pending(msgspec.Struct, eq=False):
    """`may_arrive`: until when a Binding may still take effect, by node. `turn` counts events, to find answers that are
    older than the last event."""

    pod: PodRef
    due: float
    may_arrive: dict[str, float] = msgspec.field(default_factory=dict)
    turn: int = 0


class UnconfirmedBindings:
    """`busy`: a Binding of this pod is being written now."""

    def __init__(
        self,
        cache: SchedulerCache,
        api: PodApi,
        *,
        clock: Callable[[], float],
        busy: Callable[[PodUid], bool],
    ) -> None:
        self._cache = cache
        self._api = api
        self._clock = clock
        self._busy = busy
        self._pending: dict[PodUid, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def await_watch(self, pod: PodRef) -> None:
        """The pod is bound, and the watch has not shown it yet."""
        self._enter(pod)

    def mark_uncertain(self, pod: PodRef, node: str) -> None:
        """Its Binding may or may not take effect; its GPUs stay assumed."""
        if self._cache.bound_to(pod.uid) is None and not self._cache.is_over(pod.uid):
            self._enter(pod).may_arrive[node] = self._clock() + _TIMEOUT_S
            self._mark_unconfirmed(pod.uid, node)

    def rejected(self, pod: PodRef, node: str) -> None:
        """This Binding will not take effect; an earlier one to the same node still may."""
        if pod.uid in self._pending and node in self._pending[pod.uid].may_arrive:
            self._mark_unconfirmed(pod.uid, node)
        elif self.is_assumed(pod.uid, node):
            self._cache.release(pod.uid, node)

    def deleted(self, pod: PodRef) -> None:
        """The pod does not exist any more; the watch reports that too, if it ever listed the pod."""
        self._pending.pop(pod.uid, None)
        for held in tuple(self._cache.holds(pod.uid)):
            self._cache.release(pod.uid, held.node)

    def read(self, pod: Pod) -> None:
        """The pod was read, and is bound or has ended: no further Binding of it can take effect."""
        uid = PodUid(pod.api_uid)
        confirmed = self._cache.bound_to(uid) is not None and uid not in self._pending
        priority = max((held.priority for held in self._cache.holds(uid)), default=0)
        self._cache.put_pod(ClusterPod(pod, priority=priority, needs=self._cache.needs_of(uid)))
        if pod.is_terminal:
            self._pending.pop(uid, None)
        elif not confirmed:
            self._enter(pod.api_ref).may_arrive.clear()

    def is_assumed(self, uid: PodUid, node: str) -> bool:
        held = self._cache.on(node, uid)
        return held is not None and held.state is HoldState.ASSUMED

    def confirmed(self, uid: PodUid) -> None:
        """The watch shows that the pod is bound, has ended or was deleted, and will show what follows."""
        self._pending.pop(uid, None)

    async def resolve(self) -> None:
        """Reads the pods that are due; called about once a second."""
        due = [
            found for found in self._pending.values() if found.due <= self._clock() and not self._busy(found.pod.uid)
        ]
        due.sort(key=lambda found: found.due)  # those that could not be read before come behind the others
        await asyncio.gather(*(self._read_pod(found) for found in due[:_READS_AT_ONCE]))

    def _enter(self, pod: PodRef) -> _Pending:
        found = self._pending.setdefault(pod.uid, _Pending(pod, 0.0))
        found.due = self._clock() + _TIMEOUT_S
        found.turn += 1
        return found

    async def _read_pod(self, asked: _Pending) -> None:
        uid, turn, began = asked.pod.uid, asked.turn, self._clock()
        asked.due = began + _RETRY_S
        try:
            pod = await self._api.get_pod(asked.pod)
        except KubeNotFoundError:
            pod = None
        except VcudaError as error:
            log.warning("bound_pod_unreadable", pod=str(asked.pod), error=error.message)
            return
        if self._pending.get(uid) is not asked or asked.turn != turn or self._busy(uid):
            return  # the answer is older than the last event
        if pod is None:
            self.deleted(asked.pod)
        elif pod.node or pod.is_terminal:
            self.read(pod)
        else:
            self._not_bound(asked, began)

    def _mark_unconfirmed(self, uid: PodUid, node: str) -> None:
        held = self._cache.on(node, uid)
        if held is not None and held.state is HoldState.ASSUMED:
            self._cache.put_hold(replace(held, state=HoldState.UNCONFIRMED, expires=self._clock()))

    def _not_bound(self, asked: _Pending, at: float) -> None:
        """The pod was not bound at that time: Bindings that cannot arrive any more have failed."""
        uid = asked.pod.uid
        asked.may_arrive = {node: until for node, until in asked.may_arrive.items() if until > at}
        for held in tuple(self._cache.holds(uid)):
            if held.state in (HoldState.ASSUMED, HoldState.UNCONFIRMED) and held.node not in asked.may_arrive:
                if held.has_deadline and held.expires > self._clock():
                    self._cache.put_hold(
                        replace(held, state=HoldState.RESERVED)
                    )  # filter has reserved it again meanwhile
                else:
                    self._cache.release(uid, held.node)
        if asked.may_arrive:
            asked.due = min(asked.may_arrive.values())
        else:
            self._pending.pop(uid)


_TIMED_OUT = 408


class BindApi(PodApi, Protocol):
    """What bind needs of the API server."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None: ...


class _InFlight(msgspec.Struct, frozen=True):
    node: str
    task: "asyncio.Task[str]"


class Bind:
    """One Binding at a time for each pod; nothing else writes the extender's pods. `bound` is called after each
    whose decision is known, `unbound` with why a pod was not bound, where that is certain."""

    def __init__(
        self,
        cache: SchedulerCache,
        api: BindApi,
        *,
        settings: PlacementSettings,
        clock: Callable[[], float],
        why: Callable[[PodHold, Inventory | None], text.DecisionRecord | None],
        bound: Callable[[PodRef, text.DecisionRecord], None] = lambda _pod, _decision: None,
        unbound: Callable[[PodRef, str], None] = lambda _pod, _why: None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._cache = cache
        self._api = api
        self._settings = settings
        self._why = why
        self._bound = bound
        self._unbound = unbound
        self._wall_ns = wall_ns
        self._in_flight: dict[PodUid, _InFlight] = {}
        self.unconfirmed = UnconfirmedBindings(cache, api, clock=clock, busy=lambda uid: uid in self._in_flight)

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
            await asyncio.sleep(0)  # `_forget` runs one iteration after the task's end

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
            annotations, decision = self._assume(order, asked)
        except VcudaError as error:
            self._drop_reservation(order)
            if not isinstance(error, KubeNotFoundError):
                self._unbound(order.pod, error.message)
            return error.message
        try:
            return await self._write(order, annotations, decision)
        except BaseException:  # cancelled too: the API server may have the Binding already
            self.unconfirmed.mark_uncertain(order.pod, order.node)
            raise

    async def _request(self, order: BindingArgs) -> PodRequest:
        """What the pod requests: from its reservation, else from the watch, else from the API server."""
        for held in self._cache.holds(order.pod.uid):
            if held.request is not None:
                return held.request
        known = self._cache.waiting.get(order.pod.uid)
        pod = await self._api.get_pod(order.pod) if known is None else known.pod
        return placeable_request(pod, self._settings.names)

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

    def _assume(self, order: BindingArgs, asked: PodRequest) -> tuple[dict[str, str], text.DecisionRecord | None]:
        """Takes the GPUs before the Binding is written; raises a CapacityError if the pod fits no longer."""
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
            prefer, priority = (held.uuids, held.priority) if held else (frozenset[GpuUuid](), 0)
            state = node_info.state_without({uid})
            placed = place_pod(asked, state, policy=self._settings.gpu_policy, prefer=prefer)
            held = PodHold(
                order.pod,
                node,
                HoldState.RESERVED,
                placed.allocations,
                priority=priority,
                request=asked,
                needs=self._cache.needs_of(uid),
            )
        assumed, decision = replace(held, state=HoldState.ASSUMED, expires=NEVER), self._why(held, node_info.inventory)
        annotations = binding_annotations(
            assumed,
            node_info.inventory,
            now_ns=self._wall_ns(),
            names=self._settings.names,
            why="" if decision is None else text.format_decision(decision),
        )
        self._require_room(order.pod, annotations)
        self._cache.put_hold(assumed)
        return annotations, decision

    def _require_room(self, pod: PodRef, annotations: dict[str, str]) -> None:
        """The pod may have got more annotations since filter was asked; why it is where it is comes last."""
        known = self._cache.waiting.get(pod.uid)
        if known is None:
            return
        has = (known.pod.annotation_bytes, known.pod.annotations)
        size = size_with(*has, annotations)
        if size > LARGEST:
            annotations.pop(annotation_names(self._settings.names.domain).decision, None)
            size = size_with(*has, annotations)
        if size > LARGEST:
            raise CapacityError(
                f"pod {pod} cannot be bound: with its GPUs its annotations have {size} bytes and Kubernetes takes "
                f"{LARGEST}; make its annotations smaller"
            )

    def _drop_reservation(self, order: BindingArgs) -> None:
        held = self._cache.on(order.node, order.pod.uid)
        if held is not None and held.state is HoldState.RESERVED:
            self._cache.release(order.pod.uid, order.node)

    async def _write(
        self, order: BindingArgs, annotations: Mapping[str, str], decision: text.DecisionRecord | None
    ) -> str:
        try:
            await self._api.bind(order.pod, order.node, annotations)
        except VcudaError as error:
            return await self._read_result(order, error)
        if decision is not None:
            self._bound(order.pod, decision)
        if self.unconfirmed.is_assumed(order.pod.uid, order.node):  # else the watch was faster
            self.unconfirmed.await_watch(order.pod)
        return ""

    async def _read_result(self, order: BindingArgs, error: VcudaError) -> str:
        """After a failure: is the pod bound all the same?"""
        log.warning("bind_failed", pod=str(order.pod), node=order.node, error=error.message)
        try:
            found = await self._api.get_pod(order.pod)
        except KubeNotFoundError:
            self.unconfirmed.deleted(order.pod)
            return error.message
        except VcudaError:
            self.unconfirmed.mark_uncertain(order.pod, order.node)
            return error.message
        if found.node or found.is_terminal:
            self.unconfirmed.read(found)
        elif _is_final(error):
            self.unconfirmed.rejected(order.pod, order.node)
            self._unbound(order.pod, error.message)
        else:
            self.unconfirmed.mark_uncertain(order.pod, order.node)
        if found.node == order.node:
            return ""
        return f"pod {order.pod} is already bound to node {found.node}" if found.node else error.message


def _is_final(error: VcudaError) -> bool:
    """The API server has rejected the request: this Binding will not take effect later."""
    return isinstance(error, KubeError) and 400 <= error.code < 500 and error.code != _TIMED_OUT


def binding_annotations(
    held: PodHold, inventory: Inventory | None, *, now_ns: int, names: ResourceNames, why: str = ""
) -> dict[str, str]:
    """GPU indices are written for app containers only: that is what they count. `why`: the decision, for people."""
    known = annotation_names(names.domain)
    shares = {each.owner.name: each.shares for each in held.allocations}
    out = {
        known.predicate_time: str(now_ns),
        known.predicate_node: held.node,
        known.gpu_assigned: "false",
        known.allocation: text.format_allocation(text.PodAllocation(held.pod.uid, shares)),
    }
    if why:
        out[known.decision] = why
    minors = {gpu.uuid: gpu.minor for gpu in inventory.gpus} if inventory else {}
    for each in held.allocations:
        indices = sorted(minors[uuid] for uuid in each.uuids if uuid in minors)
        if each.role is ContainerRole.APP and indices:
            out[known.gpu_indices(each.index)] = text.format_gpu_indices(indices)
    return out
