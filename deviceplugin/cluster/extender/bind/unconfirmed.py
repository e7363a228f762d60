"""What we hold by our own word, until the watch says the same or the API server was asked.

In: Bindings that were answered, Bindings that were not, and what the watch has told. Out: books without a holding that
nobody can explain. A Binding without a clear answer may be carried out as long as the API server works on one request;
only when that time is over *and* the pod was read is it given back. One that was answered, or found by reading, is read
again until the watch knows the pod too: a pod that was never in its store is never told to be deleted. Reading goes on
until it is answered. Invariant: nothing is released on the word of a clock alone, and nothing is held for ever.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.cache.pod_hold import Hold
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod, Pod

log = structlog.get_logger("vcuda.cluster")
_AGAIN = 5.0
_AT_ONCE = 16


class PodApi(Protocol):
    """What resolving needs of the API server: an answer that is not older than the question."""

    async def get_pod(self, pod: PodRef) -> Pod: ...


@dataclass(slots=True, eq=False)
class _Open:
    """`arrives`: until when a Binding to a node may still be carried out. `turn` counts what happened since."""

    pod: PodRef
    due: float
    arrives: dict[str, float] = field(default_factory=dict)
    turn: int = 0


class Unconfirmed:
    """`busy` says that a Binding of this pod is being written now; `patience` is `Patience.doubt`."""

    def __init__(
        self,
        books: Books,
        api: PodApi,
        *,
        clock: Callable[[], float],
        patience: float,
        busy: Callable[[PodUid], bool],
    ) -> None:
        self._books = books
        self._api = api
        self._clock = clock
        self._patience = patience
        self._busy = busy
        self._open: dict[PodUid, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, pod: PodRef) -> None:
        """It is bound, and the watch has not told."""
        self._enter(pod)

    def doubt(self, pod: PodRef, node: str) -> None:
        """Its Binding may be carried out yet, or not; what was committed for it stays."""
        if self._books.bound_to(pod.uid) is None and not self._books.is_over(pod.uid):
            self._enter(pod).arrives[node] = self._clock() + self._patience
            self._waver(pod.uid, node)

    def refused(self, pod: PodRef, node: str) -> None:
        """This Binding will not be carried out; an earlier one to the same node still may."""
        if pod.uid in self._open and node in self._open[pod.uid].arrives:
            self._waver(pod.uid, node)
        elif self.is_committed(pod.uid, node):
            self._books.release(pod.uid, node)

    def gone(self, pod: PodRef) -> None:
        """There is no such pod any more; the watch will tell, if it ever knew it."""
        self._open.pop(pod.uid, None)
        for held in tuple(self._books.holdings(pod.uid)):
            self._books.release(pod.uid, held.node)

    def found(self, pod: Pod) -> None:
        """It was read, and is bound or has ended: no Binding of it will be carried out any more."""
        uid = PodUid(pod.api_uid)
        told = self._books.bound_to(uid) is not None and uid not in self._open
        priority = max((held.priority for held in self._books.holdings(uid)), default=0)
        self._books.put_pod(ClusterPod(pod, priority=priority, needs=self._books.needs_of(uid)))
        if pod.is_terminal:
            self._open.pop(uid, None)
        elif not told:
            self._enter(pod.api_ref).arrives.clear()

    def is_committed(self, uid: PodUid, node: str) -> bool:
        held = self._books.on(node, uid)
        return held is not None and held.hold is Hold.COMMITTED

    def confirmed(self, uid: PodUid) -> None:
        """The watch knows that it is bound, has ended or is gone, and will tell what becomes of it."""
        self._open.pop(uid, None)

    async def resolve(self) -> None:
        """To be called now and then: reads the pods whose time has come."""
        due = [found for found in self._open.values() if found.due <= self._clock() and not self._busy(found.pod.uid)]
        await asyncio.gather(*(self._read(found) for found in due[:_AT_ONCE]))

    def _enter(self, pod: PodRef) -> _Open:
        found = self._open.setdefault(pod.uid, _Open(pod, 0.0))
        found.due = self._clock() + self._patience
        found.turn += 1
        return found

    async def _read(self, asked: _Open) -> None:
        uid, turn, began = asked.pod.uid, asked.turn, self._clock()
        asked.due = began + _AGAIN
        try:
            pod = await self._api.get_pod(asked.pod)
        except KubeNotFoundError:
            pod = None
        except VcudaError as error:
            log.warning(
                "a pod that we bound cannot be read; its GPUs stay held", pod=str(asked.pod), cause=error.message
            )
            return
        if self._open.get(uid) is not asked or asked.turn != turn or self._busy(uid):
            return  # the answer is older than what has happened meanwhile
        if pod is None:
            self.gone(asked.pod)
        elif pod.node or pod.is_terminal:
            self.found(pod)
        else:
            self._not_bound(asked, began)

    def _waver(self, uid: PodUid, node: str) -> None:
        held = self._books.on(node, uid)
        if held is not None and held.hold is Hold.COMMITTED:
            self._books.hold(replace(held, hold=Hold.DOUBTFUL, expires=self._clock()))

    def _not_bound(self, asked: _Open, at: float) -> None:
        """It was not bound at that time: what cannot arrive any more is over."""
        uid = asked.pod.uid
        asked.arrives = {node: until for node, until in asked.arrives.items() if until > at}
        for held in tuple(self._books.holdings(uid)):
            if held.hold in (Hold.COMMITTED, Hold.DOUBTFUL) and held.node not in asked.arrives:
                if held.lapses and held.expires > self._clock():
                    self._books.hold(replace(held, hold=Hold.RESERVED))  # filter has promised it anew meanwhile
                else:
                    self._books.release(uid, held.node)
        if asked.arrives:
            asked.due = min(asked.arrives.values())
        else:
            self._open.pop(uid)
