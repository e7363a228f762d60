"""When a GPU counts as unhealthy, and its way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.hardware.health import (
    HUNG,
    Condition,
    HealthChange,
    HealthHistory,
    QuietPeriod,
    RecoveryRules,
    changes,
)
from deviceplugin.model.gpu import GpuUuid, Health

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
RULES = RecoveryRules(quiet_s=100, passes=3, failures=3)
DAY = 86_400.0


@pytest.fixture
def history() -> HealthHistory:
    return HealthHistory(RULES)


def _pass(history: HealthHistory, times: int, *, now: float = 0.0) -> None:
    for _ in range(times):
        history.passed(A, now=now)


def test_a_gpu_that_nothing_is_known_of_is_healthy() -> None:
    assert HealthHistory(RULES).health(A) == Health()


def test_a_lost_gpu_is_unhealthy_at_once_and_back_after_three_good_probes(history: HealthHistory) -> None:
    history.failed(A, "GPU is lost", for_certain=True)
    assert history.health(A) == Health(healthy=False, reason="GPU is lost")
    _pass(history, 2)
    assert not history.health(A).healthy
    _pass(history, 1)
    assert history.health(A).healthy


def test_a_failure_that_may_pass_counts_only_when_it_repeats(history: HealthHistory) -> None:
    for _ in range(2):
        history.failed(A, "Unknown Error", for_certain=False)
    history.passed(A, now=0.0)
    for _ in range(2):
        history.failed(A, "Unknown Error", for_certain=False)
    assert history.health(A).healthy
    history.failed(A, "Unknown Error", for_certain=False)
    assert history.health(A).reason == "Unknown Error"


def test_good_probes_must_follow_each_other(history: HealthHistory) -> None:
    history.failed(A, "GPU is lost", for_certain=True)
    for _ in range(3):
        _pass(history, 2)
        history.failed(A, "Unknown Error", for_certain=False)
    assert not history.health(A).healthy


QUIET: dict[str, tuple[list[float], float]] = {
    "one": ([0.0], 100.0),
    "ten within a second are one incident": ([tenth / 10 for tenth in range(10)], 100.9),  # NVML D3: it was a day
    "while the GPU is out they prolong and do not double it": ([0.0, 45.0, 90.0], 190.0),
}
"""Critical events, and until when they count."""


@pytest.mark.parametrize(("events", "until"), QUIET.values(), ids=QUIET)
def test_critical_events_are_forgotten_after_the_quiet_period_and_good_probes(
    history: HealthHistory, events: list[float], until: float
) -> None:
    for moment in events:
        history.struck(A, "XID 79", now=moment)
    _pass(history, 50, now=until - 0.1)
    assert history.health(A).reason == "XID 79"
    _pass(history, 1, now=until)
    assert history.health(A).healthy


def test_the_quiet_period_alone_is_not_enough(history: HealthHistory) -> None:
    history.struck(A, "XID 79", now=0.0)
    _pass(history, 2, now=1000.0)
    assert not history.health(A).healthy


def test_each_incident_doubles_the_quiet_period_up_to_a_day_or_its_own_length() -> None:
    quiet = {1: 100, 2: 200, 3: 400, 10: 51_200, 11: DAY, 10_000: DAY}
    assert {incidents: RULES.quiet_after(incidents) for incidents in quiet} == quiet
    assert RecoveryRules(quiet_s=2 * DAY).quiet_after(5) == 2 * DAY


def test_an_event_after_the_gpu_came_back_doubles_its_quiet_period(history: HealthHistory) -> None:
    history.struck(A, "XID 79", now=0.0)
    _pass(history, 3, now=100.0)
    history.struck(A, "XID 79", now=150.0)
    _pass(history, 10, now=349.9)
    assert not history.health(A).healthy
    _pass(history, 1, now=350.0)
    assert history.health(A).healthy


def test_a_day_after_the_gpu_came_back_counting_starts_again(history: HealthHistory) -> None:
    history.struck(A, "XID 79", now=0.0)
    _pass(history, 3, now=100.0)
    history.struck(A, "XID 79", now=DAY + 101)
    _pass(history, 3, now=DAY + 201)
    assert history.health(A).healthy


def test_a_gpu_that_fails_whenever_it_comes_back_ends_at_one_try_a_day() -> None:
    """Also after a quiet period as long as the day within which incidents count."""
    history, now, quiet = HealthHistory(RULES), 0.0, []
    for _ in range(14):
        history.struck(A, "XID 79", now=now)
        quiet.append(history.quiet_periods([A])[A].until - now)
        now += quiet[-1] + 1
        _pass(history, 3, now=now)
        assert history.health(A).healthy
    assert quiet[:3] == [100, 200, 400]
    assert quiet[-4:] == [DAY] * 4


def test_without_a_quiet_period_a_critical_event_counts_until_a_restart() -> None:
    rules = RecoveryRules(quiet_s=0, passes=3)
    history = HealthHistory(rules)
    history.struck(A, "XID 79", now=0.0)
    _pass(history, 10, now=365 * DAY)
    assert not history.health(A).healthy
    assert history.quiet_periods([A]) == {}
    after = HealthHistory(rules)
    after.restore(A, reason=history.health(A).reason, event=None)
    assert not after.health(A).healthy
    _pass(after, 3)
    assert after.health(A).healthy


def test_a_reload_of_the_driver_ends_the_quiet_period_but_not_the_probes(history: HealthHistory) -> None:
    history.struck(A, "XID 79", now=50.0)
    _pass(history, 10, now=51.0)
    history.driver_reloaded()
    assert not history.health(A).healthy
    _pass(history, 3, now=52.0)
    assert history.health(A).healthy


def test_what_the_driver_asks_for_keeps_new_work_away_until_it_is_done(history: HealthHistory) -> None:
    history.struck(A, "XID 95", now=0.0)
    history.surveyed(A, Condition(action=1))
    _pass(history, 10, now=1000.0)
    assert history.health(A).reason == "XID 95"
    history.surveyed(A, Condition(action=0))
    _pass(history, 1, now=1001.0)
    assert history.health(A).healthy


def test_an_action_alone_is_reason_enough() -> None:
    healthy = {}
    for action in range(9):
        history = HealthHistory(RULES)
        history.surveyed(A, Condition(action=action))
        healthy[action] = history.health(A).healthy
    assert [action for action in healthy if healthy[action]] == [0, 5, 8]


def test_one_gpu_never_condemns_another(history: HealthHistory) -> None:
    history.struck(A, "XID 79", now=0.0)
    assert history.unhealthy([A, B]) == {A: Health(healthy=False, reason="XID 79")}


def test_a_hung_driver_makes_all_unhealthy_and_its_return_none(history: HealthHistory) -> None:
    history.hung = True
    assert {health.reason for health in history.unhealthy([A, B]).values()} == {HUNG}
    history.hung = False
    assert history.unhealthy([A, B]) == {}


def test_a_restart_of_the_agent_forgets_no_quiet_period() -> None:
    before = HealthHistory(RULES)
    before.struck(A, "XID 79", now=10.0)
    kept = before.quiet_periods([A, B])
    assert kept == {A: QuietPeriod(reason="XID 79", until=110.0)}
    after = HealthHistory(RULES)
    after.restore(A, reason="XID 79", event=kept[A])
    _pass(after, 10, now=109.0)
    assert not after.health(A).healthy
    _pass(after, 1, now=110.0)
    assert after.health(A).healthy


def test_incidents_before_and_after_a_restart_count_together(history: HealthHistory) -> None:
    history.restore(A, reason="XID 79", event=QuietPeriod(reason="XID 79", until=5 * DAY))
    _pass(history, 3, now=5 * DAY)
    history.struck(A, "XID 79", now=5 * DAY + 10)
    _pass(history, 10, now=5 * DAY + 209)
    assert not history.health(A).healthy
    _pass(history, 1, now=5 * DAY + 210)
    assert history.health(A).healthy


def test_a_gpu_lost_before_a_restart_needs_its_probes_after_it(history: HealthHistory) -> None:
    history.restore(A, reason="GPU is lost", event=None)
    assert history.health(A).reason == "GPU is lost"
    _pass(history, 3)
    assert history.health(A).healthy


def test_changes_name_what_differs_and_nothing_else() -> None:
    ill = Health(healthy=False, reason="XID 79")
    assert changes({A: ill}, {A: ill}) == ()
    assert changes({A: ill}, {B: ill}) == (HealthChange(A, ill, Health()), HealthChange(B, Health(), ill))


_STEP = st.one_of(
    st.just(("pass",)),
    st.tuples(st.just("fail"), st.booleans()),
    st.just(("strike",)),
    st.tuples(st.just("advise"), st.integers(0, 8)),
    st.just(("reload",)),
)


@given(st.lists(st.tuples(_STEP, st.floats(0, 500)), max_size=60))
def test_whatever_happened_a_gpu_that_stays_well_comes_back(steps: list[tuple[tuple[object, ...], float]]) -> None:
    history, now = HealthHistory(RULES), 0.0
    for step, elapsed in steps:
        now += elapsed
        match step:
            case ("pass",):
                history.passed(A, now=now)
            case ("fail", bool(certain)):
                history.failed(A, "GPU is lost", for_certain=certain)
                assert not certain or not history.health(A).healthy
            case ("strike",):
                history.struck(A, "XID 79", now=now)
                assert not history.health(A).healthy
            case ("advise", int(action)):
                history.surveyed(A, Condition(action=action))
            case _:
                history.driver_reloaded()
    history.surveyed(A, Condition(action=0))
    _pass(history, 3, now=now + DAY)
    assert history.health(A) == Health()
