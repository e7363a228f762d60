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


def test_what_the_loader_finds_is_the_machines_driver_and_never_our_own_library(
    machine: Driver, built: Build, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = driver.real()
    assert (found.cuda, found.nvml, found.devices) == (machine.cuda, machine.nvml, machine.devices)
    assert not found.emulated
    prepare.lay_out(built, machine, short_tmp)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(short_tmp / "ours"))
    with pytest.raises(NoDriver, match="is vcuda's already"):
        driver.real()
