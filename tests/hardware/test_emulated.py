"""Discovery on the emulated driver: what NVML reports is what the profile says."""

from pathlib import Path

import pytest

from deviceplugin.hardware.discovery import Discovery, discover
from deviceplugin.hardware.nvml import Nvml
from deviceplugin.hardware.nvml_library import NvmlLibrary
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.topology import Level, Link
from deviceplugin.simulate.gpu_profile import parse_profile
from tests.hardware import profiles
from tests.hardware.emulator import SHIPPED, Emulator
from tests.hardware.profiles import Profile


def discovered(emulated: Emulator, profile: Profile | Path) -> Discovery:
    emulated.describe(profile)
    nvml = Nvml(NvmlLibrary(path=emulated.library))
    nvml.open()
    return discover(nvml, sys_root=emulated.profile.parent / "sys")


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(profiles.profile(), id="no GPU"),
        pytest.param(profiles.profile({"model": "t4"}), id="one GPU"),
        pytest.param(profiles.pair(), id="pair"),
        pytest.param(profiles.mixed(), id="mixed"),
        pytest.param(profiles.switched(), id="switched"),
        pytest.param(profiles.many(40), id="40 GPUs"),
        pytest.param(profiles.many(64), id="64 GPUs"),
        *(pytest.param(path, id=path.stem) for path in SHIPPED),
    ],
)
def test_what_nvml_tells_is_what_the_profile_says(emulated: Emulator, profile: Profile | Path) -> None:
    found = discovered(emulated, profile)
    expected = parse_profile(emulated.profile.read_bytes()).inventory
    assert found.gpus == expected.gpus
    assert found.topology == expected.topology
    assert found.driver == expected.driver
    assert (found.failed, found.notes) == ({}, ())


def test_mixed_models_and_sizes_are_distinguished(emulated: Emulator) -> None:
    found = discovered(emulated, profiles.mixed())
    assert [(gpu.minor, gpu.model, gpu.blocks, gpu.numa) for gpu in found.gpus] == [
        (0, "Tesla T4", 58, 0),
        (1, "Tesla T4", 61, 0),
        (7, "NVIDIA A10", 89, 0),
        (3, "NVIDIA A10", 89, 1),
        (4, "NVIDIA A100-SXM4-80GB", 317, 1),
        (2, "NVIDIA A100-SXM4-80GB", 317, None),
    ]
    assert [gpu.compute_mode for gpu in found.gpus[2:4]] == [ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED]
    assert [gpu.mig_enabled for gpu in found.gpus] == [False] * 4 + [True, False]
    assert found.gpus[4].bus_id == "0000000A:3B:00.0"
    assert found.gpus[2].device_path == "/dev/nvidia7"
    assert found.topology.link(4, 2) == Link(Level.PIX, nvlinks=4)
    assert found.topology.link(0, 7).nearest is Level.NODE
    assert found.topology.link(0, 3).nearest is Level.SYS


def test_every_gpu_on_switches_is_linked_to_every_other(emulated: Emulator) -> None:
    found = discovered(emulated, profiles.switched())
    assert len(found.topology.links) == 28
    assert {link.nvlinks for link in found.topology.links.values()} == {12}


def test_the_kernels_numa_node_wins_over_nvmls(emulated: Emulator) -> None:
    device = emulated.profile.parent / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "numa_node").write_text("5\n")
    assert [gpu.numa for gpu in discovered(emulated, profiles.many(2)).gpus] == [5, 1]
