"""When the reconciler runs again."""

from deviceplugin.agent.reconciler import RoundTimer


def test_a_quiet_node_is_reconciled_once_in_a_period() -> None:
    assert RoundTimer(60.0).next_round_in(suspects=False, unannotated=False) == 60.0


def test_grants_that_seem_to_have_ended_are_checked_again_soon_every_time() -> None:
    timer = RoundTimer(60.0)
    assert [timer.next_round_in(suspects=True, unannotated=False) for _ in range(5)] == [2.0] * 5


def test_a_pod_that_cannot_be_annotated_is_tried_with_a_growing_delay() -> None:
    timer = RoundTimer(60.0)
    waits = [timer.next_round_in(suspects=False, unannotated=True) for _ in range(10)]
    assert waits[0] <= 2.0
    assert 30.0 <= waits[-1] <= 60.0
    timer.reset()
    assert timer.next_round_in(suspects=False, unannotated=True) <= 2.0, "another pod came"
    assert timer.next_round_in(suspects=False, unannotated=False) == 60.0


def test_a_period_shorter_than_any_delay_stays_the_period() -> None:
    timer = RoundTimer(0.5)
    assert timer.next_round_in(suspects=True, unannotated=True) == 0.5
