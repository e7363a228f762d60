"""When a GPU counts as unhealthy, and its way back."""

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


def _pass(book: HealthHistory, times: int, *, now: float = 0.0) -> None:
    for _ in range(times):
        book.passed(A, now=now)


def test_a_gpu_that_nothing_is_known_of_is_healthy() -> None:
    assert HealthHistory(RULES).health(A) == Health()


def test_a_lost_gpu_is_unhealthy_at_once_and_back_after_three_good_probes() -> None:
    book = HealthHistory(RULES)
    book.failed(A, "GPU is lost", for_certain=True)
    assert book.health(A) == Health(healthy=False, reason="GPU is lost")
    _pass(book, 2)
    assert not book.health(A).healthy
    _pass(book, 1)
    assert book.health(A).healthy


def test_a_failure_that_may_pass_counts_only_when_it_repeats() -> None:
    book = HealthHistory(RULES)
    for _ in range(2):
        book.failed(A, "Unknown Error", for_certain=False)
    book.passed(A, now=0.0)
    for _ in range(2):
        book.failed(A, "Unknown Error", for_certain=False)
    assert book.health(A).healthy
    book.failed(A, "Unknown Error", for_certain=False)
    assert book.health(A).reason == "Unknown Error"


def test_good_probes_must_follow_each_other() -> None:
    book = HealthHistory(RULES)
    book.failed(A, "GPU is lost", for_certain=True)
    for _ in range(3):
        _pass(book, 2)
        book.failed(A, "Unknown Error", for_certain=False)
    assert not book.health(A).healthy


def test_a_critical_event_is_forgotten_after_the_quiet_period_and_good_probes() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 79", now=0.0)
    _pass(book, 50, now=99.9)
    assert book.health(A).reason == "XID 79"
    _pass(book, 1, now=100.0)
    assert book.health(A).healthy


def test_the_quiet_period_alone_is_not_enough() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 79", now=0.0)
    _pass(book, 2, now=1000.0)
    assert not book.health(A).healthy


def test_each_incident_doubles_the_quiet_period_up_to_a_day_or_its_own_length() -> None:
    quiet = {1: 100, 2: 200, 3: 400, 10: 51_200, 11: DAY, 10_000: DAY}
    assert {incidents: RULES.quiet_after(incidents) for incidents in quiet} == quiet
    assert RecoveryRules(quiet_s=2 * DAY).quiet_after(5) == 2 * DAY


def test_a_burst_of_events_is_one_incident() -> None:
    """NVML D3: ten XIDs within a second kept a GPU out for a day."""
    book = HealthHistory(RULES)
    for tenth in range(10):
        book.struck(A, "XID 74", now=tenth / 10)
    _pass(book, 10, now=100.8)
    assert not book.health(A).healthy
    _pass(book, 1, now=100.9)
    assert book.health(A).healthy


def test_events_while_a_gpu_is_out_prolong_its_quiet_period_and_do_not_double_it() -> None:
    book = HealthHistory(RULES)
    for moment in (0.0, 45.0, 90.0):
        book.struck(A, "XID 119", now=moment)
    _pass(book, 10, now=189.9)
    assert not book.health(A).healthy
    _pass(book, 1, now=190.0)
    assert book.health(A).healthy


def test_an_event_after_the_gpu_came_back_doubles_its_quiet_period() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 79", now=0.0)
    _pass(book, 3, now=100.0)
    book.struck(A, "XID 79", now=150.0)
    _pass(book, 10, now=349.9)
    assert not book.health(A).healthy
    _pass(book, 1, now=350.0)
    assert book.health(A).healthy


def test_a_day_after_the_gpu_came_back_counting_starts_again() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 79", now=0.0)
    _pass(book, 3, now=100.0)
    book.struck(A, "XID 79", now=DAY + 101)
    _pass(book, 3, now=DAY + 201)
    assert book.health(A).healthy


def test_a_gpu_that_fails_whenever_it_comes_back_ends_at_one_try_a_day() -> None:
    """Also after a quiet period as long as the day within which incidents count."""
    book, now, quiet = HealthHistory(RULES), 0.0, []
    for _ in range(14):
        book.struck(A, "XID 79", now=now)
        quiet.append(book.quiet_periods([A])[A].until - now)
        now += quiet[-1] + 1
        _pass(book, 3, now=now)
        assert book.health(A).healthy
    assert quiet[:3] == [100, 200, 400]
    assert quiet[-4:] == [DAY] * 4


def test_without_a_quiet_period_a_critical_event_counts_until_a_restart() -> None:
    rules = RecoveryRules(quiet_s=0, passes=3)
    book = HealthHistory(rules)
    book.struck(A, "XID 79", now=0.0)
    _pass(book, 10, now=365 * DAY)
    assert not book.health(A).healthy
    assert book.quiet_periods([A]) == {}
    after = HealthHistory(rules)
    after.restore(A, reason=book.health(A).reason, event=None)
    assert not after.health(A).healthy
    _pass(after, 3)
    assert after.health(A).healthy


def test_a_reload_of_the_driver_ends_the_quiet_period_but_not_the_probes() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 79", now=50.0)
    _pass(book, 10, now=51.0)
    book.driver_reloaded()
    assert not book.health(A).healthy
    _pass(book, 3, now=52.0)
    assert book.health(A).healthy


def test_what_the_driver_asks_for_keeps_new_work_away_until_it_is_done() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 95", now=0.0)
    book.surveyed(A, Condition(action=1))
    _pass(book, 10, now=1000.0)
    assert book.health(A).reason == "XID 95"
    book.surveyed(A, Condition(action=0))
    _pass(book, 1, now=1001.0)
    assert book.health(A).healthy


def test_an_action_alone_is_reason_enough() -> None:
    healthy = {}
    for action in range(9):
        book = HealthHistory(RULES)
        book.surveyed(A, Condition(action=action))
        healthy[action] = book.health(A).healthy
    assert [action for action in healthy if healthy[action]] == [0, 5, 8]


def test_one_gpu_never_condemns_another() -> None:
    book = HealthHistory(RULES)
    book.struck(A, "XID 79", now=0.0)
    assert book.unhealthy([A, B]) == {A: Health(healthy=False, reason="XID 79")}


def test_a_hung_driver_makes_all_unhealthy_and_its_return_none() -> None:
    book = HealthHistory(RULES)
    book.hung = True
    assert {health.reason for health in book.unhealthy([A, B]).values()} == {HUNG}
    book.hung = False
    assert book.unhealthy([A, B]) == {}


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


def test_incidents_before_and_after_a_restart_count_together() -> None:
    book = HealthHistory(RULES)
    book.restore(A, reason="XID 79", event=QuietPeriod(reason="XID 79", until=5 * DAY))
    _pass(book, 3, now=5 * DAY)
    book.struck(A, "XID 79", now=5 * DAY + 10)
    _pass(book, 10, now=5 * DAY + 209)
    assert not book.health(A).healthy
    _pass(book, 1, now=5 * DAY + 210)
    assert book.health(A).healthy


def test_a_gpu_lost_before_a_restart_needs_its_probes_after_it() -> None:
    book = HealthHistory(RULES)
    book.restore(A, reason="GPU is lost", event=None)
    assert book.health(A).reason == "GPU is lost"
    _pass(book, 3)
    assert book.health(A).healthy


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
    book, now = HealthHistory(RULES), 0.0
    for step, elapsed in steps:
        now += elapsed
        match step:
            case ("pass",):
                book.passed(A, now=now)
            case ("fail", bool(certain)):
                book.failed(A, "GPU is lost", for_certain=certain)
                assert not certain or not book.health(A).healthy
            case ("strike",):
                book.struck(A, "XID 79", now=now)
                assert not book.health(A).healthy
            case ("advise", int(action)):
                book.surveyed(A, Condition(action=action))
            case _:
                book.driver_reloaded()
    book.surveyed(A, Condition(action=0))
    _pass(book, 3, now=now + DAY)
    assert book.health(A) == Health()
