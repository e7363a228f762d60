"""When the GPUs are read next. The clock is a number."""

from deviceplugin.hardware.node import Due, HardwareOptions, Schedule

OPTIONS = HardwareOptions(sample_period_s=4.0, rescan_period_s=10.0, retry_first_s=1.0, retry_most_s=8.0)
ALL = Due(listen=True, sample=True, survey=True)


def _opened() -> Schedule:
    schedule = Schedule(OPTIONS)
    schedule.opened(everything=True)
    return schedule


def _read(schedule: Schedule, now: float, *, deaf: bool = False, events: bool = False, lost: bool = False) -> Due:
    due = schedule.due(now)
    schedule.answered(now, due, deaf=deaf, events=events, lost=lost)
    return due


def test_a_new_schedule_opens_at_once() -> None:
    assert Schedule(OPTIONS).must_open(0.0)


def test_the_first_reading_is_for_everything_and_the_next_ones_for_what_is_due() -> None:
    schedule = _opened()
    assert _read(schedule, 0.0) == ALL
    assert schedule.pause(0.0, is_open=True) == 1.0
    assert _read(schedule, 1.0) == Due(listen=True, sample=False, survey=False)
    assert _read(schedule, 4.0) == Due(listen=True, sample=True, survey=False)
    assert _read(schedule, 10.0) == ALL
    assert not schedule.must_open(1e9)


def test_a_sample_period_under_a_second_sets_the_pace() -> None:
    schedule = Schedule(HardwareOptions(sample_period_s=0.25))
    schedule.opened(everything=True)
    _read(schedule, 0.0)
    assert schedule.pause(0.0, is_open=True) == 0.25


def test_an_event_brings_the_survey_forward() -> None:
    schedule = _opened()
    _read(schedule, 0.0)
    _read(schedule, 1.0, events=True)
    assert _read(schedule, 2.0).survey


def test_events_that_cannot_be_read_are_tried_ever_more_seldom() -> None:
    schedule = _opened()
    now, heard = 0.0, []
    for _ in range(60):
        if _read(schedule, now, deaf=schedule.due(now).listen).listen:
            heard.append(now)
        now += 0.5
    assert heard == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0]


def test_after_an_event_set_that_works_again_trying_starts_from_the_beginning() -> None:
    schedule = _opened()
    _read(schedule, 0.0, deaf=True)
    _read(schedule, 1.0, deaf=True)
    _read(schedule, 3.0)
    _read(schedule, 4.0, deaf=True)
    assert schedule.due(5.0).listen


def test_a_driver_that_fails_is_tried_ever_more_seldom() -> None:
    schedule = Schedule(OPTIONS)
    assert [schedule.failed(0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert schedule.pause(0.0, is_open=False) == 8.0
    schedule.opened(everything=True)
    assert schedule.failed(0.0) == 8.0
    schedule.opened(everything=True)
    _read(schedule, 0.0)
    assert schedule.failed(0.0) == 1.0


def test_void_handles_are_renewed_at_once_but_only_if_the_last_ones_were_ever_good() -> None:
    schedule = _opened()
    assert not schedule.went_stale()
    _read(schedule, 0.0)
    assert schedule.went_stale()
    assert schedule.must_open(0.0)
    schedule.opened(everything=True)
    assert not schedule.went_stale()


def test_while_a_gpu_is_lost_nvml_is_opened_again_ever_more_seldom() -> None:
    schedule = _opened()
    now, opened = 0.0, []
    while now < 400.0:
        if schedule.must_open(now):
            opened.append(now)
            schedule.opened(everything=False)
        _read(schedule, now, lost=True)
        now += 1.0
    assert opened == [10.0, 30.0, 70.0, 150.0, 310.0]


def test_a_gpu_that_comes_back_by_itself_ends_the_search() -> None:
    schedule = _opened()
    _read(schedule, 0.0, lost=True)
    _read(schedule, 5.0, lost=False)
    assert not schedule.must_open(1e9)
    _read(schedule, 20.0, lost=True)
    assert schedule.must_open(30.0)


def test_what_was_asked_for_at_once_is_not_forgotten_by_a_good_read() -> None:
    schedule = _opened()
    schedule.open_at_once()
    _read(schedule, 0.0)
    assert schedule.must_open(0.0)
    assert schedule.pause(0.0, is_open=True) == 0.0
