"""The kernel modules: loaded when the control device is missing and there is a GPU that needs them.

In: roots of /dev and sysfs, the tools. Out: one sentence about what was done, None where nothing was. Not here: whether
the driver then answers (`nvml`). Never a shell, always a time limit. Invariant: without an NVIDIA GPU on the PCI bus,
or with the control device in place, nothing is run.
"""

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.hardware import pci

_CONTROL = "nvidiactl"
_CONTROL_MINOR = 255
_LAST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTools:
    """How to reach the tools; `path` replaces PATH, for an agent whose node's tools are mounted elsewhere."""

    path: str | None = None
    budget_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ModuleOutcome:
    """`loaded`: they are there as far as the tools say; a sentence for the log."""

    loaded: bool
    sentence: str


async def load_modules(tools: ModuleTools, *, device_root: Path, sys_root: Path) -> ModuleOutcome | None:
    """Safe to call again and again; it raises nothing."""
    if (device_root / _CONTROL).exists():
        return None
    gpus = len(await asyncio.to_thread(pci.gpus_on_bus, sys_root))
    if gpus == 0:
        return None
    troubles = []
    for tool, commands in _attempts(gpus):
        found = shutil.which(tool, path=tools.path)
        trouble = await _run_all(found, commands, tools) if found else f"{tool} is not installed"
        if not trouble:
            return ModuleOutcome(True, f"loaded the nvidia and nvidia-uvm modules for {gpus} GPUs with {found}")
        troubles.append(trouble)
    said = "; ".join(troubles)
    return ModuleOutcome(False, f"could not load the nvidia kernel module: {said}; load it on the node")


def _attempts(gpus: int) -> tuple[tuple[str, list[list[str]]], ...]:
    """Tools and the arguments of their runs.

    nvidia-modprobe loads a module and makes device nodes, but with -u those of nvidia-uvm only, hence two runs.
    """
    nodes = [word for minor in (_CONTROL_MINOR, *range(gpus)) for word in ("-c", str(minor))]
    return ("nvidia-modprobe", [nodes, ["-u", "-c", "0"]]), ("modprobe", [["nvidia"], ["nvidia-uvm"]])


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
