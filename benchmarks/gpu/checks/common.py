"""Common parts of checks: sizes, the driver's own NVML, interpreters with PyTorch, alternating runs."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.bench import Bench, Environment, Process
from benchmarks.gpu.inside.driver_api import Cuda, Nvml
from benchmarks.gpu.outcome import Judgement, NotRun

MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY = 2
PYTHON_INSIDE = "benchmarks.gpu.inside"


def host_nvml(bench: Bench) -> Nvml:
    """The driver's own NVML, without the interposer, in this process."""
    os.environ.update(bench.driver.environment)
    return Nvml(bench.device.uuid, bench.driver.nvml)


class HostMemory:
    """What is taken of the GPU, as a process outside of containers hears it from the driver's NVML and from CUDA."""

    def __init__(self, bench: Bench) -> None:
        self.nvml = host_nvml(bench)
        self.cuda = Cuda(bench.driver.cuda)
        self.cuda.start()
        self.before = self.look()

    def look(self) -> tuple[int, int]:
        free, total = self.cuda.memory()
        return self.nvml.memory().used, total - free

    def mark(self) -> None:
        self.before = self.look()

    def grown(self) -> int:
        """Since the mark, by the one that sees more."""
        return max(now - before for before, now in zip(self.before, self.look(), strict=True))


def needs_torch(bench: Bench) -> str:
    """The interpreter with PyTorch."""
    if not bench.torch_python:
        raise NotRun("PyTorch is not installed")
    if bench.driver.emulated:
        raise NotRun("PyTorch's kernels need a real GPU; this is the emulated driver")
    return bench.torch_python


def needs_module(bench: Bench, module: str) -> str:
    """An interpreter that can import the module: the current one, or the one with PyTorch."""
    for python in dict.fromkeys(filter(None, (bench.torch_python, shutil.which("python3")))):
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        if bench.native().start(python, "-c", code).wait(30) == 0:
            if bench.driver.emulated:
                raise NotRun(f"{module}'s kernels need a real GPU; this is the emulated driver")
            return python
    raise NotRun(f"{module} is not installed")


def needs_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotRun(f"{name} is not on this machine")
    return found


def not_shown(bench: Bench, judgement: Judgement, why: str) -> Judgement:
    """The effect is not to be seen natively either, so that nothing can be said of a container."""
    judgement.not_shown = f"not shown by {'an emulated' if bench.driver.emulated else 'this'} driver: {why}"
    return judgement


def line(process: Process) -> str:
    """The next line of its output; the time limit of the check ends the wait."""
    assert process.stdout is not None
    printed = process.stdout.readline()
    if not printed:
        assert process.stderr is not None
        raise RuntimeError(f"a program ended early: {process.stderr.read().strip()[-300:]}")
    return printed


def say(process: Process, words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


def by_turns(environments: Mapping[str, Environment], repeats: int, *command: object, key: str) -> dict[str, list[Any]]:
    """`key` of the command's output, alternating between environments, so that drift affects all of them."""
    found: dict[str, list[Any]] = {name: [] for name in environments}
    for _ in range(repeats):
        for name, environment in environments.items():
            found[name].append(environment.run(*command)[key])
    return found
