"""The emulated NVML answers about GPUs and their processes as the real one does, error codes included."""

import os
import re
import subprocess
import time

import pytest

from sandbox.emulator_profile import compile_profile
from tests.library.codes import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    MIB,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    UNKNOWN,
    VERSION_MISMATCH,
)
from tests.library.machine import LIBRARY, PROFILES, Machine, shipped
from tests.library.nvml_client import Handle, Nvml

pytestmark = pytest.mark.thorough

_EVERY = sorted(path.stem for path in PROFILES.glob("*.json"))
_COMPILED = compile_profile((PROFILES / "laptop.json").read_bytes())
_CUT = _COMPILED[:-1]
_TAKES_A_DEVICE_ALONE = re.compile(
    r"^nvmlReturn_t (nvmlDeviceGet\w+)\(nvmlDevice_t device, (?:[\w ]+) \*\w+\);", re.MULTILINE
)
_OF_ANOTHER_LAYOUT = _COMPILED[:8] + bytes([_COMPILED[8] ^ 8]) + _COMPILED[9:]  # the size of its header


def test_before_init_every_call_says_uninitialized(machine: Machine) -> None:
    nvml = machine.nvml("laptop")
    assert nvml.error("nvmlDeviceGetCount") == UNINITIALIZED
    assert nvml.error("nvmlSystemGetDriverVersion") == UNINITIALIZED
    assert nvml.error("nvmlEventSetCreate") == UNINITIALIZED
    assert nvml.raw("nvmlDeviceGetHandleByIndex_v2", 0, None) == (UNINITIALIZED, [])


def test_init_is_counted_and_the_last_shutdown_ends_it(machine: Machine) -> None:
    nvml = machine.nvml("laptop")
    nvml.call("nvmlInit")
    nvml.call("nvmlInit")
    nvml.call("nvmlShutdown")
    assert nvml.call("nvmlDeviceGetCount") == 1
    nvml.call("nvmlShutdown")
    assert nvml.error("nvmlDeviceGetCount") == UNINITIALIZED
    nvml.call("nvmlShutdown")  # Debian's drivers 470 to 555 mind no end too many (tests/library/test_debian_drivers.py)
    nvml.call("nvmlInit")
    assert nvml.call("nvmlDeviceGetCount") == 1


@pytest.mark.parametrize("name", _EVERY)
def test_each_shipped_profile_comes_out_as_it_was_written(machine: Machine, name: str) -> None:
    profile = shipped(name)
    nvml = machine.nvml(profile)
    devices = nvml.devices()
    assert len(devices) == len(profile["gpus"])
    for index, (device, gpu) in enumerate(zip(devices, profile["gpus"], strict=True)):
        model = profile["models"][gpu["model"]]
        assert nvml.call("nvmlDeviceGetIndex", device) == index
        assert nvml.call("nvmlDeviceGetMinorNumber", device) == gpu["minor"]
        assert nvml.call("nvmlDeviceGetName", device) == model["name"]
        assert nvml.call("nvmlDeviceGetMemoryInfo", device)["total"] == model["memory_mib"] * MIB
        assert nvml.call("nvmlDeviceGetPciInfo", device)["busId"] == gpu["bus_id"]
        capability = ".".join(str(part) for part in nvml.call("nvmlDeviceGetCudaComputeCapability", device))
        assert capability == model["compute_capability"]
    assert len({nvml.call("nvmlDeviceGetUUID", device) for device in devices}) == len(devices)


def test_a_gpu_is_found_by_each_of_its_names(machine: Machine) -> None:
    nvml = machine.nvml("pcie-mixed")
    device = nvml.devices()[4]
    assert nvml.call("nvmlDeviceGetHandleByUUID", nvml.call("nvmlDeviceGetUUID", device)) == device
    for bus_id in ("00000000:99:00.0", "0000:99:00.0", "0:99:0.0", "99:00.0"):
        assert nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id) == device
    for name, key in (("ByUUID", "GPU-0"), ("ByPciBusId", "0000:98:00.0"), ("ByPciBusId", "x")):
        assert nvml.error(f"nvmlDeviceGetHandle{name}", key) == NOT_FOUND


def test_wrong_arguments_are_refused_and_touch_nothing(machine: Machine) -> None:
    nvml, device = machine.first_gpu("laptop")
    assert nvml.error("nvmlDeviceGetHandleByIndex", 1) == INVALID_ARGUMENT
    assert nvml.raw("nvmlDeviceGetCount_v2", None) == (INVALID_ARGUMENT, [])
    assert nvml.raw("nvmlDeviceGetMinorNumber", device, None) == (INVALID_ARGUMENT, [])
    for wrong in (None, 1, 0x7FFFFFFF):
        assert nvml.raw("nvmlDeviceGetMinorNumber", wrong, {"out": 77}) == (INVALID_ARGUMENT, [77])
    assert nvml.raw("nvmlDeviceGetComputeMode", device, {"out": 77}) == (SUCCESS, [0])
    assert nvml.raw("nvmlInitWithFlags", 64) == (INVALID_ARGUMENT, [])


def test_a_text_that_does_not_fit_is_not_handed_out(machine: Machine) -> None:
    nvml, device = machine.first_gpu("laptop")
    assert nvml.raw("nvmlDeviceGetName", device, {"out": 77}, 4) == (INSUFFICIENT_SIZE, [77])
    assert nvml.raw("nvmlSystemGetDriverVersion", {"out": 77}, 2) == (INSUFFICIENT_SIZE, [77])
    assert nvml.raw("nvmlDeviceGetName", device, None, 64) == (INVALID_ARGUMENT, [])


def test_versions_are_the_profiles(machine: Machine) -> None:
    nvml = machine.nvml("hgx-a100")
    nvml.call("nvmlInit")
    assert nvml.call("nvmlSystemGetDriverVersion") == "550.144.03"
    assert nvml.call("nvmlSystemGetCudaDriverVersion") == nvml.call("nvmlSystemGetCudaDriverVersion_v2") == 12040


def test_both_memory_views_add_up_and_agree(machine: Machine) -> None:
    nvml = machine.nvml("pcie-mixed")
    device = nvml.devices()[2]
    first = nvml.call("nvmlDeviceGetMemoryInfo", device)
    second = nvml.call("nvmlDeviceGetMemoryInfo", device, (2 << 24) | 40)
    assert second["used"] == 18432 * MIB
    assert second["reserved"] == 597 * MIB
    assert first["used"] == second["used"] + second["reserved"]
    assert first["total"] == first["used"] + first["free"] == second["used"] + second["reserved"] + second["free"]
    assert nvml.error("nvmlDeviceGetMemoryInfo", device, (3 << 24) | 40) == VERSION_MISMATCH


def test_memory_never_runs_below_nothing(machine: Machine) -> None:
    nvml, device = machine.first_gpu("laptop")
    for pid in range(3):
        machine.command("process", "add", 0, 100 + pid, 6000)
    memory = nvml.call("nvmlDeviceGetMemoryInfo", device)
    assert (memory["free"], memory["used"]) == (0, memory["total"])


def test_what_a_gpu_does_not_have_is_not_supported(machine: Machine) -> None:
    nvml, device = machine.first_gpu("laptop")
    for name in (
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetDriverModel",
        "nvmlDeviceGetNumaNodeId",
    ):
        assert nvml.error(name, device) == NOT_SUPPORTED, name
    assert nvml.error("nvmlDeviceGetMemoryAffinity", device, 1, 0) == NOT_SUPPORTED
    assert nvml.error("nvmlDeviceGetNvLinkState", device, 0) == NOT_SUPPORTED


def test_mig_mode_hides_what_belongs_to_instances(machine: Machine) -> None:
    nvml = machine.nvml("hgx-a100")
    device = nvml.devices()[3]
    assert nvml.call("nvmlDeviceGetMigMode", device) == [0, 0]
    machine.command("mig", 3, "on")
    assert nvml.call("nvmlDeviceGetMigMode", device) == [1, 1]
    assert nvml.error("nvmlDeviceGetUtilizationRates", device) == NOT_SUPPORTED
    assert nvml.error("nvmlDeviceGetProcessUtilization", device, 0) == NOT_SUPPORTED
    assert nvml.call("nvmlDeviceGetMemoryInfo", device)["total"] == 81920 * MIB


def test_a_change_is_seen_at_once_by_every_process(machine: Machine) -> None:
    machine.describe("hgx-a100")
    first, second = machine.nvml(), machine.nvml()
    mine, other = first.devices()[1], second.devices()[1]
    machine.command("util", 1, 42, 17)
    assert first.call("nvmlDeviceGetUtilizationRates", mine) == {"gpu": 42, "memory": 17}
    assert second.call("nvmlDeviceGetUtilizationRates", other) == {"gpu": 42, "memory": 17}
    first.call("nvmlDeviceSetComputeMode", mine, 3)
    assert second.call("nvmlDeviceGetComputeMode", other) == 3
    assert machine.show()["gpus"][1]["compute_mode"] == "exclusive_process"


def test_power_and_temperature_follow_the_load_unless_set(machine: Machine) -> None:
    nvml, device = machine.first_gpu("dgx-h100")
    idle: tuple[int, int] = _heat(nvml, device)
    machine.command("util", 0, 100, 50)
    assert _heat(nvml, device) > idle
    assert (
        nvml.call("nvmlDeviceGetPowerUsage", device) == nvml.call("nvmlDeviceGetEnforcedPowerLimit", device) == 700000
    )
    machine.command("temperature", 0, 91)
    machine.command("power", 0, 123)
    assert _heat(nvml, device) == (123000, 91)
    machine.command("temperature", 0, "auto")
    machine.command("power", 0, "auto")
    machine.command("util", 0, "auto")
    assert _heat(nvml, device) == idle


def _heat(nvml: Nvml, device: Handle) -> tuple[int, int]:
    return nvml.call("nvmlDeviceGetPowerUsage", device), nvml.call("nvmlDeviceGetTemperature", device, 0)


def test_the_energy_counter_never_runs_backwards(machine: Machine) -> None:
    nvml, device = machine.first_gpu("dgx-h100")
    seen = [0]
    for percent in (100, 0, 50, 0):
        machine.command("util", 0, percent, 0)
        seen.append(nvml.call("nvmlDeviceGetTotalEnergyConsumption", device))
    assert seen == sorted(seen)


def test_ecc_counters_count_and_are_cleared(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    machine.command("ecc", 0, "uncorrected", 3)
    assert [nvml.call("nvmlDeviceGetTotalEccErrors", device, 1, kind) for kind in (0, 1)] == [3, 3]
    nvml.call("nvmlDeviceClearEccErrorCounts", device, 0)
    assert [nvml.call("nvmlDeviceGetTotalEccErrors", device, 1, kind) for kind in (0, 1)] == [0, 3]


def test_a_lost_gpu_is_counted_but_out_of_reach_until_it_is_back(machine: Machine) -> None:
    nvml = machine.nvml("hgx-a100")
    devices = nvml.devices()
    machine.command("lose", 2)
    for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"):
        assert nvml.error(name, devices[2]) == GPU_IS_LOST
        assert nvml.error(name, devices[1]) == SUCCESS
    assert nvml.error("nvmlDeviceGetTopologyCommonAncestor", devices[0], devices[2]) == GPU_IS_LOST
    later = machine.nvml()
    later.call("nvmlInit")
    assert later.call("nvmlDeviceGetCount") == 8
    assert later.error("nvmlDeviceGetHandleByIndex", 2) == GPU_IS_LOST
    machine.command("recover", 2)
    assert nvml.error("nvmlDeviceGetUUID", devices[2]) == SUCCESS
    assert later.error("nvmlDeviceGetHandleByIndex", 2) == SUCCESS


def test_a_removed_gpu_is_gone_for_those_who_come_later(machine: Machine) -> None:
    nvml = machine.nvml("hgx-a100")
    devices = nvml.devices()
    last = nvml.call("nvmlDeviceGetUUID", devices[7])
    machine.command("remove", 2)
    assert nvml.call("nvmlDeviceGetCount") == 8
    assert nvml.error("nvmlDeviceGetUUID", devices[2]) == GPU_IS_LOST
    later = machine.nvml()
    assert len(found := later.devices()) == 7
    assert later.call("nvmlDeviceGetUUID", found[6]) == last
    assert later.call("nvmlDeviceGetMinorNumber", found[6]) == 7
    assert later.call("nvmlDeviceGetIndex", found[6]) == 6


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, DRIVER_NOT_LOADED, "cannot be opened"),
        (b'{"format": 1}', UNKNOWN, "not a compiled profile"),
        (b"", UNKNOWN, "not a compiled profile"),
        (_CUT, UNKNOWN, "not a compiled profile"),
        (_OF_ANOTHER_LAYOUT, UNKNOWN, "not a compiled profile"),
    ],
)
def test_without_a_good_profile_init_fails_and_says_why_once(
    machine: Machine, content: bytes | None, code: int, words: str
) -> None:
    if content is not None:
        machine.profile.write_bytes(content)
    nvml = machine.nvml()
    assert nvml.error("nvmlInit") == nvml.error("nvmlInit") == code
    lines = machine.errors.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("vcuda-emulator: ")
    assert words in lines[0]
    machine.describe("laptop")
    assert len(nvml.devices()) == 1


def test_the_driver_can_go_away_and_come_back(machine: Machine) -> None:
    nvml, device = machine.first_gpu("laptop")
    machine.command("driver", "unload")
    assert nvml.error("nvmlDeviceGetUUID", device) == nvml.error("nvmlInit") == DRIVER_NOT_LOADED
    machine.command("driver", "mismatch")
    assert nvml.error("nvmlInit") == 18
    machine.command("driver", "load")
    assert nvml.error("nvmlDeviceGetUUID", device) == UNINITIALIZED
    nvml.call("nvmlInit")
    assert nvml.error("nvmlDeviceGetUUID", device) == SUCCESS


def test_every_question_about_a_gpu_alone_is_answered(machine: Machine) -> None:
    nvml = machine.nvml("hgx-a100")
    names = _TAKES_A_DEVICE_ALONE.findall((LIBRARY / "include/nvml_functions.h").read_text())
    assert len(names) > 20
    for device in nvml.devices()[::7]:
        codes = {name: nvml.raw(name, device, {"room": 4096})[0] for name in names}
        assert {name: code for name, code in codes.items() if not SUCCESS <= code <= UNKNOWN} == {}
        assert nvml.error("nvmlDeviceGetFieldValues", device, list(range(1, 275))) == SUCCESS


# ---- processes ----


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
