"""Discovery on the emulated driver: what NVML reports is what the profile says."""

from pathlib import Path

import pytest

from deviceplugin.hardware.discovery import Discovery, discover
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.topology import Level, Link
from deviceplugin.simulate.gpu_profile import parse_profile
from tests.hardware import nvml_library, profiles
from tests.hardware.emulator import SHIPPED, Emulator
from tests.hardware.profiles import Profile


def discovered(emulated: Emulator, profile: Profile | Path) -> Discovery:
    emulated.describe(profile)
    nvml = Nvml(NvmlLibrary(path=emulated.library))
    nvml.open()
    return discover(nvml, sys_root=emulated.profile.parent / "sys")


def test_what_nvml_tells_is_what_the_profile_says(emulated: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Profile | Path] = {
        "no GPU": profiles.profile(),
        "one GPU": profiles.profile({"model": "t4"}),
        "pair": profiles.pair(),
        "mixed": profiles.mixed(),
        "switched": profiles.switched(),
        "40 GPUs": profiles.many(40),
        "64 GPUs": profiles.many(64),
    }
    for name, profile in {**made, **{path.stem: path for path in SHIPPED}}.items():
        monkeypatch.setenv("VCUDA_EMULATOR_STATE", str(emulated.profile.with_name(name)))
        found = discovered(emulated, profile)
        expected = parse_profile(emulated.profile.read_bytes()).inventory
        assert (found.gpus, found.topology, found.driver) == (expected.gpus, expected.topology, expected.driver), name
        assert (found.failed, found.notes) == ({}, ()), name
        nvml_library.unmap()


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


def test_the_kernels_numa_node_wins_over_nvmls(emulated: Emulator) -> None:
    device = emulated.profile.parent / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "numa_node").write_text("5\n")
    assert [gpu.numa for gpu in discovered(emulated, profiles.many(2)).gpus] == [5, 1]
