"""PyTorch in a share, over a stand-in of the CUDA runtime: three allocators, refusals, graphs, processes, Triton.

NVIDIA's own runtime begins on no emulated driver (test_cuda_runtime.py); native/cuda_runtime has what PyTorch calls of
it. Kernels compute nothing. The first test installs PyTorch beside the builds: 4.5 GB.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandbox.emulator_profile import compile_profile
from tests.library.client_packages import python_with
from tests.library.gpu_slice import CONTEXT, GpuSlice
from tests.library.interposed import GIB, TWO_GPUS, Container
from tests.library.memory_client import MIB

pytestmark = pytest.mark.thorough

_NATIVE = Path(__file__).parent / "native/cuda_runtime"
_PROGRAM = Path(__file__).parent / "children/using_torch.py"
_SHARE = 2 * GIB
_BLOCK = 64 * MIB
_ALLOCATORS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "ordered": "backend:cudaMallocAsync",
}


@pytest.fixture(scope="session")
def with_torch() -> Path:
    return python_with(Path(__file__).with_name("torch.lock"))


@pytest.fixture(scope="session")
def runtime(with_torch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, made with the headers of the runtime that this PyTorch was built for."""
    (include,) = (with_torch.parent.parent / "lib").glob("python*/site-packages/nvidia/cu13/include")
    output = tmp_path_factory.mktemp("runtime") / "libcudart.so.13"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread"]
    linking = ["-shared", "-fPIC", f"-Wl,-soname,{output.name}", f"-Wl,--version-script={_NATIVE}/exports.map"]
    sources = map(str, sorted(_NATIVE.glob("*.c")))
    command = ["gcc", *flags, *linking, "-isystem", str(include), *sources, "-ldl", "-o", str(output)]
    subprocess.run(command, check=True, timeout=200)
    return output


@pytest.fixture
def share(emulated: Container) -> Iterator[GpuSlice]:
    """Of a machine that has no other GPU."""
    profile = Path(emulated.environment["VCUDA_EMULATOR_PROFILE"])
    profile.write_bytes(compile_profile(json.dumps(TWO_GPUS | {"gpus": TWO_GPUS["gpus"][:1]})))
    with ExitStack() as processes:
        yield GpuSlice(emulated, processes, limit=_SHARE)


@pytest.fixture
def torch_in(share: GpuSlice, with_torch: Path, runtime: Path) -> Any:
    """Runs a part of the program in the share, or without ours where LD_LIBRARY_PATH says so."""

    def run(part: str, **environment: str) -> dict[str, Any]:
        mine = {"LD_PRELOAD": str(runtime), "HOME": str(share.errors.parent)} | environment
        with share.container.start_program(with_torch, _PROGRAM, part, **mine) as process:
            out, errors = process.communicate(timeout=290)
        assert process.returncode == 0, errors
        assert "vcuda:" not in errors
        found: dict[str, Any] = json.loads(out)
        return found

    return run


@pytest.mark.parametrize("allocator", _ALLOCATORS.values(), ids=_ALLOCATORS)
def test_each_allocator_fills_the_share_and_gives_all_back(torch_in: Any, allocator: str) -> None:
    found = torch_in("memory", PYTORCH_CUDA_ALLOC_CONF=allocator)
    assert found["total"] == found["of device"] == _SHARE
    room = (_SHARE - CONTEXT) // _BLOCK
    counts, missing = zip(*found["rounds"], strict=True)
    assert all(room - 2 <= count <= room for count in counts), counts
    assert set(missing) == {0}
    assert found["kept"] == 0
    assert "out of memory" in found["refused"]
    assert "2.00 GiB" in found["refused"]


def test_a_capture_that_does_not_fit_is_refused_and_the_next_one_works(torch_in: Any) -> None:
    assert "CUDA out of memory" in torch_in("graphs")["refused"]


def test_kernels_of_triton(torch_in: Any, share: GpuSlice) -> None:
    driver = share.container.driver
    found = torch_in("compiled", TRITON_LIBCUDA_PATH=str(driver), PATH=os.environ["PATH"])
    assert found["milliseconds"] >= 100 * 0.01


def test_loaders_other_processes_and_forks(torch_in: Any, build: Path) -> None:
    found = torch_in("processes")
    assert found["seen"] == [[MIB], 7.0, _SHARE]
    assert (found["loaded"], found["ended"], found["forked"], found["after"]) == (10 * 63 * 32, 0, 0, MIB)


def test_without_ours_the_whole_gpu_is_there(torch_in: Any, build: Path) -> None:
    found = torch_in("processes", LD_LIBRARY_PATH=str(build))
    assert found["seen"][:2] == [[MIB], 7.0]
    assert found["seen"][2] > 79 * GIB
