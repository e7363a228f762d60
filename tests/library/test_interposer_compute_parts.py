"""The limiter's arithmetic, part by part: budget, union of stretches, time slicing, soft limits, estimates."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.library.compute import MS, SECOND, WHOLE, allocated

START = 10 * SECOND


def number(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


@dataclass
class Budget:
    """A container's budget, of several processes."""

    library: ctypes.CDLL
    rate: int
    processes: int = 2

    def __post_init__(self) -> None:
        self.memory = allocated(self.library, "budget", self.processes, self.rate)

    def available(self, now: int, process: int = 0) -> int:
        return int(self.library.access_refill(self.memory, process, number(now)))

    def reserve(self, ns: int, process: int = 0) -> None:
        self.library.access_reserve(self.memory, process, number(ns))

    def measured(self, reserved: int, used: int, process: int = 0) -> None:
        self.library.access_measured(self.memory, process, number(reserved), ctypes.c_int64(used))

    @property
    def cap(self) -> int:
        return int(self.library.budget_cap(self.rate))


@pytest.fixture
def half(parts: ctypes.CDLL) -> Budget:
    budget = Budget(parts, 50 * 1000)
    budget.available(START)
    return budget


def test_begins_with_nothing_and_grows_with_the_rate(half: Budget) -> None:
    assert half.available(START + 10 * MS) == 5 * MS
    assert half.available(START + 10 * MS, process=1) == 5 * MS


@pytest.mark.parametrize("away", [100_000 * SECOND, 300 * SECOND, 2 * SECOND, SECOND // 2])
def test_two_clocks_in_a_container_bring_no_more_than_one(parts: ctypes.CDLL, away: int) -> None:
    """Processes in different time namespaces: each of their times looked like a long idle time to the other."""
    budget, granted = Budget(parts, 50 * 1000), 0
    for step in range(1000):
        for process in range(2):
            now = START + 200_000 * SECOND + step * MS + (away if process else 0)
            free = budget.available(now, process)
            if free > 0 and step > 0:
                granted += free
                budget.reserve(free, process)
                budget.measured(free, free, process)
            elif free > 0:
                budget.measured(0, free, process)
    assert granted <= 1000 * MS // 2 + budget.cap


def test_saves_up_to_the_cap_and_no_further(half: Budget) -> None:
    assert half.available(START + 60 * SECOND) == half.cap == 25 * MS


def test_the_cap_is_fifty_milliseconds_but_not_little(parts: ctypes.CDLL) -> None:
    caps = {1: 20 * MS, 25: 20 * MS, 75: 37_500_000, 99: 49_500_000}
    assert {percent: parts.budget_cap(percent * 1000) for percent in caps} == caps


def test_a_reservation_of_one_process_is_missing_for_all(half: Budget) -> None:
    half.reserve(8 * MS, process=1)
    assert half.available(START + 10 * MS) == -3 * MS


def test_what_is_launched_does_not_stop_the_saving(half: Budget) -> None:
    """Else a long kernel would cost its length twice."""
    half.reserve(2 * SECOND)
    assert half.available(START + 2 * SECOND) == -SECOND
    half.measured(2 * SECOND, 2 * SECOND)
    assert half.available(START + 4 * SECOND) == 0


def test_an_estimate_that_was_too_high_leaves_no_more_than_the_cap(half: Budget) -> None:
    half.reserve(SECOND)
    assert half.available(START + SECOND) == -SECOND // 2
    half.measured(SECOND, 1 * MS)
    assert half.available(START + SECOND + 1 * MS) == half.cap


def test_a_dead_process_holds_nothing(half: Budget) -> None:
    half.reserve(SECOND, process=1)
    half.library.access_die(half.memory, 1)
    assert half.available(START + 10 * MS) == 5 * MS


def test_debt_is_paid_and_the_wait_is_exact(half: Budget) -> None:
    half.measured(0, 40 * MS)
    debt = half.available(START + 20 * MS)
    assert debt == -30 * MS
    assert half.available(START + 20 * MS + 60 * MS) == 0


@pytest.mark.parametrize(
    ("balance", "refilled"),
    [(-(2**62), START), (2**62, START), (0, START + 3600 * SECOND), (0, 2**64 - 1), (-(2**63), 0)],
)
def test_words_that_were_written_over_do_not_last(half: Budget, balance: int, refilled: int) -> None:
    half.library.access_overwrite(half.memory, ctypes.c_int64(balance), number(refilled))
    half.available(START + 1 * MS)
    least = -600 * SECOND
    assert least <= half.available(START + 2 * MS) <= half.cap
    assert half.available(START + 1300 * SECOND) == half.cap


@examples(60)
@given(
    rate=st.integers(1000, 99000),
    steps=st.lists(
        st.tuples(st.integers(0, 30 * MS), st.integers(1, 20 * MS), st.floats(0.1, 10), st.integers(0, 3)), max_size=120
    ),
)
def test_grants_no_more_than_the_limit_and_the_cap(
    parts: ctypes.CDLL, rate: int, steps: list[tuple[int, int, float, int]]
) -> None:
    """Launches that go when they may, of any size, with estimates wrong by ten, measured up to three launches later."""
    budget = Budget(parts, rate, processes=3)
    now, used = START, 0
    open_launches: list[tuple[int, int, int]] = []
    log: list[tuple[int, int, int]] = []
    budget.available(now)
    for wait, cost, error, lag in steps:
        now += wait
        available = budget.available(now, process=len(log) % 3)
        if available >= 0:
            estimate = int(cost * error)
            budget.reserve(estimate, process=lag % 3)
            open_launches.append((estimate, cost, lag))
            used += cost
            log.append((now, used, cost))
        while len(open_launches) > 3 or (open_launches and lag == 0):
            estimate, actual, process = open_launches.pop(0)
            budget.measured(estimate, actual, process=process % 3)
    slack = budget.cap + 4 * 20 * MS  # what was saved, and what is not measured yet
    for start, before, first in log:
        for end, after, _ in log:
            assert after - before + first <= (end - start) * rate // WHOLE + slack + 20 * MS or end < start


# ---- interval_set ----


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=40))
def test_parts_are_what_was_in_no_stretch_before(parts: ctypes.CDLL, stretches: list[tuple[int, int]]) -> None:
    intervals = allocated(parts, "interval_set")
    found = (ctypes.c_uint64 * 258)()
    covered: set[int] = set()
    for start, length in stretches:
        count = parts.access_add(intervals, number(start), number(start + length), found)
        told = [(found[2 * i], found[2 * i + 1]) for i in range(count)]
        new = {at for part in told for at in range(*part)}
        assert new == set(range(start, start + length)) - covered
        assert sum(end - begin for begin, end in told) == len(new)
        assert told == sorted(told)
        covered |= new


def test_forgets_the_oldest_of_too_many(parts: ctypes.CDLL) -> None:
    intervals = allocated(parts, "interval_set")
    found = (ctypes.c_uint64 * 258)()
    for i in range(1000):
        assert parts.access_add(intervals, number(10 * i), number(10 * i + 5), found) == 1
    assert parts.access_add(intervals, number(9990), number(9995), found) == 0
    assert parts.access_add(intervals, number(0), number(5), found) == 1


# ---- time slicing ----

Stretch = tuple[int, int]
GRID = 500_000  # what begins within 400 us is one entry
lanes = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=12)


def laid_out(gaps: list[tuple[int, int]]) -> list[Stretch]:
    """Stretches one after the other, apart, on a grid."""
    out, at = [], 1
    for gap, length in gaps:
        at += gap + 1
        out.append((at, at + length))
        at += length
    return out


@examples(100)
@given(st.lists(lanes, min_size=4, max_size=4), st.integers(1, 200), st.integers(1, 100))
def test_a_stretch_is_divided_by_who_was_there(
    parts: ctypes.CDLL, slots: list[list[tuple[int, int]]], start: int, length: int
) -> None:
    made = allocated(parts, "presence")
    places = [(0, 1), (1, 0), (2, 0), (3, 1)]
    present = dict.fromkeys(range(start, start + length), 1)
    for (row, slot), gaps in zip(places, slots, strict=True):
        stretches = laid_out(gaps)
        for begin, end in stretches:
            for at in range(begin, end):
                if at in present:
                    present[at] += 1
        for begin, end in stretches:
            parts.access_publish(made, row, slot, number(begin * GRID), number(end * GRID))
    parts.access_publish(made, 0, 0, number(start * GRID), number((start + length) * GRID))
    expected = sum(GRID / count for count in present.values())
    told = parts.access_share(made, number(start * GRID), number((start + length) * GRID), number(10**9))
    assert abs(told - expected) <= 2
    reached = parts.access_reach(
        made, number(start * GRID), number((start + length) * GRID), number(int(expected)), number(10**9)
    )
    assert (start + length) * GRID - 20 <= reached <= (start + length) * GRID


def test_streams_that_are_measured_out_of_order_count_once(parts: ctypes.CDLL) -> None:
    made = allocated(parts, "presence")
    for begin, end in ((50, 60), (10, 20), (70, 80), (30, 40), (52, 58)):
        parts.access_publish(made, 1, 0, number(begin * MS), number(end * MS))
    assert parts.access_share(made, number(0), number(100 * MS), number(SECOND)) == 80 * MS


def test_an_open_stretch_counts_up_to_its_last_heartbeat(parts: ctypes.CDLL) -> None:
    shares = {  # since when it is at work, its heartbeat, now
        (0, 100, 100): 100,  # idle
        (20, 100, 100): 60,
        (100, 100, 100): 100,  # since later
        (20, 10, 100): 80,  # believed until 50 ms after its heartbeat
        (20, 100, 60): 80,  # not beyond now
        (20, 500, 60): 100,  # nobody's heart beats in the future
        (500, 60, 60): 100,  # nor does work begin there
    }
    told = {}
    for since, heartbeat, now in shares:
        made = allocated(parts, "presence")
        parts.access_busy(made, 1, 0, number(since * MS), number(heartbeat * MS))
        told[since, heartbeat, now] = parts.access_share(made, number(0), number(100 * MS), number(now * MS)) / MS
    assert told == shares


def test_a_process_that_is_measured_and_goes_on_counts_once(parts: ctypes.CDLL) -> None:
    made = allocated(parts, "presence")
    parts.access_publish(made, 2, 1, number(10 * MS), number(50 * MS))
    parts.access_busy(made, 2, 1, number(20 * MS), number(90 * MS))
    assert parts.access_share(made, number(0), number(100 * MS), number(90 * MS)) == 60 * MS


def test_many_small_stretches_still_reach_back(parts: ctypes.CDLL) -> None:
    """A ring of 256, and a stretch every 100 us: neighbours look back some tens of milliseconds all the same."""
    made = allocated(parts, "presence")
    for i in range(2000):
        parts.access_publish(made, 1, 0, number((i + 1) * 100_000), number((i + 1) * 100_000 + 40_000))
    told = parts.access_share(made, number(150 * MS), number(200 * MS), number(SECOND))
    assert told == pytest.approx(40 * MS, abs=MS)


# ---- soft limits ----


class Share(ctypes.Structure):
    _fields_ = (("cores", ctypes.c_uint32), ("soft", ctypes.c_uint32), ("wanted", ctypes.c_uint64))


def rates(parts: ctypes.CDLL, containers: Sequence[tuple[int, int, bool]]) -> list[int]:
    """What each container computes for itself; those that want nothing compute nothing."""
    now = 10 * SECOND
    shares = [Share(cores, soft, now - 10 * MS if active else now - 200 * MS) for cores, soft, active in containers]
    out = []
    for place, (_, _, active) in enumerate(containers):
        others = shares[:place] + shares[place + 1 :]
        array = (Share * max(1, len(others)))(*others)
        out.append(parts.borrow_rate(shares[place], array, len(others), number(now)) if active else 0)
    return out


def test_idle_shares_are_lent(parts: ctypes.CDLL) -> None:
    expected: dict[tuple[tuple[int, int, bool], ...], list[float]] = {  # cores, soft limit, active
        ((20, 0, True),): [20],
        ((20, 80, True),): [80],
        ((20, 10, True),): [20],
        ((20, 80, True), (50, 0, False)): [80, 0],
        ((20, 80, True), (50, 0, True)): [50, 50],
        ((20, 80, True), (80, 0, True)): [20, 80],
        ((20, 100, True), (20, 100, True)): [50, 50],
        ((20, 30, True), (20, 100, True)): [30, 70],
        ((10, 100, True), (40, 100, True), (20, 25, True)): [10 + 12.5, 40 + 12.5, 25],
        ((60, 100, True), (60, 100, True)): [60, 60],
    }
    told = {containers: rates(parts, containers) for containers in expected}
    assert told == {each: [pytest.approx(1000 * rate, abs=2) for rate in expected[each]] for each in expected}


@examples(200)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 100), st.booleans()), min_size=1, max_size=12).filter(
        lambda containers: sum(cores for cores, _, _ in containers) <= 100
    )
)
def test_together_no_more_than_the_whole(parts: ctypes.CDLL, containers: list[tuple[int, int, bool]]) -> None:
    told = rates(parts, containers)
    assert sum(told) <= WHOLE
    for rate, (cores, soft, active) in zip(told, containers, strict=True):
        assert not active or 1000 * cores <= rate <= 1000 * max(cores, soft)


# ---- estimates ----


def test_one_entry_for_each_function_and_size(parts: ctypes.CDLL) -> None:
    made = allocated(parts, "estimates")
    for handle in range(1, 200):
        for grid in range(1, 6):
            parts.access_learn(made, number(handle * 64), grid, number(handle * 1000 + grid))
    wrong = [
        (handle, grid)
        for handle in range(1, 200)
        for grid in range(1, 6)
        if parts.access_estimate(made, number(handle * 64), grid) != handle * 1000 + grid
    ]
    assert wrong == []


def test_a_full_table_forgets_and_learns_again(parts: ctypes.CDLL) -> None:
    made = allocated(parts, "estimates")
    for handle in range(1, 40_000):
        parts.access_learn(made, number(handle * 64), 1, number(handle))
        assert parts.access_estimate(made, number(handle * 64), 1) == handle


def test_what_is_destroyed_is_unknown_again(parts: ctypes.CDLL) -> None:
    made = allocated(parts, "estimates")
    parts.access_learn(made, number(64), 1, number(5000))
    parts.access_forget(made, number(64), 1)
    assert parts.access_estimate(made, number(64), 1) == 0


@examples(50)
@given(first=st.integers(1, 10 * SECOND), then=st.integers(1, 10 * SECOND))
def test_one_sample_moves_little_and_many_all_the_way(parts: ctypes.CDLL, first: int, then: int) -> None:
    made = allocated(parts, "estimates")
    parts.access_learn(made, number(64), 1, number(first))
    parts.access_learn(made, number(64), 1, number(then))
    moved = parts.access_estimate(made, number(64), 1)
    assert first / 4 - 1 <= moved <= first * 4 + 1
    for _ in range(100):
        parts.access_learn(made, number(64), 1, number(then))
    assert parts.access_estimate(made, number(64), 1) == pytest.approx(then, rel=0.02, abs=3)


def test_what_can_wait_for_another_gpu(parts: ctypes.CDLL) -> None:
    """Of 132 multiprocessors a third are few blocks; more do so only where the launch says that they run together."""
    can_wait = {
        ((44, 1, 1), False): True,
        ((45, 1, 1), False): False,
        ((4, 11, 1), False): True,
        ((4, 4, 4), False): False,
        ((2**31 - 1, 65535, 65535), False): False,
        ((2**16, 2**16, 2**16), False): False,  # its product is 0 in 32 bits
        ((1000, 1, 1), True): True,
        ((0, 0, 0), False): True,  # a graph
    }
    made = allocated(parts, "estimates")
    parts.access_can_wait.restype = ctypes.c_bool
    told = {(grid, together): parts.access_can_wait(made, 44, *grid, together) for grid, together in can_wait}
    assert told == can_wait
