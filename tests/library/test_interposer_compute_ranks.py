"""Ranks of a job that exchange data at every step, each on a GPU of its own, on a simulated clock (Library D1).

A rank that is held back makes its peers wait on the GPU. What they are charged for it must not hold them back as long.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.library.compute import Ranks, Simulation, build_ranks, build_simulation

STEPS = 60
STALL_MS = 500
STALL = f"stall=8:{STALL_MS}000000"
EQUAL = ([10] * 2, [25] * 2, [30] * 2, [45] * 2, [50] * 2, [75] * 2, [25] * 4, [25] * 8, [45] * 8)
DIFFERENT = ([10, 25], [25, 50], [30, 45], [30, 75], [10, 25, 50, 75], [10, 25, 25, 30, 45, 50, 75, 75])
MODES: tuple[tuple[str, ...], ...] = ((), ("async",), ("apart",), ("apart", "async"))
HIDING = ("hidesmall", "hidetogether", "hidegraph", "hidestreams")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(build_ranks(tmp_path_factory.mktemp("ranks")))


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    return Simulation(build_simulation(tmp_path_factory.mktemp("compute")))


def slower(ranks: Ranks, limits: Sequence[int], *words: str, work_ms: float, steps: int = STEPS) -> float:
    """How many times as long as they must a job's steps take: alone-time divided by the smallest share is 1."""
    job = ranks.run(limits, f"steps={steps}", *words)
    assert len(job.steps_ms) == steps, "it stands still"
    return job.settled_ms / (work_ms * 100 / min(limits))


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
@pytest.mark.parametrize("limits", [*EQUAL, *DIFFERENT], ids=str)
def test_steps_take_as_long_as_the_smallest_share_needs(
    ranks: Ranks, limits: Sequence[int], mode: tuple[str, ...]
) -> None:
    for stall in ((), (STALL,)):
        times = slower(ranks, limits, *mode, *stall, "kernels=80", "exchange=1000000", work_ms=21)
        assert 0.9 < times < 1.2, stall


@pytest.mark.parametrize("by", ["cooperative", "graph"])
@pytest.mark.parametrize("limits", [[10] * 2, [25] * 2, [45] * 2, [25] * 8, [10, 25], [30, 75]], ids=str)
def test_whatever_waits(ranks: Ranks, limits: Sequence[int], by: str) -> None:
    """Graphs with an exchange in them, too, once one of them has waited long."""
    for mode in ((), ("async",)):
        times = slower(ranks, limits, f"by={by}", *mode, STALL, "exchange=1000000", work_ms=6)
        assert 0.9 < times < 1.2, mode


@pytest.mark.parametrize("limits", [[10] * 2, [25] * 2, [30] * 2, [35] * 2, [30] * 4], ids=str)
def test_graphs_that_never_waited_long(ranks: Ranks, limits: Sequence[int]) -> None:
    """Graphs of which none took four times its work: waits up to that are charged as work."""
    for mode in ((), ("async",)):
        assert 0.9 < slower(ranks, limits, "by=graph", *mode, "exchange=1000000", work_ms=6) < 2.6, mode


@pytest.mark.parametrize("limits", [*EQUAL, *DIFFERENT], ids=str)
def test_steps_that_are_short_beside_a_pause_take_little_longer(ranks: Ranks, limits: Sequence[int]) -> None:
    """5 ms of work: a pause is 4 ms at least, and a rank's pauses hold back the others."""
    for mode in MODES:
        assert 0.9 < slower(ranks, limits, *mode, work_ms=5.01) < 1.35, mode


@pytest.mark.parametrize("limits", [[10] * 2, [25] * 2, [45] * 4, [25] * 8, [25, 50]], ids=str)
def test_many_exchanges_in_each_step_do_not_diverge(ranks: Ranks, limits: Sequence[int]) -> None:
    """1.25 ms of work between two of them: each rank's pauses hold back all others, at different times."""
    words = ("kernels=80", "exchanges=16", "exchange=200000")
    assert 0.9 < slower(ranks, limits, *words, STALL, work_ms=23.2) < 1.8


@pytest.mark.parametrize("limits", [[25] * 2, [10, 25], [30, 45]], ids=str)
def test_nor_does_it_begin_again(ranks: Ranks, limits: Sequence[int]) -> None:
    """What is known of a kernel is forgotten slowly, also by a rank that waits at every step."""
    for mode in ((), ("async",)):
        job = ranks.run(limits, "steps=1500", "exchange=1000000", *mode)
        assert max(job.steps_ms[200:]) < 1.6 * 6 * 100 / min(limits), mode


@pytest.mark.parametrize("limit", [10, 25, 45])
def test_a_pause_for_a_wait_is_half_as_long(ranks: Ranks, limit: int) -> None:
    """So the disturbance halves at each step. The work of a step is paid for too: 5 ms, in several pauses."""
    job = ranks.run([limit] * 2, "steps=40", STALL)
    assert max(job.pauses_ms) < STALL_MS / 2 + 5 * 100 / limit
    assert job.steps_ms[8] > STALL_MS
    assert max(job.steps_ms[12:]) < 5 * 100 / limit + STALL_MS / 8


@pytest.mark.parametrize("by", ["small", "cooperative", "graph"])
@pytest.mark.parametrize("limit", [10, 25, 45])
def test_so_is_a_pause_for_a_rank_that_starts_late(ranks: Ranks, by: str, limit: int) -> None:
    """The first exchange ever, of which nothing is known: 20 ms are taken for work."""
    late_ms = 2000
    job = ranks.run([limit] * 2, f"by={by}", "steps=20", f"stall=0:{late_ms}000000", "kernels=40", "exchange=1000000")
    assert max(job.pauses_ms) < late_ms / 2 + 20 * 100 / limit


@pytest.mark.parametrize("limit", [10, 25, 45])
def test_a_mark_that_is_recorded_slowly_tells_no_wait(ranks: Ranks, limit: int) -> None:
    """The exchange of the rank that stalls was over long before its end is marked: what the thread slept is no wait."""
    for seed in range(8):
        words = ("kernels=40", "work=500000", "exchange=50000", "record=30000", f"seed={seed}")
        job = ranks.run([limit] * 2, "steps=14", STALL, *words)
        assert max(job.pauses_ms) < STALL_MS / 2 + 20 * 100 / limit, seed


@examples(60)
@given(
    limits=st.lists(st.integers(5, 95), min_size=2, max_size=8),
    kernels=st.integers(40, 160),
    exchange_us=st.integers(5, 10_000),
    mode=st.sampled_from(MODES),
    by=st.sampled_from(["small", "cooperative"]),
    jitter_us=st.sampled_from([5, 60, 300]),
    stall=st.sampled_from([(), (STALL,)]),
    seed=st.integers(1, 10_000),
)
def test_no_job_diverges_or_stands_still(
    ranks: Ranks,
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
    assert slower(ranks, limits, *words, *mode, *stall, work_ms=work_ms) < 1.4


# ---- who says that he waits ----


@pytest.mark.parametrize("limit", [5, 10, 25, 50])
@pytest.mark.parametrize("workload", HIDING)
def test_who_hides_work_as_waiting_gets_two_thirds(simulation: Simulation, workload: str, limit: int) -> None:
    """Every other launch is a thousandth of the next, under the same key: the long ones pass for waits."""
    (container,) = simulation.run("seconds=10", f"c:{limit}", f"p:{workload}")
    assert container.share <= 100 / 1.5 + 1


@pytest.mark.parametrize("limit", [5, 10, 25, 50])
@pytest.mark.parametrize("workload", ["hidelong", "hidenew", "hideamong"])
def test_nor_does_who_hides_more_of_it(simulation: Simulation, workload: str, limit: int) -> None:
    """200 ms at a time: in turns, in ever new kernels, or in a wide kernel among small ones that have not waited for
    long, so that they are measured together.
    """
    (container,) = simulation.run("seconds=20", f"c:{limit}", f"p:{workload}")
    assert limit <= container.share <= 100 / 1.5 + 1


@pytest.mark.parametrize("limit", [10, 25])
def test_few_wide_kernels_hide_among_small_ones(simulation: Simulation, limit: int) -> None:
    """Behind a batch that took too long, the small ones are measured alone for a while. Else: 49 of 10, 60 of 25."""
    (container,) = simulation.run("seconds=10", f"c:{limit}", "p:hideamong")
    assert container.share <= limit * 1.7


@pytest.mark.parametrize("limit", [67, 75, 90])
@pytest.mark.parametrize("workload", HIDING)
def test_a_limit_above_that_holds(simulation: Simulation, workload: str, limit: int) -> None:
    (container,) = simulation.run("seconds=10", f"c:{limit}", f"p:{workload}")
    assert container.share == pytest.approx(limit, abs=1)


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


@pytest.mark.parametrize("limit", [10, 25, 50, 75])
@pytest.mark.parametrize("workload", ["sizes", "hidewide", "amongsmall"])
def test_kernels_with_wide_grids_never_wait(simulation: Simulation, workload: str, limit: int) -> None:
    """A persistent kernel has the same grid for all sizes, and takes a hundred times as long for some."""
    (container,) = simulation.run("seconds=4", f"c:{limit}", f"p:{workload}")
    assert container.share == pytest.approx(limit, abs=0.5)


@pytest.mark.parametrize("limit", [10, 25, 50])
@pytest.mark.parametrize("workload", ["variedsmall", "variedtiny", "variedtogether", "variedgraph"])
def test_work_that_varies_is_work(simulation: Simulation, workload: str, limit: int) -> None:
    """Up to four times as long as the shortest: what could wait is charged as all else is, beside others too."""
    (container,) = simulation.run("seconds=5", f"c:{limit}", f"p:{workload}")
    assert container.share == pytest.approx(limit, abs=0.5)
    varied, neighbour = simulation.run("seconds=5", f"c:{limit}", f"p:{workload}", "c:50", "p:medium")
    assert varied.share == pytest.approx(limit, abs=1)
    assert neighbour.share == pytest.approx(50, abs=1)


@pytest.mark.parametrize("limit", [10, 25, 50])
def test_a_kernel_that_became_longer_for_good_is_charged_as_such(simulation: Simulation, limit: int) -> None:
    """A hundred times as long, after three hundred launches."""
    (container,) = simulation.run("seconds=12", f"c:{limit}", "p:grown")
    assert sum(container.tenths[-40:]) / 40 == pytest.approx(limit, abs=1)


@pytest.mark.parametrize("limit", [10, 25, 50])
def test_what_works_beside_a_wait_is_work(simulation: Simulation, limit: int) -> None:
    """One stream with wide kernels, one with kernels that pass for waiting: alone on the GPU only for a while."""
    (container,) = simulation.run("seconds=10", f"c:{limit}", "p:beside")
    assert limit - 1 <= container.share <= limit + 8
