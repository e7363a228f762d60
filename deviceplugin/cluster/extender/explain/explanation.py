"""The answer to "why is this pod here, or why does it wait?".

In: what `explain` found. Out: values that `/explain` writes as JSON; the field names are an interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.model.gpu import GpuUuid


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """`against` is empty where this GPU can serve the pod; `holders` are pods with what they hold of it."""

    uuid: GpuUuid
    minor: int
    model: str
    against: str
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """`change`: what must change for the pod to fit here."""

    node: str
    reason: str
    change: str
    gpus: tuple[GpuVerdict, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`at` is when filter was last asked, in Unix seconds, 0.0 where it never was.

    `now`: the nodes were judged for this answer, by what is known now; else they are as filter last judged them.
    `condition` is what the scheduler wrote into the pod's condition PodScheduled. `reasons` counts the nodes by reason,
    `left_out` those without detail.
    """

    pod: str
    sentence: str
    at: float = 0.0
    node: str | None = None
    asked: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[NodeVerdict, ...] = ()
    left_out: int = 0
    now: bool = False
    condition: str = ""
