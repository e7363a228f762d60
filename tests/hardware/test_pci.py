"""What the kernel says of NVIDIA's PCI devices."""

from pathlib import Path

from deviceplugin.hardware.pci import gpus_of_driver, gpus_on_bus, kernel_name, loaded_version, numa_node


def device(root: Path, name: str, *, vendor: str = "0x10de", kind: str = "0x030200", numa: str | None = None) -> None:
    """A device of a made-up sysfs."""
    directory = root / "bus/pci/devices" / name
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(vendor + "\n")
    (directory / "class").write_text(kind + "\n")
    if numa is not None:
        (directory / "numa_node").write_text(numa + "\n")


def information(proc: Path, bus_id: str, minor: int) -> None:
    """As the driver writes it (NVIDIA's README, "The /proc Interface"; nv-procfs.c of the open modules)."""
    folder = proc / "driver/nvidia/gpus" / bus_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "information").write_text(
        "Model: \t\t Tesla T4\nIRQ:   \t\t 16\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
        f"Bus Type: \t PCIe\nBus Location: \t {bus_id}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
    )


def test_a_bus_id_is_written_as_the_kernel_does() -> None:
    names = {
        "00000000:3B:00.0": "0000:3b:00.0",
        "00000001:00:00.0": "0001:00:00.0",
        "00010000:AF:00.0": "10000:af:00.0",
        "": "",
        "no bus id": "no bus id",
    }
    assert {name: kernel_name(name) for name in names} == names


def test_only_nvidias_display_controllers_are_gpus(short_tmp: Path) -> None:
    device(short_tmp, "0000:01:00.0", kind="0x030000")
    device(short_tmp, "0000:02:00.0", kind="0x030200")
    device(short_tmp, "0000:02:00.1", kind="0x040300")
    device(short_tmp, "0000:03:00.0", vendor="0x1002", kind="0x030000")
    device(short_tmp, "0000:c4:00.0", kind="0x068000")
    assert gpus_on_bus(short_tmp) == {"0000:01:00.0", "0000:02:00.0"}
    assert gpus_on_bus(short_tmp / "no sysfs") == frozenset()


def test_the_driver_serves_what_is_bound_to_it(short_tmp: Path) -> None:
    assert gpus_of_driver(short_tmp) == frozenset()
    for name in ("0000:3b:00.0", "10000:af:00.0", "bind", "module", "new_id"):
        (short_tmp / "bus/pci/drivers/nvidia" / name).mkdir(parents=True)
    assert gpus_of_driver(short_tmp) == {"0000:3b:00.0", "10000:af:00.0"}


def test_the_node_is_that_of_an_nvidia_device_only(short_tmp: Path) -> None:
    nodes = {
        ("0x10de", "1"): 1,
        ("0x10de", "0"): 0,
        ("0x10de", "-1"): None,
        ("0x10de", "x"): None,
        ("0x8086", "1"): None,
    }
    for number, (vendor, numa) in enumerate(nodes):
        device(short_tmp, f"0000:{number:02x}:00.0", vendor=vendor, numa=numa)
    found = [numa_node(short_tmp, f"00000000:{number:02X}:00.0") for number in range(len(nodes) + 1)]
    assert found == [*nodes.values(), None], "the last one is not there"


def test_the_loaded_version_is_read_off_the_modules_own_line(tmp_path: Path) -> None:
    versions = {
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024\nGCC": "550.144.03",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n": "580.65.06",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.45  Release Build\n": "595.45",
        "nothing of the kind\nGCC version: gcc version 12.2.0 580.1": "",
        "": "",
    }
    found = {}
    for text in versions:
        (tmp_path / "version").write_text(text)
        found[text] = loaded_version(tmp_path / "version")
    assert found == versions
    assert loaded_version(tmp_path / "none") == ""
