"""The GPUs on the PCI bus and the driver's kernel modules, as the kernel shows them; modules are loaded where missing.

In: roots of sysfs, /proc and /dev, the tools that load modules. Out: bus ids of GPUs, NUMA nodes, the driver's version;
which device nodes are missing, and one sentence about what was done, None if nothing was. Not here: whether the driver
knows the GPUs and answers (`nvml`). Invariants: to read never raises, and what cannot be read is not known; without an
NVIDIA GPU on the PCI bus, or with the nodes of both modules in place, nothing is run. Never a shell, always a time
limit.

After a boot NVML makes the nodes of the nvidia module, and nobody that of nvidia-uvm before a program on the node uses
CUDA, which no container can do for itself. nvidia-modprobe makes it; modprobe only loads the module.
"""

import asyncio
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

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
    """N of /dev/nvidiaN, from the driver's /proc/driver/nvidia/gpus/BUS/information; None if it does not say."""
    found = _MINOR.search(read_text(proc_root / "driver/nvidia/gpus" / kernel_name(bus_id) / "information"))
    return int(found[1]) if found else None


def read_text(path: Path) -> str:
    """A file of the kernel, stripped; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


_CONTROL, _UVM = "nvidiactl", "nvidia-uvm"
_CONTROL_MINOR = 255
_LAST_WAIT_S = 1.0


class ModuleTools(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the tools; `path` replaces PATH, for an agent whose node's tools are mounted elsewhere."""

    path: str | None = None
    budget_s: float = 20.0


class ModuleOutcome(msgspec.Struct, frozen=True):
    """`loaded`: they are there as far as the tools say; a sentence for the log."""

    loaded: bool
    sentence: str


def missing_nodes(device_root: Path, minors: Iterable[int]) -> dict[int, str]:
    """By minor number: why no container can use the GPU for want of a device node, as a phrase; empty if all are there.

    It is asked each second: one stat for each node, and paths as text.
    """
    shared = _missing(device_root, {_CONTROL: f"-c {_CONTROL_MINOR}", _UVM: "-u -c 0"})
    return {minor: _missing(device_root, {f"nvidia{minor}": f"-c {minor}"}) or shared for minor in minors}


def _missing(device_root: Path, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        if not os.path.exists(f"{device_root}/{name}"):  # noqa: PTH110 - a Path costs ten times the stat
            return f"/dev/{name} is missing; run `nvidia-modprobe {word}` on the node"
    return ""


async def load_modules(
    tools: ModuleTools, *, device_root: Path, sys_root: Path, proc_root: Path = Path("/proc")
) -> ModuleOutcome | None:
    """Safe to call again and again; it raises nothing."""
    has_control = (device_root / _CONTROL).exists()
    if has_control and (device_root / _UVM).exists():
        return None
    gpus = len(await asyncio.to_thread(gpus_on_bus, sys_root))
    if gpus == 0:
        return None
    modules = ["nvidia-uvm"] if has_control else ["nvidia", "nvidia-uvm"]
    troubles = []
    for tool, commands in _attempts(gpus, modules):
        found = shutil.which(tool, path=tools.path)
        trouble = await _run_all(found, commands, tools) if found else f"{tool} is not installed"
        if found and not trouble:
            trouble = _make_uvm(device_root, proc_root)
        if not trouble:
            return ModuleOutcome(True, f"loaded {' and '.join(modules)} for {gpus} GPUs with {found}")
        troubles.append(trouble)
    said = "; ".join(troubles)
    return ModuleOutcome(False, f"could not load {' and '.join(modules)}: {said}; load the kernel modules on the node")


def _attempts(gpus: int, modules: list[str]) -> tuple[tuple[str, list[list[str]]], ...]:
    """Tools and the arguments of their runs.

    nvidia-modprobe loads a module and makes device nodes, but with -u those of nvidia-uvm only, hence two runs.
    """
    nodes = [word for minor in (_CONTROL_MINOR, *range(gpus)) for word in ("-c", str(minor))]
    runs = [["-u", "-c", "0"]] if len(modules) == 1 else [nodes, ["-u", "-c", "0"]]
    return ("nvidia-modprobe", runs), ("modprobe", [[module] for module in modules])


def _make_uvm(device_root: Path, proc_root: Path) -> str:
    """Under the number that the kernel gave to the module; what failed, as a phrase. Nothing where it is there."""
    node = device_root / _UVM
    lines = (line.split() for line in read_text(proc_root / "devices").splitlines())
    majors = [int(words[0]) for words in lines if len(words) == 2 and words[1] == _UVM and words[0].isdigit()]
    if node.exists() or not majors:
        return ""
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(majors[0], 0))
        node.chmod(0o666)  # past the umask: containers of every user open it
    except OSError as error:
        return f"{node} could not be made: {error.strerror}"
    return ""


async def _run_all(tool: str, commands: list[list[str]], tools: ModuleTools) -> str:
    """The first failure as a phrase, empty if there is none; later runs need the earlier ones."""
    for arguments in commands:
        if trouble := await _run([tool, *arguments], tools):
            return trouble
    return ""


async def _run(command: list[str], tools: ModuleTools) -> str:
    """What failed, as a phrase; empty if nothing did."""
    shown = " ".join([Path(command[0]).name, *command[1:]])
    environment = os.environ | ({"PATH": tools.path} if tools.path is not None else {})
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        return f"`{shown}` could not be started: {error.strerror}"
    try:
        async with asyncio.timeout(tools.budget_s):
            _none, stderr = await process.communicate()
    except TimeoutError:
        return f"`{shown}` did not end within {tools.budget_s:g} s"
    finally:
        await _end(process)
    if process.returncode == 0:
        return ""
    lines = stderr.decode(errors="replace").strip().splitlines()
    said = f": {lines[-1][:200]}" if lines else ""
    return f"`{shown}` ended with {process.returncode}{said}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """A tool that waits inside the kernel cannot be ended, only left behind."""
    if process.returncode is None:
        process.kill()
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_LAST_WAIT_S)
