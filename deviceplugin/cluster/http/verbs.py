"""What the service is asked, and what it needs to answer: the door between HTTP and what decides.

In: the body of a request as it came. Out: an `Answer`, or one of our errors: a ParseError is the caller's fault (400),
a `NotNowError` says that another replica or a later time will do (503). Not here: HTTP, and any decision.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from deviceplugin.errors import VcudaError


class NotNowError(VcudaError):
    """A good request that this replica cannot answer now; the message says who can, or what is waited for."""

    status: ClassVar[str] = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Answer:
    """`outcome` is a label of the metrics; `rejections` are nodes refused, by constant reason."""

    body: bytes
    outcome: str = "answered"
    rejections: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verb:
    """One POST route; `early` that it answers before all is ready.

    `near`: answered to callers of this machine or pod only, for the protocol of extenders knows no authentication.
    `clients`: answered to callers only that show a certificate in one of these names; empty: nobody has to.
    """

    name: str
    answer: Callable[[bytes], Awaitable[Answer]]
    early: bool = False
    near: bool = False
    clients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """What is true now, for the gauges. `days_left` by certificate, `silence` in seconds by what is watched."""

    nodes: int = 0
    gpus: int = 0
    reservations: int = 0
    pods: int = 0
    unconfirmed: int = 0
    overbooked: int = 0
    leads: bool = False
    days_left: Mapping[str, float] = field(default_factory=dict)
    silence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The last verdict about a pod as JSON, or `status` and a sentence. `leader` is who may know more."""

    body: bytes = b""
    status: int = 200
    sentence: str = ""
    leader: str = ""


class Service(Protocol):
    """Everything behind the routes."""

    @property
    def verbs(self) -> tuple[Verb, ...]: ...
    def not_ready(self) -> tuple[str, ...]:
        """A phrase for each thing that is missing; empty when requests can be served."""

    def not_leading(self) -> tuple[str, ...]:
        """The same for the verbs of kube-scheduler, which only one replica answers."""

    def figures(self) -> Figures: ...
    async def explain(self, namespace: str, name: str) -> Explanation: ...
