"""Ranks of a job that exchange data at every step, each on a GPU of its own, on a simulated clock (Library D1).

A rank that is held back makes its peers wait on the GPU. What they are charged for it must not hold them back as long.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import every, examples
from tests.library.compute import Ranks, Simulation, beyond, build_ranks, off, shares

STEPS = 60
STALL_MS = 500
STALL = f"stall=8:{STALL_MS}000000"
EQUAL = ([10] * 2, [25] * 2, [30] * 2, [45] * 2, [50] * 2, [75] * 2, [25] * 4, [25] * 8, [45] * 8)
DIFFERENT = ([10, 25], [25, 50], [30, 45], [30, 75], [10, 25, 50, 75], [10, 25, 25, 30, 45, 50, 75, 75])
LIMITS = (*EQUAL, *DIFFERENT)
MODES: tuple[tuple[str, ...], ...] = ((), ("async",), ("apart",), ("apart", "async"))
STALLS: tuple[tuple[str, ...], ...] = ((), (STALL,))
HIDING = ("hidesmall", "hidetogether", "hidegraph", "hidestreams")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Checked in the thorough run only."""
    return Ranks(build_ranks(tmp_path_factory.mktemp("ranks"), checked=every(2) == 1))


@pytest.fixture(scope="module")
def checked_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(build_ranks(tmp_path_factory.mktemp("checked"), checked=True))


def slower(ranks: Ranks, limits: Sequence[int], *words: str, work_ms: float, steps: int = STEPS) -> float:
    """How many times as long as they must a job's steps take: alone-time divided by the smallest share is 1."""
    job = ranks.run(limits, f"steps={steps}", *words)
    assert len(job.steps_ms) == steps, "it stands still"
    return job.settled_ms / (work_ms * 100 / min(limits))


def slow(
    ranks: Ranks,
    limits: Iterable[Sequence[int]],
    words: Iterable[Sequence[str]],
    *further: str,
    work_ms: float,
    most: float,
) -> dict[str, float]:
    """The jobs, for all limits and `words`, whose steps take less than they must, or `most` times as long or longer."""
    times = {
        f"{each} {' '.join(some)}": slower(ranks, each, *some, *further, work_ms=work_ms)
        for each in limits
        for some in words
    }
    return {job: time for job, time in times.items() if not 0.9 < time < most}


def test_steps_take_as_long_as_the_smallest_share_needs(ranks: Ranks) -> None:
    words = [(*mode, *stall) for mode in MODES for stall in STALLS]
    assert slow(ranks, LIMITS, words, "kernels=80", "exchange=1000000", work_ms=21, most=1.2) == {}


@pytest.mark.parametrize("by", ["cooperative", "graph"])
def test_whatever_waits(ranks: Ranks, by: str) -> None:
    """Graphs with an exchange in them, too, once one of them has waited long."""
    limits = ([10] * 2, [25] * 2, [45] * 2, [25] * 8, [10, 25], [30, 75])
    assert slow(ranks, limits, MODES[:2], f"by={by}", STALL, "exchange=1000000", work_ms=6, most=1.2) == {}


def test_graphs_that_never_waited_long(ranks: Ranks) -> None:
    """Graphs of which none took four times its work: waits up to that are charged as work."""
    limits = ([10] * 2, [25] * 2, [30] * 2, [35] * 2, [30] * 4)
    assert slow(ranks, limits, MODES[:2], "by=graph", "exchange=1000000", work_ms=6, most=2.6) == {}


def test_steps_that_are_short_beside_a_pause_take_little_longer(ranks: Ranks) -> None:
    """5 ms of work: a pause is 4 ms at least, and a rank's pauses hold back the others."""
    assert slow(ranks, LIMITS, MODES, work_ms=5.01, most=1.35) == {}


def test_many_exchanges_in_each_step_do_not_diverge(ranks: Ranks) -> None:
    """1.25 ms of work between two of them: each rank's pauses hold back all others, at different times."""
    limits = ([10] * 2, [25] * 2, [45] * 4, [25] * 8, [25, 50])
    words = ("kernels=80", "exchanges=16", "exchange=200000", STALL)
    assert slow(ranks, limits, [words], work_ms=23.2, most=1.8) == {}


def test_nor_does_it_begin_again(ranks: Ranks) -> None:
    """What is known of a kernel is forgotten slowly, also by a rank that waits at every step."""
    longest = {}
    for limits, mode in product(((25, 25), (10, 25), (30, 45)), MODES[:2]):
        job = ranks.run(limits, "steps=1500", "exchange=1000000", *mode)
        longest[limits, mode] = max(job.steps_ms[200:]) * min(limits) / 100
    assert {job: step for job, step in longest.items() if step >= 1.6 * 6} == {}


@pytest.mark.parametrize("limit", [10, 25, 45])
def test_a_pause_for_a_wait_is_half_as_long(ranks: Ranks, limit: int) -> None:
    """So the disturbance halves at each step. The work of a step is paid for too: 5 ms, in several pauses."""
    job = ranks.run([limit] * 2, "steps=40", STALL)
    assert max(job.pauses_ms) < STALL_MS / 2 + 5 * 100 / limit
    assert job.steps_ms[8] > STALL_MS
    assert max(job.steps_ms[12:]) < 5 * 100 / limit + STALL_MS / 8


def test_so_is_a_pause_for_a_rank_that_starts_late(ranks: Ranks) -> None:
    """The first exchange ever, of which nothing is known: 20 ms are taken for work."""
    late_ms = 2000
    words = ("steps=20", f"stall=0:{late_ms}000000", "kernels=40", "exchange=1000000")
    each_job = product(("small", "cooperative", "graph"), (10, 25, 45))
    pauses = {(by, limit): max(ranks.run([limit] * 2, f"by={by}", *words).pauses_ms) for by, limit in each_job}
    assert {each: pause for each, pause in pauses.items() if pause >= late_ms / 2 + 20 * 100 / each[1]} == {}


def test_a_mark_that_is_recorded_slowly_tells_no_wait(ranks: Ranks) -> None:
    """The exchange of the rank that stalls was over long before its end is marked: what the thread slept is no wait."""
    words = ("kernels=40", "work=500000", "exchange=50000", "record=30000", "steps=14", STALL)
    each_job = product((10, 25, 45), range(8))
    pauses = {(limit, seed): max(ranks.run([limit] * 2, *words, f"seed={seed}").pauses_ms) for limit, seed in each_job}
    assert {each: pause for each, pause in pauses.items() if pause >= STALL_MS / 2 + 20 * 100 / each[0]} == {}


@examples(60)
@given(
    limits=st.lists(st.integers(5, 95), min_size=2, max_size=8),
    kernels=st.integers(40, 160),
    exchange_us=st.integers(5, 10_000),
    mode=st.sampled_from(MODES),
    by=st.sampled_from(["small", "cooperative"]),
    jitter_us=st.sampled_from([5, 60, 300]),
    stall=st.sampled_from(STALLS),
    seed=st.integers(1, 10_000),
)
def test_no_job_diverges_or_stands_still(
    checked_ranks: Ranks,
    limits: list[int],
    kernels: int,
    exchange_us: int,
    mode: tuple[str, ...],
    by: str,
    jitter_us: int,
    stall: tuple[str, ...],
    seed: int,
) -> None:
    words = (f"kernels={kernels}", f"exchange={exchange_us}000", f"by={by}", f"jitter={jitter_us}000", f"seed={seed}")
    work_ms = kernels / 4 + exchange_us / 1000
    assert slower(checked_ranks, limits, *words, *mode, *stall, work_ms=work_ms) < 1.4


# ---- who says that he waits ----


def test_who_hides_work_as_waiting_gets_two_thirds(simulation: Simulation) -> None:
    """Every other launch is a thousandth of the next, under the same key: the long ones pass for waits."""
    told = shares(simulation, HIDING, (5, 10, 25, 50), "seconds=10")
    assert beyond(told, lambda limit: (0, 100 / 1.5 + 1)) == {}


def test_nor_does_who_hides_more_of_it(simulation: Simulation) -> None:
    """200 ms at a time: in turns, in ever new kernels, or in a wide kernel among small ones that have not waited for
    long, so that they are measured together.
    """
    told = shares(simulation, ("hidelong", "hidenew", "hideamong"), (5, 10, 25, 50), "seconds=20")
    assert beyond(told, lambda limit: (limit, 100 / 1.5 + 1)) == {}


def test_few_wide_kernels_hide_among_small_ones(simulation: Simulation) -> None:
    """Behind a batch that took too long, the small ones are measured alone for a while. Else: 49 of 10, 60 of 25."""
    told = shares(simulation, ["hideamong"], (10, 25), "seconds=10")
    assert beyond(told, lambda limit: (0, limit * 1.7)) == {}


def test_a_limit_above_that_holds(simulation: Simulation) -> None:
    assert off(shares(simulation, HIDING, (67, 75, 90), "seconds=10"), 1) == {}


@pytest.mark.parametrize("workload", HIDING[:3])
def test_beside_others_on_the_gpu_he_gets_less(simulation: Simulation, workload: str) -> None:
    hiding, neighbour = simulation.run("seconds=10", "c:10", f"p:{workload}", "c:50", "p:medium")
    assert hiding.share <= 45
    assert neighbour.share >= 39, "it is charged for turns of the other that it does not believe"
    hiding, neighbour = simulation.run("seconds=10", "c:25", f"p:{workload}", "c:50", "p:medium")
    assert hiding.share <= 37
    assert neighbour.share == pytest.approx(50, abs=1)
    (container,) = simulation.run("seconds=10", "c:25", *[f"p:{workload}"] * 8)
    assert container.share <= 100 / 1.5


def test_kernels_with_wide_grids_never_wait(simulation: Simulation) -> None:
    """A persistent kernel has the same grid for all sizes, and takes a hundred times as long for some."""
    assert off(shares(simulation, ("sizes", "hidewide", "amongsmall"), (10, 25, 50, 75), "seconds=4"), 0.5) == {}


def test_work_that_varies_is_work(simulation: Simulation) -> None:
    """Up to four times as long as the shortest: what could wait is charged as all else is, beside others too."""
    workloads, limits = ("variedsmall", "variedtiny", "variedtogether", "variedgraph"), (10, 25, 50)
    assert off(shares(simulation, workloads, limits, "seconds=5"), 0.5) == {}
    beside = {}
    for each in product(workloads, limits):
        workload, limit = each
        both = simulation.run("seconds=5", f"c:{limit}", f"p:{workload}", "c:50", "p:medium")
        beside[each] = [container.share for container in both]
    assert beside == {each: [pytest.approx(each[1], abs=1), pytest.approx(50, abs=1)] for each in beside}


def test_a_kernel_that_became_longer_for_good_is_charged_as_such(simulation: Simulation) -> None:
    """A hundred times as long, after three hundred launches."""
    told = shares(simulation, ["grown"], (10, 25, 50), "seconds=12")
    late = {limit: sum(one.tenths[-40:]) / 40 for (_, limit), one in told.items()}
    assert late == {limit: pytest.approx(limit, abs=1) for limit in late}


def test_what_works_beside_a_wait_is_work(simulation: Simulation) -> None:
    """One stream with wide kernels, one with kernels that pass for waiting: alone on the GPU only for a while."""
    told = shares(simulation, ["beside"], (10, 25, 50), "seconds=10")
    assert beyond(told, lambda limit: (limit - 1, limit + 8)) == {}
