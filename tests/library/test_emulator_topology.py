"""How emulated GPUs are joined: ancestors, NVLinks, NUMA nodes, and the matrix that nvidia-smi would print."""

import re
from itertools import combinations

import pytest

from tests.library.codes import INVALID_ARGUMENT, NOT_SUPPORTED
from tests.library.machine import PROFILES, Machine, Profile, shipped
from tests.library.nvml_client import Handle, Nvml

pytestmark = pytest.mark.thorough

_LEVELS = {"internal": 0, "single": 10, "multiple": 20, "hostbridge": 30, "node": 40, "system": 50}
_NAMES = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def _level(profile: Profile, one: int, other: int) -> int:
    """The closest level of all groups that hold both."""
    topology = profile.get("topology", {})
    levels = [group["level"] for group in topology.get("groups", []) if {one, other} <= set(group["gpus"])]
    return min(_LEVELS[level] for level in [*levels, topology.get("default", "system")])


def _links(profile: Profile, one: int, other: int) -> int:
    joined = [entry["links"] for entry in profile.get("nvlink", []) if {one, other} <= set(entry["gpus"])]
    return sum(joined)


def _count_links(nvml: Nvml, one: Handle, other: Handle) -> int:
    """As a user of NVML counts them: direct ones by the peer's bus id, else through switches."""
    target = nvml.call("nvmlDeviceGetPciInfo", other)["busId"]
    count = switched = 0
    for link in range(18):
        if nvml.error("nvmlDeviceGetNvLinkState", one, link) or not nvml.call("nvmlDeviceGetNvLinkState", one, link):
            continue
        direct = nvml.call("nvmlDeviceGetNvLinkRemoteDeviceType", one, link) == 0
        switched += not direct
        count += direct and nvml.call("nvmlDeviceGetNvLinkRemotePciInfo", one, link)["busId"] == target
    return count + switched


@pytest.mark.parametrize("name", ["laptop", "hgx-a100", "pcie-mixed", "gpus-16"])
def test_pairs_are_joined_as_the_profile_says(machine: Machine, name: str) -> None:
    profile = shipped(name)
    nvml = machine.nvml(profile)
    devices = nvml.devices()
    for one, other in combinations(range(len(devices)), 2):
        pair = devices[one], devices[other]
        assert nvml.call("nvmlDeviceGetTopologyCommonAncestor", *pair) == _level(profile, one, other)
        assert nvml.call("nvmlDeviceGetTopologyCommonAncestor", *reversed(pair)) == _level(profile, one, other)
    one, other = (len(devices) - 2, len(devices) - 1) if len(devices) > 1 else (0, 0)
    if one != other:
        assert _count_links(nvml, devices[one], devices[other]) == _links(profile, one, other)
        status = nvml.call("nvmlDeviceGetP2PStatus", devices[one], devices[other], 2)
        assert (status == 0) == (_links(profile, one, other) > 0)


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.json")))
def test_the_matrix_is_that_of_nvidia_smi(machine: Machine, name: str) -> None:
    profile = shipped(name)
    machine.describe(profile)
    lines = machine.command("topo").splitlines()
    count = len(profile["gpus"])
    assert lines[0].split("\t")[1:] == [
        *(f"GPU{i}" for i in range(count)),
        "CPU Affinity",
        "NUMA Affinity",
        "GPU NUMA ID",
    ]
    for row in range(count):
        cells = lines[1 + row].split("\t")
        assert cells[0] == f"GPU{row}"
        for column in range(count):
            links = _links(profile, row, column)
            expected = f"NV{links}" if links else _NAMES[_level(profile, row, column)]
            assert cells[1 + column] == (" X " if row == column else expected)
        nodes = {node["numa"]: node["list"] for node in profile.get("cpus", [])}
        numa = profile["gpus"][row].get("numa", -1)
        assert cells[1 + count] == nodes.get(numa, "N/A")
        assert cells[2 + count] == ("N/A" if numa < 0 else str(numa))
    assert re.search(r"^  SYS  = ", "\n".join(lines), flags=re.MULTILINE)


def test_affinity_follows_the_numa_node(machine: Machine) -> None:
    nvml = machine.nvml("pcie-mixed")
    near, far = (nvml.devices()[i] for i in (0, 7))
    assert nvml.call("nvmlDeviceGetMemoryAffinity", near, 1, 0) == [1]
    assert nvml.call("nvmlDeviceGetMemoryAffinity", far, 2, 0) == [2, 0]
    assert nvml.call("nvmlDeviceGetCpuAffinity", near, 2) == [0xFFFFFFFF, 0xFFFFFFFF]
    assert nvml.call("nvmlDeviceGetCpuAffinity", far, 1) == [0xFFFFFFFF << 32]
    assert nvml.error("nvmlDeviceGetMemoryAffinity", near, 0, 0) == INVALID_ARGUMENT
    assert nvml.error("nvmlDeviceGetMemoryAffinity", near, 1, 7) == INVALID_ARGUMENT


def test_a_link_is_down_where_its_peer_is_lost(machine: Machine) -> None:
    nvml = machine.nvml("pcie-mixed")
    six, seven = nvml.devices()[6:]
    assert nvml.call("nvmlDeviceGetNvLinkState", six, 0) == 1
    assert nvml.call("nvmlDeviceGetNvLinkVersion", six, 0) == 4
    assert nvml.call("nvmlDeviceGetNvLinkState", six, 12) == 0
    assert nvml.error("nvmlDeviceGetNvLinkState", six, 18) == INVALID_ARGUMENT
    machine.command("lose", 7)
    assert nvml.call("nvmlDeviceGetNvLinkState", six, 0) == 0
    assert nvml.error("nvmlDeviceGetNvLinkRemotePciInfo", six, 0) == INVALID_ARGUMENT
    machine.command("recover", 7)
    assert nvml.call("nvmlDeviceGetNvLinkState", seven, 0) == 1


def test_a_machine_without_numa_has_no_affinity(machine: Machine) -> None:
    nvml = machine.nvml("laptop")
    assert nvml.error("nvmlDeviceGetCpuAffinity", nvml.devices()[0], 1) == NOT_SUPPORTED
