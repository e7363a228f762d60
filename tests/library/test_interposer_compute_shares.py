"""Shares of the emulated GPU's time, in real time: few cases and short; benchmarks/sharing.py measures all of them.

Tolerances are wider than the product's: this machine may be busy with other things, and three seconds are short.
"""

import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deviceplugin.container import activity
from sandbox.shared_gpu import SharedGpu, SharingContainer, shares
from tests.library.compiler import compiled
from tests.library.interposed import Container as Interposed
from tests.library.interposed import device
from tests.waiting import eventually

pytestmark = pytest.mark.realtime

_PROGRAMS = Path(__file__).parent / "native/interposer_programs"


@pytest.fixture(scope="session")
def launching(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("launching") / "launching"
    return compiled(output, _PROGRAMS / "launching.c", build / "libcuda.so.1", "-ldl")


@pytest.mark.parametrize(
    ("kind", "limit"), [("small", 50), ("medium", 75), ("gemm", 25), ("step", 50), ("graph", 25), ("streams", 30)]
)
def test_a_container_gets_its_share(gpu: SharedGpu, workload: Path, kind: str, limit: int) -> None:
    container = gpu.container(limit)
    with container.start(workload, kind, "--seconds", 2.5) as running:
        (share,) = shares([running])
    if kind == "streams":  # four in parallel, but seldom all four: it is not more than its share
        assert limit / 2 <= share <= limit + 2
    else:
        assert share == pytest.approx(limit, abs=2)
    counters = container.counters
    assert counters.charged_ns == pytest.approx(3e9 * limit / 100, rel=0.15)
    assert counters.launches > 0
    assert counters.throttled_launches > 0
    assert counters.effective_cores == limit * 1000


def test_a_container_without_a_limit_is_left_alone(gpu: SharedGpu, workload: Path) -> None:
    container = gpu.container(100)
    with container.start(workload, "medium", "--seconds", 1) as running:
        assert shares([running]) == [pytest.approx(100, abs=1)]
    assert container.counters.launches == 0


def test_who_does_not_reach_the_limit_is_not_held_back(gpu: SharedGpu, workload: Path) -> None:
    container = gpu.container(50)
    with container.start(workload, "eager", "--seconds", 2) as running:
        running.result()
    assert container.counters.throttled_ns < 2e9 * 0.05


@pytest.mark.parametrize("limits", [(30, 70), (50, 50)])
def test_two_containers(gpu: SharedGpu, workload: Path, limits: tuple[int, int]) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(gpu.container(limit).start(workload, kind, "--seconds", 3))
            for limit, kind in zip(limits, ("gemm", "medium"), strict=True)
        ]
        assert shares(running) == [pytest.approx(limit, abs=3) for limit in limits]


def charged_percent(container: SharingContainer, seconds: float) -> float:
    """What a container is charged from now on, in percent of the GPU."""
    before, begin = container.counters.charged_ns, time.monotonic()
    time.sleep(seconds)
    return (container.counters.charged_ns - before) / (time.monotonic() - begin) / 1e7


def test_eight_processes_share_one_budget(gpu: SharedGpu, workload: Path) -> None:
    """On a busy machine they begin one after the other, and each measures its own three seconds: the sum is more."""
    container = gpu.container(50)
    with ExitStack() as stack:
        running = [stack.enter_context(container.start(workload, "medium", "--seconds", 3)) for _ in range(8)]
        assert eventually(lambda: container.counters.charged_ns > 500_000_000, within=10)
        assert charged_percent(container, 1.5) == pytest.approx(50, abs=3)
        got = shares(running)
    assert 47 <= sum(got) <= 65
    assert min(got) >= 50 / 8 / 2


def test_the_limit_changes_while_it_runs(gpu: SharedGpu, workload: Path) -> None:
    container = gpu.container(20)
    with container.start(workload, "medium", "--seconds", 30):
        assert eventually(lambda: container.counters.charged_ns > 100_000_000, within=10)
        assert charged_percent(container, 1) == pytest.approx(20, abs=3)
        for limit in (60, 100, 10):
            container.limit(limit)
            time.sleep(1.0)  # what the issue allows
            if limit < 100:
                assert charged_percent(container, 1) == pytest.approx(limit, abs=3)
            else:
                assert charged_percent(container, 0.5) < 3, "nobody is charged who is not limited"


def test_idle_time_is_borrowed_and_given_back(gpu: SharedGpu, workload: Path) -> None:
    borrower, owner = gpu.container(30, soft_cores=90), gpu.container(60)
    with borrower.start(workload, "medium", "--seconds", 30):
        assert eventually(lambda: borrower.counters.charged_ns > 500_000_000, within=10)
        assert charged_percent(borrower, 1) == pytest.approx(90, abs=4)
        with owner.start(workload, "gemm", "--seconds", 2.5) as running:
            (got,) = shares([running])
        assert got == pytest.approx(60, abs=3)
        time.sleep(1.0)
        assert charged_percent(borrower, 1) == pytest.approx(90, abs=4)
        assert borrower.counters.effective_cores == 90_000


def test_a_killed_process_blocks_no_other(gpu: SharedGpu, workload: Path) -> None:
    container = gpu.container(50)
    with container.start(workload, "medium", "--seconds", 3) as running:
        for _ in range(4):
            with container.start(workload, "long", "--seconds", 30) as killed:
                time.sleep(0.3)
                killed.kill()
        running.result()
    with container.start(workload, "medium", "--seconds", 2) as running:
        assert shares([running]) == [pytest.approx(50, abs=2)]


def test_a_neighbour_that_was_killed_at_work_counts_no_more(gpu: SharedGpu, workload: Path) -> None:
    neighbour, container = gpu.container(50), gpu.container(50)
    with neighbour.start(workload, "long", "--seconds", 30) as killed:
        time.sleep(1)
        killed.kill()
    with container.start(workload, "medium", "--seconds", 2) as running:
        assert shares([running]) == [pytest.approx(50, abs=2)]


# ---- the ways of launching, see launching.c ----


def case(gpu: SharedGpu, launching: Path, name: str, **environment: str) -> dict[str, object]:
    with gpu.container(25).start(launching, name, **environment) as running:
        return running.result()


def test_who_cuts_his_row_ends_no_neighbour(gpu: SharedGpu, workload: Path) -> None:
    """A container writes its own row, so it can cut it too; a neighbour that had it mapped would get SIGBUS."""
    container, hostile = gpu.container(30), gpu.container(50)
    row = hostile.base / f"state/{gpu.uuid}.activity"
    size = row.stat().st_size
    with container.start(workload, "medium", "--seconds", 2.5) as running, hostile.start(workload, "medium") as cutting:
        time.sleep(1)
        os.truncate(row, 0)
        time.sleep(0.3)
        os.truncate(row, size)
        (share,) = shares([running])
        cutting.kill()
    assert share >= 27  # what the other one may use and does not, because it has crashed, is this one's


@contextmanager
def always_busy(row: Path, slots: int) -> Iterator[None]:
    """A row that says that so many processes have been on the GPU since ever, and still are."""
    over = threading.Event()

    def say(view: mmap.mmap) -> None:
        struct.pack_into("<III", view, activity.LIMITS_AT - 4, slots, 100, 100)
        while not over.wait(0.01):
            now = time.monotonic_ns()
            struct.pack_into("<Q", view, activity.LIMITS_AT + 12, now)
            for slot in range(slots):
                struct.pack_into("<QQ", view, activity.HEADER_SIZE + slot * activity.SLOT_SIZE, now, 1)

    with row.open("r+b") as file, mmap.mmap(file.fileno(), activity.SIZE) as view:
        saying = threading.Thread(target=say, args=(view,))
        saying.start()
        try:
            yield
        finally:
            over.set()
            saying.join()


@pytest.mark.parametrize("slots", [1, 128])
def test_a_row_that_lies_takes_nothing_from_those_whose_gpu_it_is(gpu: SharedGpu, workload: Path, slots: int) -> None:
    liar = gpu.container(1)
    liar.tell(0)  # the other two have all of it
    with ExitStack() as stack:
        stack.enter_context(always_busy(liar.base / f"state/{gpu.uuid}.activity", slots))
        running = [
            stack.enter_context(gpu.container(limit).start(workload, kind, "--seconds", 3))
            for limit, kind in ((30, "gemm"), (70, "medium"))
        ]
        assert shares(running) == [pytest.approx(30, abs=3), pytest.approx(70, abs=3)]


@pytest.mark.parametrize(("put", "says"), [("link", "is a symbolic link"), ("rubbish", "is no activity row")])
def test_an_unusable_activity_file_of_its_own_is_reported(gpu: SharedGpu, workload: Path, put: str, says: str) -> None:
    """Once, with the file's name; the limit holds all the same."""
    container = gpu.container(40)
    row = container.base / f"state/{gpu.uuid}.activity"
    if put == "link":
        row.rename(row.with_suffix(".moved"))
        row.symlink_to(row.with_suffix(".moved"))
    else:
        row.write_bytes(bytes(activity.SIZE))
    with container.start(workload, "medium", "--seconds", 1.5) as running:
        out, errors = running.process.communicate(timeout=50)
    assert errors.startswith(f"vcuda: {row}: {says}: other containers do not see this process's turns on the GPU")
    assert errors.count("\n") == 1
    assert json.loads(out.splitlines()[-1])["share_percent"] == pytest.approx(40, abs=3)


def test_every_way_of_launching_is_limited(gpu: SharedGpu, launching: Path) -> None:
    for way, share in case(gpu, launching, "ways").items():
        assert share == pytest.approx(25, abs=2), way


def test_threads_that_come_and_go(gpu: SharedGpu, launching: Path) -> None:
    assert case(gpu, launching, "threads") == {"share": pytest.approx(25, abs=2)}


def test_a_capture_contains_no_calls_of_the_library(gpu: SharedGpu, launching: Path) -> None:
    assert case(gpu, launching, "captures") == {"nodes": 3 * 8 * 30, "violations": 0}


def test_contexts_and_streams_that_end_at_work(gpu: SharedGpu, launching: Path) -> None:
    assert case(gpu, launching, "ends") == {"share": pytest.approx(25, abs=2.5)}


def test_no_launch_waits_long_for_what_cannot_be_measured(gpu: SharedGpu, launching: Path) -> None:
    longest = case(gpu, launching, "stuck")["longest_ms"]
    assert isinstance(longest, float)
    assert 200 <= longest <= 400


def test_forked_children(gpu: SharedGpu, launching: Path) -> None:
    told = case(gpu, launching, "forks")
    assert told == {"before_init": True, "after_init": True, "parent": pytest.approx(25, abs=2)}


def test_the_end_of_a_process_is_not_delayed(gpu: SharedGpu, launching: Path) -> None:
    with gpu.container(25).start(launching, "exits") as running:
        ended_at = running.result()["at_ns"]
    assert time.monotonic_ns() - ended_at < 500_000_000


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["threads", "captures", "ends", "stuck", "forks", "exits"])
def test_with_checks(checked_gpu: tuple[SharedGpu, dict[str, str]], launching: Path, name: str) -> None:
    gpu, checks = checked_gpu
    case(gpu, launching, name, **checks)


def test_a_kernel_for_several_devices_waits_for_each(emulated: Interposed, build: Path, tmp_path: Path) -> None:
    """cuLaunchCooperativeKernelMultiDevice, CUDA 9 to 12: in debt on one device, with credit on the other."""
    program = compiled(tmp_path / "several_devices", _PROGRAMS / "several_devices.c", build / "libcuda.so.1")
    emulated.grant(device(0), device(1))
    with emulated.start_program(program) as process:
        assert process.communicate(timeout=50) == ("10\n", "")
        assert process.returncode == 0
