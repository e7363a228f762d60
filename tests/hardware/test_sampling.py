"""One reading of each GPU: memory, processes, and how busy each of them was."""

import pytest
from structlog.testing import capture_logs

from deviceplugin.hardware.device import Device, count
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_session import Readings, Sampler
from deviceplugin.model.gpu import GpuProcess, GpuUuid
from tests.hardware.conftest import Stub, uuid

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
ZERO = GpuUuid(uuid(0))


class Bench:
    """A sampler whose clock is set by hand."""

    def __init__(self, stub: Stub) -> None:
        self.now_us = START
        self._nvml = Nvml(NvmlLibrary(path=stub.library))
        self._nvml.open()
        self._sampler = Sampler(period_s=1.0, clock=lambda: self.now_us / 1e6)

    def read(self) -> Readings:
        devices = {}
        for index in range(count(self._nvml)):
            device = Device.at(self._nvml, index)
            devices[device.uuid()] = device
        return self._sampler.read(devices)

    def percents(self) -> dict[int, int]:
        return {process.pid: process.sm_percent for process in self.read().samples[ZERO].processes}


@pytest.fixture
def bench(stub: Stub) -> Bench:
    return Bench(stub)


def loads(stub: Stub, *rows: tuple[int, float, int]) -> None:
    """Readings of GPU 0: PID, seconds after the start, percent."""
    stub.order("loads.0", "\n".join(f"{pid} {START + round(at * SECOND)} {sm}" for pid, at, sm in rows))


def test_what_the_driver_keeps_for_itself_does_not_count_as_used(bench: Bench) -> None:
    assert bench.read().samples[ZERO].memory_used_bytes == 512 << 20


def test_what_the_driver_keeps_for_itself_is_not_given_out(stub: Stub) -> None:
    """NVML D6: the last share of a GPU was refused memory that it had been promised."""
    nvml = Nvml(NvmlLibrary(path=stub.library))
    nvml.open()
    assert Device.at(nvml, 0).memory() == ((16 << 30) - (512 << 20), 512 << 20)


def test_a_driver_without_the_newer_question_is_asked_the_older(stub: Stub) -> None:
    nvml = Nvml(NvmlLibrary(path=stub.old_library))
    nvml.open()
    assert Device.at(nvml, 0).memory() == (16 << 30, 1 << 30)


def test_a_process_with_two_kinds_of_context_is_one_process(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", f"42 {3 << 30}\n7 {1 << 20}\n")
    readings = bench.read()
    assert readings.samples[ZERO].processes == (GpuProcess(7, 1 << 20), GpuProcess(42, 3 << 30))
    assert readings.samples[GpuUuid(uuid(1))].processes == ()


def test_memory_that_nvml_does_not_tell_is_none(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", f"42 {(1 << 64) - 1}\n")
    assert bench.read().samples[ZERO].processes == (GpuProcess(42, 0),)


def test_each_process_has_its_share_and_one_without_a_reading_none(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n43 1\n44 1\n")
    loads(stub, (42, -0.5, 30), (43, -0.1, 60))
    assert bench.percents() == {42: 30, 43: 60, 44: 0}


def test_several_readings_within_a_period_are_averaged(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n")
    loads(stub, (42, -0.9, 10), (42, -0.5, 20), (42, -0.1, 60))
    assert bench.percents() == {42: 30}


def test_no_reading_counts_twice(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n")
    loads(stub, (42, -0.5, 80))
    assert bench.percents() == {42: 80}
    bench.now_us += SECOND
    loads(stub, (42, -0.5, 80), (42, 0.5, 20))
    assert bench.percents() == {42: 20}


def test_between_two_points_of_the_driver_the_last_reading_holds_and_then_fades(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n")
    loads(stub, (42, -0.5, 80))
    assert bench.percents() == {42: 80}
    bench.now_us += SECOND
    assert bench.percents() == {42: 80}
    bench.now_us += SECOND
    assert bench.percents() == {42: 0}


def test_readings_from_before_the_period_are_not_the_gpus_present(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n")
    loads(stub, (42, -60, 99))
    assert bench.percents() == {42: 0}


def test_garbage_among_the_readings_is_passed_over(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n")
    loads(stub, (0, -0.7, 50), (42, -0.6, 101), (42, -0.5, 4294967295), (42, -0.4, 12))
    assert bench.percents() == {42: 12}


def test_a_clock_that_is_set_back_costs_no_more_than_one_period(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1\n")
    bench.now_us = START + 3600 * SECOND
    loads(stub, (42, 3599.5, 70))
    assert bench.percents() == {42: 70}
    bench.now_us = START
    loads(stub, (42, -0.5, 35))
    assert bench.percents() == {42: 35}


def test_a_lost_gpu_is_a_fault_and_the_others_have_their_samples(stub: Stub, bench: Bench) -> None:
    before = bench.read()
    assert before.faults == {}
    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses_v3"):
        stub.order(f"{function}.0", 15)
        readings = bench.read()
        assert (readings.faults[ZERO].reason, readings.faults[ZERO].for_certain) == ("GPU is lost", True)
        assert list(readings.samples) == [uuid(1)]
        stub.withdraw(f"{function}.0")
    stub.order("nvmlDeviceGetMemoryInfo.0", 999)
    assert not bench.read().faults[ZERO].for_certain


STATISTICS = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
)
GONE_OR_STALE = {1, 9, 15, 16, 18, 28}
OTHER_ERRORS = sorted({2, 3, 4, 6, 7, 10, 11, 13, 14, 17, 19, 20, 26, 27, 999} - GONE_OR_STALE)


def test_a_statistic_that_cannot_be_read_is_no_fault_of_the_gpu(stub: Stub, bench: Bench) -> None:
    """NVML C and E: a driver that answered UNKNOWN to one of these made the GPU unhealthy."""
    stub.order("processes.0", "42 1\n")
    found = {}
    for function in STATISTICS:
        for code in OTHER_ERRORS:
            stub.order(f"{function}.0", code)
            readings = bench.read()
            found[function, code] = (readings.faults, readings.samples[ZERO].memory_used_bytes)
        stub.withdraw(f"{function}.0")
    assert found == {(function, code): ({}, 512 << 20) for function in STATISTICS for code in OTHER_ERRORS}


def test_one_list_of_processes_that_cannot_be_read_costs_only_its_own(stub: Stub, bench: Bench) -> None:
    stub.order("processes.0", "42 1048576\n")
    stub.order("nvmlDeviceGetGraphicsRunningProcesses_v3.0", 999)
    assert bench.read().samples[ZERO].processes == (GpuProcess(42, 1 << 20),)


def test_a_statistic_that_fails_is_said_once_until_it_can_be_read_again(stub: Stub) -> None:
    nvml = Nvml(NvmlLibrary(path=stub.library))
    nvml.open()
    device = Device.at(nvml, 0)

    def said() -> list[str]:
        with capture_logs() as logs:
            assert [device.utilization() for _ in range(3)] == [0, 0, 0]
        return [entry["error"] for entry in logs if entry["event"] == "gpu_statistic_failed"]

    for _ in range(2):
        stub.order("nvmlDeviceGetUtilizationRates.0", 999)
        (error,) = said()
        assert error.startswith("nvmlDeviceGetUtilizationRates failed for GPU 0: NVML says 'Unknown Error' (999)")
        stub.withdraw("nvmlDeviceGetUtilizationRates.0")
        assert device.utilization() == 7
