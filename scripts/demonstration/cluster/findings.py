"""What the cluster's half has found: its part of the document, and what its promises are checked against.

In: pods and nodes as the API server shows them, containers as kubelet started them. Out: plain frozen structs.
"""

from typing import Any

import msgspec


class Share(msgspec.Struct, frozen=True, order=True):
    """A part of one GPU."""

    uuid: str
    cores: int
    blocks: int


class Placed(msgspec.Struct, frozen=True):
    """One container: what the extender chose (annotation), what the agent wrote down (ledger), what it sees (env)."""

    pod: str
    container: str
    node: str
    phase: str
    gpus: tuple[int, ...]
    chosen: tuple[Share, ...]
    held: tuple[Share, ...]
    visible: tuple[str, ...]


class Reviewed(msgspec.Struct, frozen=True):
    """A pod at the webhook; `stored` is empty and `refusal` says why where it was refused."""

    pod: str
    asked: dict[str, Any]
    stored: dict[str, Any] = {}
    refusal: str = ""


class PolicyRun(msgspec.Struct, frozen=True):
    """The same arrivals by one node policy: cores taken of each GPU, by node, before the large pod came.

    `waiting` are arrivals that found no place; `large` is the large pod's node, empty where it waits, and then `why`.
    """

    policy: str
    taken: dict[str, tuple[int, ...]]
    waiting: tuple[str, ...]
    large: str
    why: str


class Waited(msgspec.Struct, frozen=True):
    """A pod that no GPU had room for: what kube-scheduler and `vcuda explain` said, and where it ran in the end."""

    pod: str
    condition: str
    explanation: str
    ended: str
    node: str
    phase: str


class Survivor(msgspec.Struct, frozen=True):
    """A pod around the kill: the node that filter named before, the node that it is bound to, Bindings written."""

    pod: str
    filtered: str
    bound: str
    writes: int
    phase: str


class Gang(msgspec.Struct, frozen=True):
    """A gang: how many found a node in the one cycle, reservations then and afterwards, who was bound in the end."""

    size: int
    found: int
    reserved: int
    left: int
    bound: tuple[str, ...]
    why: str


class Simulated(msgspec.Struct, frozen=True):
    """A line of `vcuda simulate` on the example that is shipped."""

    policy: str
    allocated_percent_at_100: float
    allocated_percent_at_130: float
    fragmented_percent: float


class Cluster(msgspec.Struct, frozen=True):
    """Everything of this half, empty where it broke off before."""

    nodes: dict[str, tuple[str, ...]] = {}
    reviewed: tuple[Reviewed, ...] = ()
    placed: tuple[Placed, ...] = ()
    policies: tuple[PolicyRun, ...] = ()
    waited: Waited | None = None
    survivors: tuple[Survivor, ...] = ()
    gangs: tuple[Gang, ...] = ()
    simulated: tuple[Simulated, ...] = ()
    seconds: dict[str, float] = {}
