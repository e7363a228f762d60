"""A container that hides its turns on the GPU, in real time on the emulated GPU: its neighbours keep their shares.

Tolerances as in test_interposer_compute_shares.py.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.hiding import again_and_again, turns_hidden, watched
from deviceplugin.container.limit_monitor import Tolerance
from sandbox.shared_gpu import SharedGpu, shares
from tests.waiting import eventually

pytestmark = pytest.mark.realtime


@contextmanager
def spoiling(row: Path, how: str) -> Iterator[None]:
    """Writes into a row, until the end, what makes it say nothing of the processes that run."""

    def spoil() -> None:
        if how == "cut":
            os.truncate(row, 100)
        else:
            with row.open("r+b") as file:
                file.write(bytes(8))

    with turns_hidden([row]) if how == "no-slots" else again_and_again(spoil, every_s=0.005):
        yield


@pytest.mark.parametrize(("how", "limits"), [("magic", (50, 50)), ("cut", (20, 50)), ("no-slots", (20, 30))])
def test_a_container_that_hides_its_turns_takes_nothing_from_another(
    gpu: SharedGpu, workload: Path, how: str, limits: tuple[int, int]
) -> None:
    """Security 8. Where the file can be read and says nothing, the agent has found out."""
    hiding, victim = (gpu.container(limit) for limit in limits)
    row = hiding.base / f"state/{gpu.uuid}.activity"
    with hiding.start(workload, "medium", "--seconds", 30), victim.start(workload, "medium", "--seconds", 4) as running:
        assert eventually(lambda: hiding.counters.charged_ns > 100_000_000, within=10)
        if how == "no-slots":
            hiding.assume(limits[0])
        with spoiling(row, how):
            (share,) = shares([running])
    assert share >= limits[1] - 4


def test_a_program_past_the_library_takes_nothing_but_what_it_uses(gpu: SharedGpu, workload: Path) -> None:
    """Security 8. Its container's limit is 20, it takes half of the GPU, and its row is silent. The agent tells so."""
    past, victim = gpu.container(20), gpu.container(50)
    past.assume(50)
    past.environment = gpu.native
    with past.start(workload, "medium", "--seconds", 30), victim.start(workload, "medium", "--seconds", 4) as running:
        (share,) = shares([running])
    assert share == pytest.approx(50, abs=4)


SOON = Tolerance(patience_s=2, window_s=3)


@pytest.mark.parametrize("how", ["past-the-library", "silent", "honest"])
def test_the_agent_finds_a_container_that_hides_its_turns(gpu: SharedGpu, workload: Path, how: str) -> None:
    """Security 8, all of it: driver, activity file, monitor, the file for neighbours, their library."""
    hiding, victim = gpu.container(50), gpu.container(50)
    row = hiding.base / f"state/{gpu.uuid}.activity"
    if how == "past-the-library":
        hiding.environment = gpu.native
    with ExitStack() as stack:
        first = stack.enter_context(hiding.start(workload, "medium", "--seconds", 60))
        if how == "silent":
            stack.enter_context(spoiling(row, "no-slots"))
        (seen,) = stack.enter_context(watched(gpu, [(hiding, 50, first)], tolerance=SOON, every_s=0.5))
        running = stack.enter_context(victim.start(workload, "medium", "--seconds", 4, "--warmup", 8))
        (share,) = shares([running])
    assert share >= 46
    assert bool(seen.told[-1]) == (how != "honest")


@pytest.mark.parametrize(("count", "limit", "own", "is_honest"), [(2, 10, 50, 0), (10, 5, 50, 0), (7, 10, 30, 1)])
def test_many_that_hide_little_are_found_together(
    gpu: SharedGpu, workload: Path, count: int, limit: int, own: int, is_honest: int
) -> None:
    """In short form; benchmarks/hiding.py takes the agent's own times. Their neighbour loses two points."""
    others, one = [gpu.container(limit) for _ in range(count)], gpu.container(own)
    with ExitStack() as stack:
        beside = [stack.enter_context(each.start(workload, "medium", "--seconds", 60)) for each in others]
        running = stack.enter_context(one.start(workload, "medium", "--seconds", 4, "--warmup", 10))
        if not is_honest:
            stack.enter_context(turns_hidden([each.base / f"state/{gpu.uuid}.activity" for each in others]))
        all_of_them = [*((each, limit, it) for each, it in zip(others, beside, strict=True)), (one, own, running)]
        seen = stack.enter_context(watched(gpu, all_of_them, tolerance=SOON, every_s=0.5))
        (share,) = shares([running])
    assert share >= own - 2, [each.told[-4:] for each in seen]
    assert [bool(each.told[-1]) for each in seen] == [not is_honest] * count + [False]


def test_many_that_hide_their_turns_pay_for_each_other(gpu: SharedGpu, workload: Path) -> None:
    """Security 8: three of 20 percent, spoilt once, beside one of 40."""
    hiding, victim = [gpu.container(20) for _ in range(3)], gpu.container(40)
    with ExitStack() as stack:
        for one in hiding:
            stack.enter_context(one.start(workload, "medium", "--seconds", 30))
        running = stack.enter_context(victim.start(workload, "medium", "--seconds", 4))
        assert eventually(lambda: all(one.counters.charged_ns > 50_000_000 for one in hiding), within=20)
        for one in hiding:
            with (one.base / f"state/{gpu.uuid}.activity").open("r+b") as file:
                file.write(bytes(8))
        (share,) = shares([running])
    assert share >= 36
