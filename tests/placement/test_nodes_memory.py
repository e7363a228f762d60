"""What the choice among nodes keeps in memory: of nodes as they are, not of all that they were."""

import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from deviceplugin.model.preferences import NodePolicy
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeScorer
from tests.placement.clusters import node, pod


def _grown(work: Callable[[], None]) -> int:
    """Bytes that are held after it and were not before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _changing(rounds: int, spare: Spare | None = None) -> Iterator[NodeState]:
    """One node with eight GPUs, of which something else is held each time."""
    chance = random.Random(1)
    for _ in range(rounds):
        used = {at: (chance.randrange(100), chance.randrange(200)) for at in range(8)}
        yield node("node", 8, used=used, spare=spare)


@pytest.mark.parametrize(
    ("policy", "spare"),
    [(NodePolicy.BINPACK, None), (NodePolicy.SPREAD, Spare(64_000, 256_000))],
    ids=["CPU not known", "CPU known"],
)
def test_what_a_node_was_is_forgotten(policy: NodePolicy, spare: Spare | None) -> None:
    scorer = NodeScorer(node_policy=policy)
    asked = pod((30, 8))

    def go_through(rounds: int) -> None:
        for state in _changing(rounds, spare):
            scorer.choose(asked, [state])

    go_through(50)
    assert _grown(lambda: go_through(500)) < 500 * 1_000
