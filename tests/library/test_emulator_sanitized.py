"""A tour through every entry point and every command, with each memory error and each undefined behaviour fatal."""

import re
from typing import Any

import pytest

from tests.library.machine import LIBRARY, Machine

pytestmark = pytest.mark.thorough

_TAKES_A_DEVICE_ALONE = re.compile(
    r"^nvmlReturn_t (nvmlDeviceGet\w+)\(nvmlDevice_t device, (?:[\w ]+) \*\w+\);", re.MULTILINE
)
_TOUR: list[tuple[Any, ...]] = [
    ("nvmlDeviceGetMemoryInfo", (2 << 24) | 40),
    ("nvmlDeviceGetProcessUtilization", 0),
    ("nvmlDeviceGetProcessesUtilizationInfo", 0),
    ("nvmlDeviceGetSamples", 0, 0),
    ("nvmlDeviceGetSamples", 1, 0),
    ("nvmlDeviceGetFieldValues", list(range(1, 275))),
    ("nvmlDeviceGetMemoryAffinity", 4, 0),
    ("nvmlDeviceGetCpuAffinity", 64),
    ("nvmlDeviceGetCpuAffinityWithinScope", 1, 1),
    ("nvmlDeviceGetTemperature", 0),
    ("nvmlDeviceGetClockInfo", 1),
    ("nvmlDeviceGetMaxClockInfo", 2),
    ("nvmlDeviceGetTotalEccErrors", 0, 0),
    ("nvmlDeviceGetRemappedRows",),
    ("nvmlDeviceGetNvLinkState", 0),
    ("nvmlDeviceGetNvLinkVersion", 0),
    ("nvmlDeviceGetNvLinkRemotePciInfo", 0),
    ("nvmlDeviceGetNvLinkRemoteDeviceType", 0),
    ("nvmlDeviceSetComputeMode", 0),
    ("nvmlDeviceSetPersistenceMode", 1),
    ("nvmlDeviceSetMigMode", 0),
    ("nvmlDeviceSetEccMode", 1),
    ("nvmlDeviceSetPowerManagementLimit", 300_000),
    ("nvmlDeviceClearEccErrorCounts", 0),
]
_COMMANDS = [
    "xid 0 48",
    "util 0 50 20",
    "util 0 auto",
    "process add 0 81 100 10 5 --name x --type mps",
    "process add 0 1 100 10 5 --live",
    "process remove 0 81",
    "memory 0 5",
    "ecc 0 corrected 2",
    "temperature 0 50",
    "power 0 99",
    "mig 0 on",
    "mig 0 off",
    "compute-mode 0 exclusive_process",
    "lose 3",
    "show",
    "topo",
    "recover 3",
    "remove 3",
    "recover 3",
    "clients",
    "reset 3",
    "driver unload",
    "driver load",
    "init",
]


def _fatal_or(code: int) -> None:
    """Any error of NVML's own is fine here: a finding ends the process, and the next call would notice."""
    assert 0 <= code <= 999


def test_every_call_on_every_gpu(sanitized_machine: Machine) -> None:
    sanitized_machine.describe("hgx-a100")
    sanitized_machine.command("process", "add", 0, 91, 100, 10, 5)
    nvml = sanitized_machine.nvml()
    devices = nvml.devices()
    alone = _TAKES_A_DEVICE_ALONE.findall((LIBRARY / "include/nvml_functions.h").read_text())
    assert len(alone) > 20
    for device in (devices[0], devices[7]):
        for name in alone:
            _fatal_or(nvml.raw(name, device, {"room": 4096})[0])
        for name, *arguments in _TOUR:
            _fatal_or(nvml.error(name, device, *arguments))
    for other in devices[1:]:
        _fatal_or(nvml.error("nvmlDeviceGetTopologyCommonAncestor", devices[0], other))
        _fatal_or(nvml.error("nvmlDeviceGetP2PStatus", devices[0], other, 2))
    events = nvml.call("nvmlEventSetCreate")
    nvml.call("nvmlDeviceRegisterEvents", devices[0], 8, events)
    sanitized_machine.command("xid", 0, 48)
    assert nvml.call("nvmlEventSetWait_v2", events, 1000)["eventData"] == 48
    nvml.call("nvmlEventSetFree", events)
    nvml.call("nvmlShutdown")
    assert nvml.process.stdin is not None
    nvml.process.stdin.close()
    assert nvml.process.wait(timeout=20) == 0, sanitized_machine.errors.read_text()
    assert "ERROR" not in sanitized_machine.errors.read_text()


def test_every_command(sanitized_machine: Machine) -> None:
    sanitized_machine.describe("hgx-a100")
    for words in _COMMANDS:
        sanitized_machine.command(*words.split())
