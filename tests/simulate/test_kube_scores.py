"""kube-scheduler's scores by CPU and memory, calculated by hand from the formulas of 1.36.2."""

from deviceplugin.placement.node_state import Spare
from deviceplugin.simulate.stock_scheduler import KubeScores, ScoringStrategy, score
from tests.placement.clusters import node

LEAST, MOST = ScoringStrategy
WHOLE = Spare(1000, 1000)


def test_a_score_is_that_of_kube_scheduler() -> None:
    cases = [
        # Half of both free after the pod: 50, and the balance is as good as before: 75.
        (LEAST, Spare(700, 700), Spare(200, 200), 50 + 75),
        (MOST, Spare(700, 700), Spare(200, 200), 50 + 75),
        (LEAST, WHOLE, Spare(100, 100), 90 + 75),
        (MOST, WHOLE, Spare(100, 100), 10 + 75),
        # A pod of CPU alone spoils the balance from 100 to 80: 50 + (50 + 80 - 100) // 2.
        (LEAST, WHOLE, Spare(400, 0), 80 + 65),
        # It restores the balance from 80 to 100 where memory was used before.
        (LEAST, Spare(1000, 600), Spare(400, 0), 60 + 85),
        # Without requests there is no BalancedAllocation.
        (LEAST, Spare(700, 300), Spare(0, 0), 50),
        # Each division drops its remainder: (666 * 100 // 1000 + 100) // 2, and (1 - 0.167) * 100 is 83.
        (LEAST, WHOLE, Spare(334, 0), 83 + 50 + (50 + 83 - 100) // 2),
    ]
    found = [(strategy, spare, needs, score(spare, needs, WHOLE, strategy)) for strategy, spare, needs, _ in cases]
    assert found == cases


def test_a_resource_that_the_node_lacks_does_not_count() -> None:
    assert score(Spare(500, 0), Spare(100, 0), Spare(1000, 0), LEAST) == 40 + 75
    assert score(Spare(0, 0), Spare(0, 0), Spare(0, 0), LEAST) == 0


def test_a_node_is_measured_by_what_it_had_at_first() -> None:
    scores, seen = KubeScores(MOST), node("a", spare=WHOLE)
    assert scores.of(seen, Spare(100, 100)) == 85
    assert scores.of(seen.with_spare(Spare(500, 500)), Spare(100, 100)) == 60 + 75
