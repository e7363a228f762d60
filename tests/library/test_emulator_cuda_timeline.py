"""How the emulated GPU's time is sliced: fluid sharing between the processes that have work."""

import ctypes
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.library.compiler import SHARED, compiled
from tests.library.machine import EMULATOR

pytestmark = pytest.mark.thorough

_ACCESS = Path(__file__).parent / "native/timeline_access.c"

_NUMBERS = (
    "timeline_reached",
    "timeline_predict",
    "access_t",
    "access_v",
    "access_end",
    "access_got",
    "access_busy",
    "access_sampled",
)
NEVER = 2**64 - 1


def build(directory: Path) -> ctypes.CDLL:
    sources = (_ACCESS, EMULATOR / "shared/timeline.c")
    library = ctypes.CDLL(str(compiled(directory / "timeline.so", *SHARED, f"-I{EMULATOR}", *sources)))
    for name in _NUMBERS:
        getattr(library, name).restype = ctypes.c_uint64
    library.access_size.restype = ctypes.c_size_t
    library.access_extend.restype = ctypes.c_bool
    return library


class Timeline:
    """One GPU. Processes are numbers of slots."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._memory = ctypes.create_string_buffer(library.access_size())

    def _number(self, name: str, *arguments: int) -> int:
        return int(getattr(self._library, name)(self._memory, *map(ctypes.c_uint64, arguments)))

    def advance(self, now: int) -> None:
        self._library.timeline_advance(self._memory, ctypes.c_uint64(now))

    def run(self, slot: int, cost: int) -> int:
        """Queues work of the process behind what it has, as of the last advance. Where it ends in V."""
        end = max(self.end(slot), self.v) + cost
        self._library.timeline_start(self._memory, slot, ctypes.c_uint64(end))
        return end

    def extend(self, slot: int, cost: int) -> bool:
        """The same without the lock."""
        end = self.end(slot)
        return bool(self._library.access_extend(self._memory, slot, ctypes.c_uint64(end), ctypes.c_uint64(end + cost)))

    def forget(self, slot: int) -> None:
        self._library.timeline_forget(self._memory, slot)

    @property
    def t(self) -> int:
        return self._number("access_t")

    @property
    def v(self) -> int:
        return self._number("access_v")

    @property
    def busy(self) -> int:
        return self._number("access_busy")

    @property
    def active(self) -> int:
        return int(self._library.timeline_active(self._memory))

    def end(self, slot: int) -> int:
        return self._number("access_end", slot)

    def got(self, slot: int) -> int:
        return self._number("access_got", slot)

    def reached(self, v: int) -> int:
        return self._number("timeline_reached", v)

    def predict(self, v: int) -> int:
        return self._number("timeline_predict", v)

    def sampled(self, slot: int | None, now: int, periods: int) -> int:
        return self._number("access_sampled", 2**64 - 1 if slot is None else slot, now, periods)


_MS = 1_000_000
_SAMPLE = 10**9 // 6
_POINTS = 16384


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("timeline"))


@dataclass(frozen=True)
class Arrival:
    """A process queues work so long after the one before."""

    slot: int
    after: int
    cost: int


@dataclass
class Fluid:
    """Processor sharing the plain way: what is left of each process's work, in whole steps from one end to the next."""

    left: dict[int, float] = field(default_factory=dict)
    got: dict[int, float] = field(default_factory=dict)
    busy: float = 0.0

    def run(self, slot: int, cost: int) -> None:
        self.left[slot] = self.left.get(slot, 0.0) + cost

    def advance(self, time: float) -> None:
        while time > 1e-6 and (active := [slot for slot, left in self.left.items() if left > 1e-6]):
            step = min(min(self.left[slot] for slot in active) * len(active), time)
            for slot in active:
                self.left[slot] -= step / len(active)
                self.got[slot] = self.got.get(slot, 0.0) + step / len(active)
            self.busy += step
            time -= step


_ARRIVALS = st.lists(
    st.builds(Arrival, st.integers(0, 5), st.integers(0, 20 * _MS), st.integers(1, 10 * _MS)), min_size=1, max_size=40
)


@pytest.fixture
def timeline(library: ctypes.CDLL) -> Timeline:
    return Timeline(library)


@examples(200)
@given(arrivals=_ARRIVALS, rest=st.integers(0, 400 * _MS))
def test_each_process_gets_what_processor_sharing_gives_it(
    library: ctypes.CDLL, arrivals: list[Arrival], rest: int
) -> None:
    timeline, fluid, now = Timeline(library), Fluid(), 0
    for arrival in arrivals:
        now += arrival.after
        timeline.advance(now)
        fluid.advance(arrival.after)
        timeline.run(arrival.slot, arrival.cost)
        fluid.run(arrival.slot, arrival.cost)
    timeline.advance(now + rest)
    fluid.advance(rest)
    slack = 10 * len(arrivals)  # nanoseconds: V moves by whole ones
    for slot in range(6):
        assert timeline.got(slot) == pytest.approx(fluid.got.get(slot, 0.0), abs=slack)
    assert timeline.busy == pytest.approx(fluid.busy, abs=slack)


@examples(100)
@given(arrivals=_ARRIVALS, looks=st.lists(st.integers(1, 5 * _MS), max_size=30))
def test_work_is_conserved_the_sum_of_progress_is_the_busy_time(
    library: ctypes.CDLL, arrivals: list[Arrival], looks: list[int]
) -> None:
    timeline, now = Timeline(library), 0
    for arrival, look in zip(arrivals, looks + [0] * len(arrivals), strict=False):
        now += arrival.after
        timeline.advance(now)
        timeline.run(arrival.slot, arrival.cost)
        now += look
        timeline.advance(now)
    assert sum(timeline.got(slot) for slot in range(6)) == timeline.busy
    now += sum(arrival.cost for arrival in arrivals)
    timeline.advance(now)
    assert timeline.busy == sum(arrival.cost for arrival in arrivals)
    assert timeline.active == 0


@examples(100)
@given(arrivals=_ARRIVALS)
def test_the_end_of_work_is_found_again_in_real_time(library: ctypes.CDLL, arrivals: list[Arrival]) -> None:
    """timeline_predict before and timeline_reached after the fact agree where no more work comes."""
    timeline, now = Timeline(library), 0
    for arrival in arrivals:
        now += arrival.after
        timeline.advance(now)
        end = timeline.run(arrival.slot, arrival.cost)
    expected = timeline.predict(end)
    timeline.advance(expected - 1)
    assert timeline.v < end
    timeline.advance(now + sum(arrival.cost for arrival in arrivals) + 100)
    assert timeline.reached(end) == expected


@examples(100)
@given(arrivals=_ARRIVALS)
def test_real_time_of_v_never_runs_backwards(library: ctypes.CDLL, arrivals: list[Arrival]) -> None:
    timeline, now = Timeline(library), 0
    for arrival in arrivals:
        now += arrival.after
        timeline.advance(now)
        timeline.run(arrival.slot, arrival.cost)
    timeline.advance(now + 10**9)
    marks = range(0, timeline.v + 1, max(timeline.v // 200, 1))
    times = [timeline.reached(v) for v in marks]
    assert all(one <= other for one, other in pairwise(times))
    assert all(
        other - one >= (two - first)
        for (one, other), (first, two) in zip(pairwise(times), pairwise(marks), strict=True)
    )


def test_two_processes_with_work_progress_at_half_rate_and_one_alone_at_full_rate(timeline: Timeline) -> None:
    timeline.advance(1000)
    ends = [timeline.run(slot, cost * _MS) for slot, cost in enumerate((10, 20))]
    assert [timeline.predict(end) - 1000 for end in ends] == [20 * _MS, 30 * _MS]
    timeline.advance(1000 + 10 * _MS)
    assert [timeline.got(0), timeline.got(1)] == [5 * _MS, 5 * _MS]
    timeline.advance(1000 + 40 * _MS)
    assert [timeline.reached(end) - 1000 for end in ends] == [20 * _MS, 30 * _MS]


def test_an_idle_gpu_stands_still_and_new_work_begins_now(timeline: Timeline) -> None:
    timeline.advance(0)
    first = timeline.run(0, _MS)
    timeline.advance(50 * _MS)
    assert (timeline.v, timeline.t, timeline.active) == (first, 50 * _MS, 0)
    second = timeline.run(0, _MS)
    timeline.advance(60 * _MS)
    assert (timeline.reached(first), timeline.reached(second)) == (_MS, 51 * _MS)


def test_an_end_can_be_extended_until_an_advance_has_passed_it(timeline: Timeline) -> None:
    timeline.advance(0)
    timeline.run(0, _MS)
    timeline.advance(_MS - 1)
    assert timeline.extend(0, _MS)
    timeline.advance(2 * _MS)
    assert not timeline.extend(0, _MS)
    assert timeline.end(0) == 2 * _MS


def test_a_dead_process_stops_taking_time(timeline: Timeline) -> None:
    timeline.advance(0)
    timeline.run(0, 10_000 * _MS)
    mine = timeline.run(1, 10 * _MS)
    timeline.advance(4 * _MS)
    timeline.forget(0)
    assert (timeline.active, timeline.predict(mine)) == (1, 12 * _MS)
    timeline.advance(100 * _MS)
    assert (timeline.got(0), timeline.got(1), timeline.reached(mine)) == (2 * _MS, 10 * _MS, 12 * _MS)


def test_a_point_without_work_is_never_reached(timeline: Timeline) -> None:
    timeline.advance(0)
    end = timeline.run(0, _MS)
    assert timeline.predict(end + 1) == NEVER


def test_what_is_older_than_the_ring_is_answered_with_its_oldest_point(library: ctypes.CDLL) -> None:
    timeline, now = Timeline(library), 0
    ends = []
    for _ in range(_POINTS):  # two points each: where work begins and where it ends
        timeline.advance(now)
        ends.append(timeline.run(0, 10))
        now += 100
    timeline.advance(now)
    assert timeline.reached(ends[-1]) == now - 90
    assert timeline.reached(ends[-_POINTS // 2 + 1]) == now - 100 * (_POINTS // 2 - 1) + 10
    assert timeline.reached(ends[0]) == timeline.reached(ends[1]) > 110


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_samples_are_each_process_s_share_of_whole_sixths_of_a_second(timeline: Timeline, processes: int) -> None:
    timeline.advance(0)
    for slot in range(processes):
        timeline.run(slot, 10**10)
    now = 10 * _SAMPLE + 12345
    timeline.advance(now)
    assert timeline.sampled(None, now, 6) == 6 * _SAMPLE
    for slot in range(processes):
        assert timeline.sampled(slot, now, 6) == pytest.approx(6 * _SAMPLE / processes, abs=20)
        assert timeline.sampled(slot, now, 1) == pytest.approx(_SAMPLE / processes, abs=20)


def test_samples_of_a_gpu_that_rests_are_empty(timeline: Timeline) -> None:
    timeline.advance(0)
    timeline.run(0, _SAMPLE)
    for now in (3 * _SAMPLE, 100 * _SAMPLE):
        timeline.advance(now)
        assert timeline.sampled(None, now, 1) == 0
    assert timeline.sampled(None, 100 * _SAMPLE, 6) == 0


@examples(50)
@given(arrivals=_ARRIVALS, steps=st.lists(st.integers(1, 3 * _MS), min_size=1, max_size=50))
def test_looking_often_changes_nothing(library: ctypes.CDLL, arrivals: list[Arrival], steps: list[int]) -> None:
    often, once = Timeline(library), Timeline(library)
    for timeline in (often, once):
        timeline.advance(0)
        for arrival in arrivals:
            timeline.run(arrival.slot, arrival.cost)
    now = 0
    for step in steps:
        now += step
        often.advance(now)
    once.advance(now)
    assert (often.v, often.t) == (once.v, once.t)
    assert [often.got(slot) for slot in range(6)] == [once.got(slot) for slot in range(6)]
