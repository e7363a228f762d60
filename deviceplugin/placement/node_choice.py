"""What the choice among nodes answers: the node and the GPUs, and a verdict on every other node."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.placement.node_score import Score
from deviceplugin.placement.pod import PodChoice
from deviceplugin.placement.prefilter import Reason


class Aside(enum.Enum):
    """Why a node was not taken, where the gate had nothing against it; the texts are constant, as the gate's are."""

    PREFERRED = "another node was preferred"
    SPARE = "insufficient cpu or memory"
    TOGETHER = "its containers do not fit together"
    GIVEN_UP = "no room found for its containers together, though not every combination was tried"


Verdict = Reason | Aside


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """`node` and `placed` are None where no node carries the pod.

    `ranked` has the score of every node that may carry it, by name; `refused` the verdict on every other.
    """

    node: str | None
    placed: PodChoice | None
    ranked: Mapping[str, Score]
    refused: Mapping[str, Verdict]

    def verdict(self, node: str) -> Verdict | None:
        """None for the chosen node and for one that was never looked at."""
        if node == self.node:
            return None
        if node in self.refused:
            return self.refused[node]
        return Aside.PREFERRED if node in self.ranked else None
