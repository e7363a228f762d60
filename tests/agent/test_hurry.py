"""How soon upkeep looks again."""

from deviceplugin.agent.hurry import Hurry


def test_a_quiet_node_is_looked_at_once_in_a_period() -> None:
    assert Hurry(60.0).wait(suspicious=False, untold=False) == 60.0


def test_slots_that_seem_to_be_free_are_looked_at_soon_every_time() -> None:
    hurry = Hurry(60.0)
    assert [hurry.wait(suspicious=True, untold=False) for _ in range(5)] == [2.0] * 5


def test_a_pod_that_cannot_be_told_of_is_tried_less_and_less_often() -> None:
    hurry = Hurry(60.0)
    waits = [hurry.wait(suspicious=False, untold=True) for _ in range(10)]
    assert waits[0] <= 2.0
    assert 30.0 <= waits[-1] <= 60.0
    hurry.anew()
    assert hurry.wait(suspicious=False, untold=True) <= 2.0, "another pod came"
    assert hurry.wait(suspicious=False, untold=False) == 60.0


def test_a_period_shorter_than_any_hurry_stays_the_period() -> None:
    hurry = Hurry(0.5)
    assert hurry.wait(suspicious=True, untold=True) == 0.5
