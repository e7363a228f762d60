"""What the service is asked, and what it needs to answer: the interface between HTTP and the decisions.

In: the body of a request as it came. Out: a `VerbResponse`, an `HttpError`, or a VcudaError: a ParseError is the
caller's fault (400), any other is the scheduler's (500). Not here: HTTP, and any decision.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import Metric

from deviceplugin.serve.messages import HttpError

SMALL_BODY = 32 << 10
"""What is read in some milliseconds, whatever it says."""


def unavailable(sentence: str) -> HttpError:
    """A good request that this replica cannot answer now; the sentence says which replica can, or what is missing.

    Several replicas have one address: the next connection finds another.
    """
    return HttpError(503, "unavailable", sentence)


@dataclass(frozen=True, slots=True)
class VerbResponse:
    """`outcome` is a label of the metrics; `rejections` counts rejected nodes by reason."""

    body: bytes
    outcome: str = "answered"
    rejections: Mapping[str, int] = field(default_factory=dict)


def _no_namespace(body: bytes) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Verb:
    """One POST route; with `before_ready` it answers before the process is ready.

    `loopback_only`: only callers on loopback are answered, because the extender protocol has no authentication.
    `clients`: only callers with a client certificate in one of these names are answered; empty: no certificate needed.
    `largest`: the limit of a body in bytes; `instead` says what to send instead of a larger one. `outcomes` of answers.
    `namespace_of`: whose turn an unknown caller's body takes; it raises nothing.
    """

    name: str
    answer: Callable[[bytes], Awaitable[VerbResponse]]
    before_ready: bool = False
    loopback_only: bool = False
    clients: tuple[str, ...] = ()
    largest: int = 8 << 20
    instead: str = "send names instead of whole nodes"
    outcomes: tuple[str, ...] = ("answered",)
    namespace_of: Callable[[bytes], str] = _no_namespace

    @property
    def is_restricted(self) -> bool:
        """Only known callers are answered."""
        return self.loopback_only or bool(self.clients)


class Service(Protocol):
    """Everything behind the routes."""

    @property
    def verbs(self) -> tuple[Verb, ...]: ...
    def not_ready(self) -> tuple[str, ...]:
        """A phrase for each thing that is missing; empty when requests can be served."""

    def not_leading(self) -> tuple[str, ...]:
        """The same for the verbs of kube-scheduler, which only the leader answers."""

    def gauges(self) -> Iterable[Metric]:
        """What `metrics` lists as gauges, with the values of now."""

    async def view(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        """HTTP status and a document of the cluster-wide view, or an error, as JSON; `path` begins with `/view/`."""

    async def explain(self, namespace: str, name: str, headers: Mapping[str, str], peer: str) -> tuple[int, bytes]:
        """HTTP status, and an explanation or an error as JSON; `headers` may show whose names the caller may read."""
