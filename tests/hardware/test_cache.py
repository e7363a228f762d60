"""The inventory on disk: what was written comes back, and whatever else the file holds is no cache."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.hardware.health import QuietPeriod
from deviceplugin.hardware.pci import kernel_name
from deviceplugin.hardware.state import InventoryCache, Remembered
from deviceplugin.model.gpu import GpuUuid, Health, Inventory
from deviceplugin.structs import replace
from tests.examples import examples
from tests.hardware.makers import inventory
from tests.hardware.test_pci import information

ILL = Health(healthy=False, reason="XID 79")
FULL = Remembered(
    inventory(3, health={GpuUuid("GPU-1"): ILL}), {GpuUuid("GPU-1"): QuietPeriod(reason="XID 79", until=4711.5)}
)


@pytest.fixture
def proc(short_tmp: Path) -> Path:
    """A /proc with a boot id and a loaded driver."""
    boot = short_tmp / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("5e6f\n")
    driver = short_tmp / "proc/driver/nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC 12\n")
    return short_tmp / "proc"


@pytest.fixture
def cache(short_tmp: Path, proc: Path) -> InventoryCache:
    return InventoryCache(short_tmp / "state/inventory.json", proc_root=proc)


def test_what_was_written_comes_back(cache: InventoryCache) -> None:
    for remembered in (
        FULL,
        replace(FULL, nvml_closed=True),
        Remembered(inventory(0), {}),
        Remembered(inventory(64), {}),
    ):
        cache.write(remembered)
        assert cache.read() == remembered


def test_without_a_file_or_a_path_there_is_no_cache(cache: InventoryCache) -> None:
    assert cache.read() is None
    nowhere = InventoryCache(None)
    nowhere.write(FULL)
    assert nowhere.read() is None


def test_a_boot_ends_it(cache: InventoryCache, proc: Path) -> None:
    cache.write(FULL)
    (proc / "sys/kernel/random/boot_id").write_text("another\n")
    assert cache.read() is None


def test_another_driver_ends_it_and_an_unknown_one_does_not(cache: InventoryCache, proc: Path) -> None:
    cache.write(FULL)
    version = proc / "driver/nvidia/version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    assert cache.read() is None
    version.unlink()
    assert cache.read() == FULL


def test_other_minor_numbers_end_it(cache: InventoryCache, proc: Path) -> None:
    """A driver that is loaded again gives numbers in the order in which it finds the GPUs."""
    cache.write(FULL)
    buses = [kernel_name(gpu.bus_id) for gpu in FULL.inventory.gpus]
    for minor, bus_id in enumerate(buses):
        information(proc, bus_id, minor)
    assert cache.read() == FULL
    information(proc, buses[0], 1)
    information(proc, buses[1], 0)
    assert cache.read() is None


def test_a_file_that_says_something_else_is_no_cache(cache: InventoryCache, short_tmp: Path) -> None:
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "another format": lambda file: file.update(format=2),
        "no inventory": lambda file: file.pop("inventory"),
        "half an inventory": lambda file: file.update(inventory="{}"),
        "a GPU twice": lambda file: file.update(inventory=file["inventory"].replace("GPU-2", "GPU-1")),
        "text for a number": lambda file: file["quiet"]["GPU-1"].update(until="soon"),
    }
    cache.write(FULL)
    path = short_tmp / "state/inventory.json"
    whole, found = path.read_text(), {}
    for name, change in changes.items():
        document = json.loads(whole)
        change(document)
        path.write_text(json.dumps(document))
        found[name] = cache.read()
    assert found == dict.fromkeys(changes)


def test_a_file_cut_at_any_byte_is_no_cache(cache: InventoryCache, short_tmp: Path) -> None:
    cache.write(FULL)
    path = short_tmp / "state/inventory.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.read() is None


@examples(suppress=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=200))
def test_noise_is_no_cache(cache: InventoryCache, short_tmp: Path, noise: bytes) -> None:
    path = short_tmp / "state/inventory.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(noise)
    assert cache.read() is None


def test_a_directory_in_its_place_costs_the_cache_and_nothing_else(short_tmp: Path, proc: Path) -> None:
    (short_tmp / "inventory.json").mkdir()
    cache = InventoryCache(short_tmp / "inventory.json", proc_root=proc)
    cache.write(FULL)
    assert cache.read() is None
    assert [path.name for path in short_tmp.iterdir() if path.name.startswith(".")] == []


def test_writing_replaces_the_file_in_one_step(cache: InventoryCache, short_tmp: Path) -> None:
    cache.write(FULL)
    with (short_tmp / "state/inventory.json").open("rb") as reader:
        cache.write(Remembered(inventory(1), {}))
        assert "GPU-2" in json.loads(reader.read())["inventory"]
    found = cache.read()
    assert found is not None
    assert isinstance(found.inventory, Inventory)
    assert len(found.inventory.gpus) == 1
