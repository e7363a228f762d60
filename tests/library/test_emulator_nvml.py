"""The emulated NVML answers about GPUs as the real one does, error codes included."""

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
from tests.library.machine import PROFILES, Machine, shipped
from tests.library.nvml_client import Handle, Nvml

pytestmark = pytest.mark.thorough

_EVERY = sorted(path.stem for path in PROFILES.glob("*.json"))
_COMPILED = compile_profile((PROFILES / "laptop.json").read_bytes())
_CUT = _COMPILED[:-1]
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
