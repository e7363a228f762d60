"""Kubernetes events about pods and this node, of the agent or of the scheduler.

In: an object, a reason, a message; `about_pod` and `about_node` (called on the loop) return at once and never raise.
Out: events in the API server, sent slowly in the background. A repeated event increments the count of the first one.
The queue and the list of sent events are bounded. Namespaces are sent in turns, and where the queue is full the latest
event of the namespace with most of them makes room, so that no namespace takes the place of others; what is dropped is
logged once for each time that the queue was full. Events inform users; the ledger has all that must not be lost.
"""

import asyncio
import datetime as dt
import enum
import secrets
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError, one_line
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.collection import ObjectKind, ObjectRef
from deviceplugin.kube.structs import Json
from deviceplugin.kube.transport import TokenBucket
from deviceplugin.model.allocation import PodRef

log = structlog.get_logger("vcuda.kube")
_MOST_MESSAGE = 1000  # the API server refuses a note above 1,024 bytes
_REMEMBERED = 512
_ATTEMPTS = 3
_AFTER_S = 0.02  # what the event is about has its answer first, and so has what comes with it
_AGENT = "vcuda-agent"


EVENTS = ObjectKind("v1", "events", "Event", "event", Json, lambda _: None)


class EventReason(enum.Enum):
    """The reasons that appear in `kubectl describe`, each with its event type."""

    ALLOCATED = ("GPUAllocated", "Normal")
    ALLOCATION_FAILED = ("GPUAllocationFailed", "Warning")
    CONFIG_WRITTEN = ("GPUConfigWritten", "Normal")
    UNHEALTHY = ("GPUUnhealthy", "Warning")
    RECOVERED = ("GPURecovered", "Normal")
    LEDGER_REPAIRED = ("GPULedgerRepaired", "Warning")
    START_FAILED = ("GPUStartFailed", "Warning")
    OVER_LIMIT = ("GPUOverLimit", "Warning")
    FILES_LOST = ("GPUFilesLost", "Warning")
    GONE = ("GPUGone", "Warning")
    PLACED = ("GPUPlaced", "Normal")
    NOT_BOUND = ("GPUBindFailed", "Warning")
    CLAIM_REFUSED = ("GPUClaimRefused", "Warning")

    @property
    def word(self) -> str:
        return self.value[0]

    @classmethod
    def of(cls, error: VcudaError) -> "EventReason":
        return next((reason for reason in cls if reason.word == error.reason), cls.ALLOCATION_FAILED)


class EventKey(msgspec.Struct, frozen=True):
    """The object of an event, and what happened. Two events with the same key are one that happened twice."""

    kind: str
    name: str
    namespace: str
    uid: str
    reason: EventReason
    message: str

    @property
    def event_namespace(self) -> str:
        """Events about objects without a namespace are in `default`."""
        return self.namespace or "default"


class Occurrences(msgspec.Struct):
    """When the event happened first and last, and how often; `name` is that of the object once there is one."""

    first: dt.datetime
    last: dt.datetime
    count: int = 1
    name: str = ""


def event_object(key: EventKey, seen: Occurrences, *, node: str, component: str = _AGENT) -> dict[str, object]:
    """`node` is where the component runs, or the name of its replica."""
    subject = {"apiVersion": "v1", "kind": key.kind, "name": key.name, "uid": key.uid}
    if key.namespace:
        subject["namespace"] = key.namespace
    word, kind = key.reason.value
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": seen.name, "namespace": key.event_namespace},
        "involvedObject": subject,
        "reason": word,
        "message": key.message,
        "type": kind,
        "source": {"component": component, "host": node},
        "reportingComponent": component,
        "reportingInstance": node,
        "firstTimestamp": timestamp(seen.first),
        "lastTimestamp": timestamp(seen.last),
        "count": seen.count,
    }


def timestamp(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Rate(msgspec.Struct, frozen=True):
    """At most `burst` events at once, then one every `seconds`; at most `queue` different events wait."""

    burst: int = 25
    seconds: float = 1.0
    queue: int = 256


DEFAULT_RATE = Rate()


class EventRecorder:
    """`run` sends until it is cancelled; before and after, recording only fills the queue."""

    def __init__(
        self,
        client: ObjectClient,
        *,
        node: str,
        component: str = _AGENT,
        rate: Rate = DEFAULT_RATE,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._client = client
        self._node = node
        self._component = component
        self._rate = rate
        self._away = Backoff(first=rate.seconds)
        self._now = now
        self._queue: dict[str, OrderedDict[EventKey, Occurrences]] = {}
        self._waiting = 0
        self._is_full = False
        self._known: OrderedDict[EventKey, Occurrences] = OrderedDict()
        self._filled = asyncio.Event()

    def about_pod(self, pod: PodRef, reason: EventReason, message: str) -> None:
        """An event on a pod; use `Pod.api_ref`, or `kubectl describe` does not find it for a static pod."""
        self._record("Pod", pod.name, pod.namespace, pod.uid, reason, message)

    def about_node(self, reason: EventReason, message: str) -> None:
        """An event on this node; the UID is the name of the node, as `kubectl describe node` expects."""
        self._record("Node", self._node, "", self._node, reason, message)

    async def run(self) -> None:
        """Sends until cancelled.

        An error of the server drops the event; while the server is unreachable, events wait.
        """
        bucket = TokenBucket(rate=1 / self._rate.seconds, burst=self._rate.burst)
        while True:
            if not self._filled.is_set():
                await self._filled.wait()
                await asyncio.sleep(_AFTER_S)
            await bucket.take()
            await self._send_next()

    def _record(self, kind: str, name: str, namespace: str, uid: str, reason: EventReason, message: str) -> None:
        key = EventKey(kind, name, namespace, uid, reason, one_line(message, most=_MOST_MESSAGE))
        now = self._now()
        part = self._queue.get(namespace)
        if part and (waiting := part.get(key)):
            waiting.count += 1
            waiting.last = now
        elif self._waiting < self._rate.queue or self._makes_room(namespace):
            self._put(key, Occurrences(first=now, last=now))
            self._filled.set()

    def _put(self, key: EventKey, waiting: Occurrences) -> None:
        self._queue.setdefault(key.namespace, OrderedDict())[key] = waiting
        self._waiting += 1

    def _makes_room(self, namespace: str) -> bool:
        """Whether another namespace had more than its part, and gave some of it."""
        most = max(self._queue, key=lambda each: len(self._queue[each]))
        if not self._is_full:
            self._is_full = True
            log.warning("events_crowded_out", queue=self._rate.queue, namespace=most, waiting=len(self._queue[most]))
        if len(self._queue[most]) <= len(self._queue.get(namespace, ())) + 1:
            return False
        self._queue[most].popitem()
        self._waiting -= 1
        return True

    def _take(self) -> tuple[EventKey, Occurrences]:
        """The first one of the namespace whose turn it is."""
        namespace = next(iter(self._queue))
        part = self._queue.pop(namespace)
        found = part.popitem(last=False)
        if part:
            self._queue[namespace] = part
        self._waiting -= 1
        return found

    async def _send_next(self) -> None:
        key, waiting = self._take()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._send(key, waiting)
            except VcudaError as error:
                if _is_away(error):
                    self._put_back(key, waiting)
                    await asyncio.sleep(self._away.next())
                    break
                if attempt == _ATTEMPTS or not _may_pass(error):
                    log.warning("event_dropped", reason=key.reason.word, error=error.message)
                    break
                await asyncio.sleep(self._rate.seconds * attempt)
            else:
                self._away.reset()
                break
        if not self._queue:
            self._filled.clear()
            self._is_full = False

    def _put_back(self, key: EventKey, waiting: Occurrences) -> None:
        """To the end of the queue, so that one event cannot block the others."""
        part = self._queue.get(key.namespace)
        if part and (meanwhile := part.pop(key, None)):
            waiting.count += meanwhile.count
            waiting.last = meanwhile.last
            self._waiting -= 1
        self._put(key, waiting)

    async def _send(self, key: EventKey, waiting: Occurrences) -> None:
        namespace = key.event_namespace
        if known := self._known.get(key):
            change = {"count": known.count + waiting.count, "lastTimestamp": timestamp(waiting.last)}
            try:
                await self._client.patch(EVENTS, ObjectRef(namespace, known.name), change, what="count an event")
            except KubeNotFoundError:
                del self._known[key]  # events expire after an hour
            else:
                known.count += waiting.count
                self._known.move_to_end(key)
                return
        waiting.name = f"{key.name[:230].rstrip('-.')}.{secrets.token_hex(8)}"
        event = event_object(key, waiting, node=self._node, component=self._component)
        await self._client.create(EVENTS, namespace, event, what="create an event")
        self._known[key] = waiting
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def _is_away(error: VcudaError) -> bool:
    """The server does not answer: no event can be sent, so keep them all."""
    return isinstance(error, KubeError) and error.code == 0


def _may_pass(error: VcudaError) -> bool:
    """Whether the same request may succeed later: the server is busy or has an error."""
    return isinstance(error, KubeError) and (error.code in (401, 429) or error.code >= 500)
