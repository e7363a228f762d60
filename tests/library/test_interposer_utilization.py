"""How busy NVML shows the GPU in a share: as busy as the container keeps its share, whatever its neighbours do."""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deviceplugin.container import region
from tests.library.codes import INVALID_ARGUMENT, SUCCESS
from tests.library.interposed import Container, device
from tests.library.test_interposer_loading import program
from tests.waiting import eventually

GPU, MEMORY, POWER = 1, 2, 0
SECOND = 1_000_000_000
_CHARGED, _SAMPLED = 32, 80  # in struct region_device of library/abi/region.h


@pytest.fixture
def shared(container: Container, build: Path) -> Container:
    """A share of 20 cores of a GPU that is 90 % busy."""
    container.grant(device(0, cores=20))
    for words in (["init"], ["util", "0", "90", "40"]):
        command = [str(build / "vcuda-emulator"), *words]
        subprocess.run(command, env=container.environment, check=True, stdout=subprocess.DEVNULL)
    return container


def put(container: Container, *, charged: int, sampled: tuple[int, int], sampled_charged: tuple[int, int]) -> None:
    with container.region_file.open("r+b") as file:
        file.seek(region.HEADER_SIZE + _CHARGED)
        file.write(struct.pack("<Q", charged))
        file.seek(region.HEADER_SIZE + _SAMPLED)
        file.write(struct.pack("<4Q", *sampled, *sampled_charged))


def used(container: Container, seconds: float) -> None:
    """So much GPU time of each 10,000 seconds; the newer sample stays fresh, however slow this machine is.

    The clock begins when the machine is started, which may be less than 10,000 seconds ago.
    """
    now = time.monotonic_ns()
    window = min(now // 2, 10_000 * SECOND)  # no sample is at 0, which means that there is none
    charged = int(seconds * window / 10_000)
    put(container, charged=charged, sampled=(now - window, now + 1000 * SECOND), sampled_charged=(0, charged))


@pytest.mark.parametrize(("seconds", "percent"), [(0, 0), (500, 25), (1000, 50), (2000, 100), (9000, 100)])
def test_the_gpu_is_as_busy_as_the_container_keeps_its_share(shared: Container, seconds: float, percent: int) -> None:
    used(shared, seconds)
    assert shared.run("utilization", 0).value == [SUCCESS, percent, min(percent, 40)]


def test_the_other_gpu_and_a_share_without_a_limit_of_time_show_the_driver(shared: Container) -> None:
    used(shared, 500)
    shared.grant(device(0, cores=100), device(1, cores=20), generation=2)
    assert shared.run("utilization", 0).value == [SUCCESS, 90, 40]
    shared.grant(device(1, cores=20), generation=3)
    assert shared.run("utilization", 0).value == [SUCCESS, 90, 40]


def test_who_has_not_used_the_gpu_yet_sees_it_idle(shared: Container) -> None:
    assert shared.run("utilization", 0).value == [SUCCESS, 0, 0]


def test_when_no_process_uses_the_gpu_any_more_it_is_idle(shared: Container) -> None:
    """Nobody makes samples then."""
    now = time.monotonic_ns()
    put(shared, charged=SECOND, sampled=(now - 4 * SECOND, now - 3 * SECOND), sampled_charged=(0, SECOND))
    assert shared.run("utilization", 0).value == [SUCCESS, 0, 0]


@pytest.mark.parametrize(
    ("charged", "sampled", "sampled_charged"),
    [
        (5, (1 << 63, 1 << 63), (0, 0)),
        (0, (1, (1 << 64) - 1), ((1 << 64) - 1, (1 << 64) - 1)),
        ((1 << 64) - 1, (1, (1 << 64) - 1), (0, 0)),
        (5, (0, (1 << 64) - 1), (0, 6)),
    ],
)
def test_impossible_samples_stay_within_bounds(
    shared: Container, charged: int, sampled: tuple[int, int], sampled_charged: tuple[int, int]
) -> None:
    put(shared, charged=charged, sampled=sampled, sampled_charged=sampled_charged)
    error, gpu, memory = shared.run("utilization", 0).value
    assert error == SUCCESS
    assert 0 <= memory <= gpu <= 100


def test_samples_show_the_same(shared: Container) -> None:
    used(shared, 500)
    error, count, values, times = shared.run("samples", 0, GPU, 20).value
    assert (error, count, values) == (SUCCESS, 1, [25])
    assert times[0] > 0
    assert shared.run("samples", 0, MEMORY, 20).value[:3] == [SUCCESS, 1, [25]]
    assert shared.run("samples", 0, POWER, 20).value[1] > 1
    assert shared.run("samples", 0, GPU, 0).value[1] > 1, "how many there may be is the driver's to say"


def test_the_domains_of_performance_states_show_the_same(shared: Container, short_tmp: Path) -> None:
    driver = program(short_tmp, "details.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    shared.stand_behind(nvml=driver)
    used(shared, 500)
    assert shared.run("domains").value == [SUCCESS, [25, 25, 62, 63, 64, 65, 66, 67], INVALID_ARGUMENT]
    shared.grant(device(0, cores=100), generation=2)
    assert shared.run("domains").value[1] == list(range(60, 68))


def test_gpustat_shows_it(shared: Container) -> None:
    used(shared, 500)
    with shared.start_program(sys.executable, "-m", "gpustat", "--json") as running:
        out, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.count("vcuda: ")) == (0, 1), "one line: the limits do not name the other GPU"
    assert [gpu["utilization.gpu"] for gpu in json.loads(out)["gpus"]] == [25, 0]


def test_what_is_malformed_is_answered_by_the_driver(shared: Container) -> None:
    assert shared.run("utilization_malformed").value == [INVALID_ARGUMENT] * 3


@pytest.mark.realtime
def test_a_share_that_is_used_up_shows_so_and_an_idle_one_too(emulated: Container, workload: Path) -> None:
    """In the midst of launches, which the limit holds to 25 % of the GPU."""
    emulated.grant(device(0, cores=25), device(1))
    running = emulated.start_program(workload, "medium", "--seconds", 4)
    try:
        assert eventually(lambda: 80 <= emulated.run("utilization", 0).value[1] <= 100)
        assert running.poll() is None
        assert emulated.run("utilization", 1).value == [SUCCESS, 0, 0]
    finally:
        running.communicate(timeout=60)
    assert eventually(lambda: emulated.run("utilization", 0).value == [SUCCESS, 0, 0])
