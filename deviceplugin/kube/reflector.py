"""The pods of this node, kept equal to the API server's by one list and one watch.

In: a client and a node's name. Out: a store by UID, a `synced` event, calls to subscribers at each change. Whatever
happens to the connection, the store ends in the server's state: a lost watch goes on from its last version, one that
cannot (410, a line that is none) begins again with a list, and every failure waits longer than the one before.
Subscribers run on the loop and must not block; one that raises is logged and the others still hear.
"""

import asyncio
import enum
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from deviceplugin.errors import KubeGoneError, ParseError, VcudaError
from deviceplugin.kube.backoff import Backoff
from deviceplugin.kube.changes import EventKind, PodEvent
from deviceplugin.kube.client import KubeClient
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod

log = structlog.get_logger("vcuda.kube")
_STEADY_SECONDS = 10.0


class ChangeKind(enum.Enum):
    """What happened to a pod, seen from the store."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class PodChange:
    """`pod` is the new state, or the last known one of a deleted pod."""

    kind: ChangeKind
    pod: Pod


Subscriber = Callable[[PodChange], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: how long the server keeps one watch (up to half longer, by chance), and the bounds of the back-off."""

    watch: float = 240.0
    first_wait: float = 0.5
    most_wait: float = 30.0


DEFAULT_PACE = Pace()


class PodReflector:
    """`run` does the work until it is cancelled; the rest may be called at any time on the same loop."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        pace: Pace = DEFAULT_PACE,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._node = node
        self._pace = pace
        self._clock = clock
        self._jitter = jitter
        self._version = ""
        self._pods: dict[PodUid, Pod] = {}
        self._subscribers: list[Subscriber] = []
        self._last_heard: float | None = None
        self.synced = asyncio.Event()
        self.lists = 0
        self.failures = 0

    @property
    def pods(self) -> Mapping[PodUid, Pod]:
        """A live view of the store."""
        return MappingProxyType(self._pods)

    @property
    def last_event_age(self) -> float | None:
        """Seconds since the server last said anything, an accepted watch included; None before it did."""
        return None if self._last_heard is None else self._clock() - self._last_heard

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls the subscriber for each change from now on; returns what ends that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    async def run(self) -> None:
        """Never returns and never raises for a server that fails; cancel it to stop."""
        backoff = Backoff(first=self._pace.first_wait, most=self._pace.most_wait, jitter=self._jitter)
        while True:
            started = self._clock()
            cause = await self._attempt(backoff)
            if self._clock() - started > _STEADY_SECONDS:
                backoff.reset()
                if not cause:
                    continue
            self.failures += 1
            wait = backoff.next()
            log.warning("pods are not followed", cause=cause or "the watch ended at once", retry_in_s=round(wait, 2))
            await asyncio.sleep(wait)

    async def _attempt(self, backoff: Backoff) -> str:
        """One watch, with a list before it where there is no version to go on from; says what ended it badly."""
        try:
            if not self._version:
                await self._list()
            async with aclosing(
                self._client.watch_pods(
                    node=self._node, version=self._version, seconds=self._watch_seconds(), opened=self._heard
                )
            ) as events:
                async for event in events:
                    self._apply(event)
                    backoff.reset()
        except (KubeGoneError, ParseError) as error:
            self._version = ""
            return error.message
        except VcudaError as error:
            return error.message
        return ""

    async def _list(self) -> None:
        listing = await self._client.list_pods(node=self._node)
        self._heard()
        self.lists += 1
        found = {pod.ref.uid: pod for pod in listing.pods}
        for gone in [pod for uid, pod in self._pods.items() if uid not in found]:
            self._forget(gone)
        for pod in found.values():
            self._keep(pod)
        self._version = listing.version
        self.synced.set()

    def _heard(self) -> None:
        self._last_heard = self._clock()

    def _watch_seconds(self) -> int:
        return max(1, round(self._pace.watch * (1 + self._jitter() / 2)))

    def _apply(self, event: PodEvent) -> None:
        self._heard()
        self._version = event.version
        if event.pod is None:
            return
        if event.kind is not EventKind.DELETED:
            self._keep(event.pod)
        elif (known := self._pods.get(event.pod.ref.uid)) and known.api_uid == event.pod.api_uid:
            self._forget(event.pod)

    def _keep(self, pod: Pod) -> None:
        known = self._pods.get(pod.ref.uid)
        if known == pod:
            return
        self._pods[pod.ref.uid] = pod
        self._tell(PodChange(ChangeKind.MODIFIED if known else ChangeKind.ADDED, pod))

    def _forget(self, pod: Pod) -> None:
        del self._pods[pod.ref.uid]
        self._tell(PodChange(ChangeKind.DELETED, pod))

    def _tell(self, change: PodChange) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(change)
            except Exception:  # the store must stay right whatever a reader does
                log.exception("a reader of pod changes failed", pod=str(change.pod.ref), change=change.kind.value)
