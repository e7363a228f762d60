"""NVIDIA's cuda-bindings, a real client of the driver: each function once, on the emulator and with ours in front.

Every function of the driver that the bindings offer is called. With ours in front it answers as the driver does, but
for what belongs to the share.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sandbox.emulator_profile import compile_profile
from tests.library.cuda_declarations import rows, unsupported
from tests.library.interposed import GIB, TWO_GPUS, Container, device
from tests.library.machine import EMULATOR

_ROWS, _UNSUPPORTED = rows(), unsupported()
_SOURCES = [path.read_text() for path in (EMULATOR / "cuda").rglob("*.c")]
_ENTRIES = {symbol for text in _SOURCES for symbol in re.findall(r"^ENTRY\((cu\w+)\)", text, flags=re.MULTILINE)}
_BASE = {row.symbol: row.base for row in (*_ROWS, *_UNSUPPORTED)}
_SHARE = 8 * GIB

_NOT_CALLABLE = {
    "the bindings leave out what CUDA has deprecated for OpenGL": {
        "cuGLCtxCreate",
        "cuGLInit",
        "cuGLMapBufferObject",
        "cuGLMapBufferObjectAsync",
        "cuGLRegisterBufferObject",
        "cuGLSetBufferObjectMapFlags",
        "cuGLUnmapBufferObject",
        "cuGLUnmapBufferObjectAsync",
        "cuGLUnregisterBufferObject",
    },
    "the bindings leave out what CUDA has removed": {"cuProfilerInitialize"},
    "the bindings call cuGraphInstantiateWithFlags for it": {"cuGraphInstantiate"},
}
_SAID_OTHERWISE = {
    "the emulator imports no external memory": {
        "cuDestroyExternalMemory": "CUDA_ERROR_INVALID_HANDLE",
        "cuExternalMemoryGetMappedBuffer": "CUDA_ERROR_INVALID_HANDLE",
        "cuImportExternalMemory": "CUDA_ERROR_NOT_SUPPORTED",
    },
    "no process opens its own handle, and none of another is there": {
        "cuIpcCloseMemHandle": "CUDA_ERROR_INVALID_VALUE",
        "cuIpcOpenEventHandle": "CUDA_ERROR_INVALID_VALUE",
        "cuIpcOpenMemHandle": "CUDA_ERROR_INVALID_VALUE",
        "cuMemPoolImportPointer": "CUDA_ERROR_INVALID_VALUE",
    },
    "only for arrays with deferred mapping or sparse ones, which the emulator's GPUs do not have": {
        "cuArrayGetMemoryRequirements": "CUDA_ERROR_INVALID_VALUE",
        "cuMemMapArrayAsync": "CUDA_ERROR_INVALID_VALUE",
        "cuMipmappedArrayGetMemoryRequirements": "CUDA_ERROR_INVALID_VALUE",
    },
    "the emulator has no multicast": {"cuMulticastCreate": "CUDA_ERROR_NOT_SUPPORTED"},
    "the images have no managed variables": {"cuLibraryGetManaged": "CUDA_ERROR_NOT_FOUND"},
}
_OF_THE_SHARE = {"cuDeviceTotalMem", "cuMemGetInfo"}
_OF_THE_PROCESS = {  # addresses and descriptors
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuMemAllocHost",
    "cuMemExportToShareableHandle",
    "cuMemHostAlloc",
    "cuMemPoolExportToShareableHandle",
}

Found = dict[str, tuple[str, list[Any], list[str]]]


@pytest.fixture
def newest(emulated: Container) -> Container:
    """With a driver that has all that the bindings know."""
    profile = Path(emulated.environment["VCUDA_EMULATOR_PROFILE"])
    profile.write_bytes(compile_profile(json.dumps(TWO_GPUS | {"cuda": "13.5"})))
    return emulated


def _called(container: Container, **environment: str) -> Found:
    with container.start("bindings_called", list(_BASE), **environment) as process:
        out, errors = process.communicate(timeout=280)
    assert (process.returncode, errors) == (0, "")
    return {name: (result, values, symbols) for name, (result, values, symbols) in json.loads(out).items()}


def _emulated(name: str, symbols: list[str]) -> bool:
    """Whether the call of that name, among those that prepared it, has a body in the emulator."""
    return any(row.symbol in symbols and row.base == name and row.symbol in _ENTRIES for row in _ROWS)


def test_every_function_of_the_driver_is_called_and_answers_as_without_ours(newest: Container, build: Path) -> None:
    bare = _called(newest, LD_LIBRARY_PATH=str(build))
    newest.grant(device(0, memory=_SHARE, cores=100), device(1, memory=_SHARE, cores=100))
    ours = _called(newest)
    called = {_BASE[symbol] for _, _, symbols in bare.values() for symbol in symbols}
    assert set(_BASE.values()) - called == set().union(*_NOT_CALLABLE.values())
    otherwise = {name: result for group in _SAID_OTHERWISE.values() for name, result in group.items()}
    refused = {name: result for name, (result, *_) in bare.items() if result != "CUDA_SUCCESS"}
    assert {name: result for name, result in refused.items() if _emulated(name, bare[name][2])} == otherwise
    unexpected = {name: result for name, result in refused.items() if name not in otherwise}
    assert {name: result for name, result in unexpected.items() if result != "CUDA_ERROR_NOT_SUPPORTED"} == {}
    assert {name: found[0] for name, found in ours.items()} == {name: found[0] for name, found in bare.items()}
    differ = {name for name in bare if ours[name][1] != bare[name][1]} - _OF_THE_PROCESS
    assert differ == _OF_THE_SHARE
    assert ours["cuDeviceTotalMem"][1] == [_SHARE]
    assert ours["cuMemGetInfo"][1][1] == _SHARE
