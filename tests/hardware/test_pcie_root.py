"""The root complex of a GPU's slot, as sysfs links it."""

from pathlib import Path

from deviceplugin.hardware.pci import pcie_root


def test_the_root_is_in_the_path_of_the_device(tmp_path: Path) -> None:
    device = tmp_path / "devices/pci0000:16/0000:16:01.0/0000:3b:00.0"
    device.mkdir(parents=True)
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / "0000:3b:00.0").symlink_to(device)
    assert pcie_root(tmp_path, "00000000:3B:00.0") == "pci0000:16"
    assert pcie_root(tmp_path, "00000000:3C:00.0") == ""
    (links / "0000:3c:00.0").mkdir()
    assert pcie_root(tmp_path, "00000000:3C:00.0") == ""
