"""NVIDIA's PCI devices and its loaded kernel module as the kernel shows them, without asking the driver.

In: the root of sysfs, files of /proc. Out: bus ids of GPUs, NUMA nodes, the driver's version. Not here: whether the
driver knows the GPUs. Invariant: nothing here raises; what cannot be read is not known.
"""

import re
from pathlib import Path

_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers; a card's audio and USB functions are others
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")
_MINOR = re.compile(r"^Device Minor:[ \t]*([0-9]{1,4})[ \t]*$", re.MULTILINE)


def kernel_name(bus_id: str) -> str:
    """NVML's `00000000:3B:00.0` as the kernel writes it: `0000:3b:00.0`."""
    domain, _, rest = bus_id.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.lower()}"
    except ValueError:
        return bus_id.lower()


def gpus_on_bus(sys_root: Path) -> frozenset[str]:
    """The kernel's names of every NVIDIA GPU that is plugged in, with or without a driver."""
    try:
        devices = list((sys_root / "bus/pci/devices").iterdir())
    except OSError:
        return frozenset()
    return frozenset(
        device.name
        for device in devices
        if read_text(device / "vendor") == _NVIDIA and read_text(device / "class")[:6] in _DISPLAY_CLASSES
    )


def gpus_of_driver(sys_root: Path) -> frozenset[str]:
    """The kernel's names of the devices that the nvidia driver serves now; one directory listing."""
    try:
        names = [entry.name for entry in (sys_root / "bus/pci/drivers/nvidia").iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name for name in names if name.count(":") == 2)


def numa_node(sys_root: Path, bus_id: str) -> int | None:
    """The node of the GPU's slot; a device of another vendor at this place is not the GPU that NVML means."""
    device = sys_root / "bus/pci/devices" / kernel_name(bus_id)
    if read_text(device / "vendor") != _NVIDIA:
        return None
    try:
        node = int(read_text(device / "numa_node"))
    except ValueError:
        return None
    return node if node >= 0 else None


def pcie_root(sys_root: Path, bus_id: str) -> str:
    """The root complex of the GPU's slot, as in `pci0000:00`; empty if it is not known."""
    try:
        parts = (sys_root / "bus/pci/devices" / kernel_name(bus_id)).resolve(strict=True).parts
    except OSError:
        return ""
    return next((part for part in parts if part.startswith("pci") and ":" in part), "")


def loaded_version(file: Path) -> str:
    """Of the kernel module, from what /proc/driver/nvidia/version says in its first line; empty if it is not there."""
    found = _VERSION.search(read_text(file).partition("\n")[0])
    return found[0] if found else ""


def minor_now(proc_root: Path, bus_id: str) -> int | None:
    """N of /dev/nvidiaN, from the driver's /proc/driver/nvidia/gpus/BUS/information; None where it does not say."""
    found = _MINOR.search(read_text(proc_root / "driver/nvidia/gpus" / kernel_name(bus_id) / "information"))
    return int(found[1]) if found else None


def read_text(path: Path) -> str:
    """A file of the kernel, stripped; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
