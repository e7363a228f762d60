"""Kernels that wait for kernels of other processes, as the collectives of a job's ranks do."""

import time
from dataclasses import dataclass, field

import pytest

from tests.library.cuda_client import NOT_READY, SMALL, SUCCESS, Process, kernel, pointer_to, ptx, start
from tests.library.machine import Machine
from tests.waiting import eventually

WAIT_S = 0.05
_MS = 1_000_000
_TEXT = ptx(
    kernel("pair", "10000 ranks = 2"),
    kernel("another_pair", "10000 ranks = 2"),
    kernel("three", "10000 + 5 narrow ranks = 3"),
)


@dataclass
class Rank:
    """A process with a GPU of its own."""

    process: Process
    device: int
    stream: int = field(init=False)
    module: int = field(init=False)

    def __post_init__(self) -> None:
        self.process.begin(self.device)
        self.stream = self.process.stream()
        self.module = self.process.module(_TEXT)

    def exchange(self, name: str = "pair") -> None:
        function = self.process.get("cuModuleGetFunction", self.module, pointer_to(name.encode() + b"\0"))
        self.process("cuLaunchKernel", function, *SMALL, 0, self.stream, None, None)

    @property
    def is_done(self) -> bool:
        code = self.process.code("cuStreamQuery", self.stream)
        assert code in (SUCCESS, NOT_READY)
        return code == SUCCESS


def rank(machine: Machine, device: int, job: str = "") -> Rank:
    return Rank(start(machine, ready=False, VCUDA_EMULATOR_JOB=job), device)


def utilization(machine: Machine, number: int) -> int:
    return int(machine.show()["gpus"][number]["gpu_util"])


def test_a_kernel_ends_when_the_other_process_has_begun_its_own(machine: Machine) -> None:
    """Each in its turn: what one has launched twice waits for the other's second one."""
    first, second = rank(machine, 0), rank(machine, 1)
    before = first.process.record(first.stream)
    first.exchange()
    first.exchange()
    after = first.process.record(first.stream)
    time.sleep(WAIT_S)
    assert not first.is_done
    second.exchange()
    assert eventually(lambda: second.is_done)
    assert not first.is_done
    second.exchange()
    assert eventually(lambda: first.is_done and second.is_done)
    assert first.process.elapsed(before, after) >= WAIT_S * 1000, "the event behind it is reached late, too"


def test_while_it_waits_its_gpu_is_at_work(machine: Machine) -> None:
    """How much is up to the host thread, which a busy machine seldom runs."""
    waiting, _ = rank(machine, 0), rank(machine, 1)
    waiting.exchange()
    assert eventually(lambda: utilization(machine, 0) > 0)
    assert utilization(machine, 1) == 0


def test_three_ranks_and_another_job(machine: Machine) -> None:
    ranks = [rank(machine, device) for device in range(3)]
    stranger = rank(machine, 3, job="another")
    stranger.exchange("three")
    for one in ranks[:2]:
        one.exchange("three")
    time.sleep(WAIT_S)
    assert not any(one.is_done for one in ranks[:2])
    ranks[2].exchange("three")
    assert eventually(lambda: all(one.is_done for one in ranks))
    assert not stranger.is_done


def test_kernels_of_different_names_do_not_meet(machine: Machine) -> None:
    first, second = rank(machine, 0), rank(machine, 1)
    first.exchange("pair")
    second.exchange("another_pair")
    time.sleep(WAIT_S)
    assert not first.is_done
    assert not second.is_done


@pytest.mark.thorough
def test_what_a_killed_rank_had_begun_counts(machine: Machine) -> None:
    ranks = [rank(machine, device) for device in range(3)]
    for one in ranks[:2]:
        one.exchange("three")
    assert eventually(lambda: utilization(machine, 1) > 0)
    ranks[1].process.kill()
    ranks[2].exchange("three")
    assert eventually(lambda: ranks[0].is_done and ranks[2].is_done)


@pytest.mark.thorough
def test_who_waits_for_a_dead_rank_waits_until_he_is_killed(machine: Machine) -> None:
    waiting, dead, other = rank(machine, 0), rank(machine, 1), start(machine)
    dead.process.kill()
    waiting.exchange()
    time.sleep(4 * WAIT_S)
    assert not waiting.is_done
    waiting.process.kill()
    stream = other.stream()
    other.launch(stream, 300 * _MS)  # so that no host time is between the events
    begun = other.record(stream)
    other.launch(stream, 20 * _MS)
    assert other.settled(begun, other.record(stream)) == pytest.approx(20, abs=2)
