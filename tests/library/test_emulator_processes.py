"""Processes of an emulated GPU: lists, names, utilisation samples, and how a live one leaves."""

import os
import subprocess
import time

import pytest

from tests.library.codes import INSUFFICIENT_SIZE, INVALID_ARGUMENT, MIB, NOT_FOUND, SUCCESS
from tests.library.machine import Machine, shipped

pytestmark = pytest.mark.thorough

_KINDS = ("Compute", "Graphics", "MPSCompute")


def test_each_kind_of_process_has_its_own_list(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    machine.command("process", "add", 0, 11, 512)
    machine.command("process", "add", 0, 12, 256, "--type", "graphics")
    machine.command("process", "add", 0, 13, 128, "--type", "mps")
    listed = {kind: nvml.call(f"nvmlDeviceGet{kind}RunningProcesses", device) for kind in _KINDS}
    found = {kind: [(one["pid"], one["usedGpuMemory"] // MIB) for one in listed[kind]] for kind in _KINDS}
    assert found == {"Compute": [(11, 512)], "Graphics": [(12, 256)], "MPSCompute": [(13, 128)]}
    assert listed["Compute"][0]["gpuInstanceId"] == 0xFFFFFFFF
    machine.command("process", "remove", 0, 11)
    assert nvml.call("nvmlDeviceGetComputeRunningProcesses", device) == []


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_a_list_that_does_not_fit_says_how_long_it_is(machine: Machine, version: str) -> None:
    nvml, device = machine.first_gpu("laptop")
    name = f"nvmlDeviceGetComputeRunningProcesses{version}"
    assert nvml.raw(name, device, {"out": 0}, None) == (SUCCESS, [0])
    for pid in (21, 22, 23):
        machine.command("process", "add", 0, pid, 1)
    assert nvml.raw(name, device, {"out": 0}, None) == (INSUFFICIENT_SIZE, [3])
    assert nvml.raw(name, device, {"out": 5}, None) == (INVALID_ARGUMENT, [5])
    assert nvml.raw(name, device, None, None) == (INVALID_ARGUMENT, [])


def test_a_process_is_named_by_the_profile_or_by_the_kernel(machine: Machine) -> None:
    nvml = machine.nvml("pcie-mixed")
    nvml.call("nvmlInit")
    assert nvml.call("nvmlSystemGetProcessName", 31007) == "/opt/serving/bin/python3"
    assert "python" in nvml.call("nvmlSystemGetProcessName", os.getpid())
    assert nvml.error("nvmlSystemGetProcessName", 4194304) == NOT_FOUND


def test_adding_a_process_again_changes_it(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    machine.command("process", "add", 0, 31, 100, 10)
    machine.command("process", "add", 0, 31, 200, 30)
    assert [one["usedGpuMemory"] for one in nvml.call("nvmlDeviceGetComputeRunningProcesses", device)] == [200 * MIB]
    assert nvml.call("nvmlDeviceGetUtilizationRates", device)["gpu"] == 30


def test_utilisation_adds_up_and_ends_at_a_hundred(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    assert nvml.call("nvmlDeviceGetUtilizationRates", device) == {"gpu": 0, "memory": 0}
    machine.command("process", "add", 0, 41, 100, 60, 20)
    machine.command("process", "add", 0, 42, 100, 70, 5)
    assert nvml.call("nvmlDeviceGetUtilizationRates", device) == {"gpu": 100, "memory": 25}


def test_utilisation_samples_are_new_once(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    machine.command("process", "add", 0, 51, 100)
    assert nvml.error("nvmlDeviceGetProcessUtilization", device, 0) == NOT_FOUND
    machine.command("process", "add", 0, 52, 100, 35, 12)
    samples = nvml.call("nvmlDeviceGetProcessUtilization", device, 0)
    assert [(one["pid"], one["smUtil"], one["memUtil"]) for one in samples] == [(52, 35, 12)]
    newest = samples[0]["timeStamp"]
    assert abs(newest - time.time_ns() // 1000) < 5_000_000
    deadline = time.monotonic() + 5
    while nvml.error("nvmlDeviceGetProcessUtilization", device, newest) == NOT_FOUND:
        assert time.monotonic() < deadline, "no new sample came"
        time.sleep(0.01)
    assert nvml.call("nvmlDeviceGetProcessUtilization", device, newest)[0]["timeStamp"] > newest
    assert nvml.error("nvmlDeviceGetProcessUtilization", device, newest + 60_000_000) == NOT_FOUND
    assert nvml.call("nvmlDeviceGetSamples", device, 1, newest)[1][-1]["sampleValue"]["uiVal"] == 35


def test_a_live_process_leaves_when_it_ends(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    with subprocess.Popen(["sleep", "60"]) as live:
        machine.command("process", "add", 0, live.pid, 300, 20, "--live")
        machine.command("process", "add", 0, 61, 100)
        assert len(nvml.call("nvmlDeviceGetComputeRunningProcesses", device)) == 2
        live.kill()
    assert [one["pid"] for one in nvml.call("nvmlDeviceGetComputeRunningProcesses", device)] == [61]
    assert nvml.call("nvmlDeviceGetMemoryInfo", device, (2 << 24) | 40)["used"] == 100 * MIB
    assert nvml.call("nvmlDeviceGetUtilizationRates", device)["gpu"] == 0


def test_a_process_that_is_not_there_cannot_be_live(machine: Machine) -> None:
    machine.describe("hgx-a100")
    done = machine.run("process", "add", 0, 4194304, 1, "--live")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert machine.show()["gpus"][0]["processes"] == []


def test_a_full_gpu_takes_no_other_process(machine: Machine) -> None:
    everybody = [{"gpu": 0, "pid": pid, "memory_mib": 1} for pid in range(1, 257)]
    nvml, device = machine.first_gpu(shipped("hgx-a100") | {"processes": everybody})
    assert len(nvml.call("nvmlDeviceGetComputeRunningProcesses", device)) == 256
    done = machine.run("process", "add", 0, 9999, 1)
    assert done.returncode == 1
    assert "256 processes" in done.stderr
