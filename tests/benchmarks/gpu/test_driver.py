"""The driver that is found: that of the loader, else the emulated one, and never the interposer."""

from pathlib import Path

import pytest

from benchmarks.gpu import build, driver, prepare
from benchmarks.gpu.build import Build
from benchmarks.gpu.driver import Driver, NoDriver


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build.build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def machine(built: Build, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The emulated driver, as if it were this machine's own."""
    found = driver.emulated(built, short_tmp, "for a test")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(found.cuda).parent))
    return found


def test_the_emulated_driver_has_the_gpus_of_its_profile(machine: Driver) -> None:
    assert machine.emulated
    assert [device.name for device in machine.devices] == ["NVIDIA H100 80GB HBM3"] * 2
    assert (machine.version, machine.cuda_version, machine.why) == ("580.95.05", "13.0", "for a test")


def test_what_the_loader_finds_is_the_machines_driver(machine: Driver) -> None:
    found = driver.real()
    assert (found.cuda, found.nvml, found.devices) == (machine.cuda, machine.nvml, machine.devices)
    assert not found.emulated


def test_auto_takes_the_machines_driver_where_there_is_one(machine: Driver, built: Build, short_tmp: Path) -> None:
    assert driver.find("auto", built, short_tmp).why == "found by the dynamic loader"


def test_our_own_library_is_not_taken_for_a_driver(
    machine: Driver, built: Build, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare.lay_out(built, machine, short_tmp)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(short_tmp / "ours"))
    with pytest.raises(NoDriver, match="is vcuda's already"):
        driver.real()


def test_a_driver_without_a_gpu_is_none(machine: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(NoDriver, match="no driver can be used"):
        driver.real()


def test_the_real_one_is_refused_where_there_is_none(
    built: Build, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # so on a machine with a GPU too
    monkeypatch.setenv("LD_LIBRARY_PATH", str(short_tmp))
    with pytest.raises(NoDriver, match="no driver can be used"):
        driver.find("real", built, short_tmp)
