"""Follows Bindings until the watch or the API server confirms their result.

In: Bindings with and without an answer, and events of the watch. Out: a cache in which every hold has a reason. A
Binding without a clear answer may take effect as long as the API server works on one request. Its GPUs are released
only when that time is over *and* the pod was read afterwards. A pod whose Binding was answered, or that a read found
bound, is read again until the watch knows it: the watch never reports the deletion of a pod that it never listed. Reads
are repeated until one is answered. Invariant: no clock alone releases anything, and nothing is held forever.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod, Pod

log = structlog.get_logger("vcuda.cluster")
_RETRY_S = 5.0
_READS_AT_ONCE = 16
_TIMEOUT_S = 75.0  # longer than the API server works on one request (60 s)


class PodApi(Protocol):
    """What `resolve` needs of the API server: an answer that is not older than the request."""

    async def get_pod(self, pod: PodRef) -> Pod: ...


@dataclass(slots=True, eq=False)
class _Pending:
    """`may_arrive`: until when a Binding may still take effect, by node. `turn` counts events, to find answers that are
    older than the last event."""

    pod: PodRef
    due: float
    may_arrive: dict[str, float] = field(default_factory=dict)
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
