"""numba-cuda in a share: it compiles kernels to machine code, which the emulated driver loads and times.

Its packages are too large for everybody's .venv: the first test installs the locked ones beside the builds.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.library.client_packages import python_with
from tests.library.gpu_slice import CONTEXT, LIMIT, GpuSlice
from tests.library.memory_client import GIB, MIB

pytestmark = pytest.mark.thorough

_PROGRAM = Path(__file__).parent / "children/using_numba.py"
_SUM = 1023 * 1024 / 2
_BLOCK = 16 * MIB
_KERNELS_MS = 100 * 0.01


@pytest.fixture(scope="session")
def with_numba() -> Path:
    return python_with(Path(__file__).with_name("numba.lock"))


def _run(gpu_slice: GpuSlice, python: Path, **environment: str) -> dict[str, Any]:
    with gpu_slice.container.start_program(python, _PROGRAM, **environment) as process:
        out, errors = process.communicate(timeout=280)
    assert (process.returncode, errors) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def _works(found: dict[str, Any]) -> None:
    """Whatever memory it has."""
    assert found["copied"] == _SUM
    assert found["milliseconds"] >= _KERNELS_MS
    assert "CUDA_ERROR_OUT_OF_MEMORY" in found["refused"]
    assert found["again"] == _BLOCK


def test_memory_kernels_and_refusal_are_the_share_s(gpu_slice: GpuSlice, with_numba: Path) -> None:
    found = _run(gpu_slice, with_numba)
    _works(found)
    assert found["total"] == LIMIT
    assert found["free"] == LIMIT - CONTEXT
    modules = 4 * MIB  # the kernel's image, and a slab for the array
    assert found["blocks"] == (LIMIT - CONTEXT - modules) // _BLOCK


def test_without_ours_they_are_the_gpu_s(gpu_slice: GpuSlice, with_numba: Path, build: Path) -> None:
    found = _run(gpu_slice, with_numba, LD_LIBRARY_PATH=str(build))
    _works(found)
    assert found["total"] > 79 * GIB
    assert found["blocks"] > 79 * GIB // _BLOCK * 0.9
