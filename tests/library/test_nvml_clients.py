"""Real clients of NVML as a container's user runs them: they show the share's memory and the container's processes.

gpustat, nvitop, the example of nvidia-ml-py, and a program over go-nvml where Go is there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandbox.emulator_profile import compile_profile
from tests.library.gpu_slice import CONTEXT, LIMIT, GpuSlice
from tests.library.interposed import TWO_GPUS
from tests.library.memory_client import MIB, Cuda

_USED = CONTEXT + 128 * MIB
_NEIGHBOUR = 256 * MIB


@pytest.fixture
def gpu_slice(gpu_slice: GpuSlice) -> GpuSlice:
    """Of a machine that has no other GPU."""
    profile = Path(gpu_slice.container.environment["VCUDA_EMULATOR_PROFILE"])
    profile.write_bytes(compile_profile(json.dumps(TWO_GPUS | {"gpus": TWO_GPUS["gpus"][:1]})))
    return gpu_slice


@pytest.fixture
def neighbour(gpu_slice: GpuSlice, build: Path) -> Iterator[Cuda]:
    """A process on the same GPU that is not the container's."""
    outside = {key: value for key, value in gpu_slice.container.environment.items() if key != "VCUDA_DIR"}
    with ExitStack() as processes:
        cuda = Cuda(build / "libcuda.so.1", outside | {"LD_LIBRARY_PATH": str(build)}, gpu_slice.errors)
        processes.enter_context(cuda).alloc(_NEIGHBOUR)
        yield cuda


@pytest.fixture
def own(gpu_slice: GpuSlice, neighbour: Cuda) -> Cuda:
    """A process of the container, beside the neighbour's."""
    cuda = gpu_slice.start()
    cuda.alloc(_USED - CONTEXT)
    return cuda


def _shown(gpu_slice: GpuSlice, *words: str, **environment: str) -> str:
    program = gpu_slice.container.start_program(sys.executable, "-m", *words, **environment)
    with program:
        out, errors = program.communicate(timeout=100)
    assert (program.returncode, errors) == (0, "")
    return out


def test_gpustat(gpu_slice: GpuSlice, own: Cuda) -> None:
    gpu: dict[str, Any] = json.loads(_shown(gpu_slice, "gpustat", "--json"))["gpus"][0]
    assert (gpu["memory.used"], gpu["memory.total"]) == (_USED // MIB, LIMIT // MIB)
    listed = [(process["pid"], process["gpu_memory_usage"]) for process in gpu["processes"]]
    assert listed == [(own.process.pid, _USED // MIB)]


def test_nvitop(gpu_slice: GpuSlice, own: Cuda) -> None:
    shown = _shown(
        gpu_slice, "nvitop", "--once", "--ascii", TERM="dumb", COLUMNS="120", HOME=str(gpu_slice.errors.parent)
    )
    gpus, _, processes = shown.partition("Processes:")
    assert re.findall(r"([\d.]+MiB) / ([\d.]+MiB)", gpus) == [(f"{_USED / MIB:.1f}MiB", f"{LIMIT / MIB:.1f}MiB")]
    assert re.findall(r"^\|\s+0\s+(\d+)\s.*?([\d.]+MiB)", processes, re.MULTILINE) == [
        (str(own.process.pid), f"{_USED / MIB:.1f}MiB")
    ]


def test_the_example_of_nvidia_ml_py(gpu_slice: GpuSlice, build: Path) -> None:
    """It names GPUs and driver, which a share shows as they are."""
    shown = _shown(gpu_slice, "example")
    assert "<uuid>GPU-00000000-0000-0000-0000-000000000001</uuid>" in shown
    assert shown == _shown(gpu_slice, "example", LD_LIBRARY_PATH=str(build))


def test_the_emulated_nvml_lacks_what_nvidia_smi_needs(build: Path) -> None:
    """Nothing public says what its table has, so none is made up: the program does not run on it."""
    symbols = subprocess.check_output(["nm", "-D", "--defined-only", build / "libnvidia-ml.so.1"], text=True)
    assert "nvmlDeviceGetMemoryInfo" in symbols
    assert "nvmlInternalGetExportTable" not in symbols


@pytest.mark.thorough
def test_go_nvml(gpu_slice: GpuSlice, own: Cuda, short_tmp: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    program = short_tmp / "go_nvml"
    quiet = os.environ | {"CGO_CFLAGS": "-Wno-deprecated-declarations"}
    folder = Path(__file__).parent / "native/go_nvml"
    subprocess.run(["go", "build", "-o", program, "."], cwd=folder, env=quiet, check=True, timeout=280)
    with gpu_slice.container.start_program(program) as running:
        out, errors = running.communicate(timeout=100)
    assert (running.returncode, errors) == (0, "")
    assert json.loads(out) == {
        "total": LIMIT,
        "used": _USED,
        "processes": [{"pid": own.process.pid, "memory": _USED}],
    }
