"""NVIDIA's own libcudart of CUDA 12 and 13 on the emulated driver, bare and with ours in front of it: the same trace.

It gets as far as the table by which it authenticates NVIDIA's driver. The emulator has no such table, see its README.
"""

import json
import sysconfig
from pathlib import Path

import pytest

from sandbox.emulator_profile import compile_profile
from tests.library.cuda_declarations import rows, unsupported
from tests.library.interposed import GIB, TWO_GPUS, Container, device

_PACKAGES = Path(sysconfig.get_paths()["purelib"])
_RUNTIMES = {
    "12.9": _PACKAGES / "nvidia/cuda_runtime/lib/libcudart.so.12",
    "13.5": _PACKAGES / "nvidia/cu13/lib/libcudart.so.13",
}
_SYMBOLS = [row.symbol for row in (*rows(), *unsupported())]
_AUTHENTICATION = "d4082055bde6704b8d34ba123c66e1f2"
_PUBLIC = {
    "6bd5fb6c5bf4e74a8987d93912fd9df9",
    "42d85a8123f6cb478298f6e78a3aecdc",
    "a094798c2e742e7493f20800200c0a66",
    "c693336e1121df11a8c368f355d89593",
    "263e88607cd2614392f6bbd5006dfa7e",
}
_SINCE_13_4 = "21318c60971432488ca641ff7324c8f2"
_OURS_ASKS = {"cuGetProcAddress_v2", "cuDeviceGetUuid_v2", "cuDeviceGetCount"}


@pytest.fixture(params=sorted(_RUNTIMES))
def cuda(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def of_the_same_release(emulated: Container, cuda: str) -> Container:
    """A driver of that release: a runtime asks for the newest that it knows."""
    profile = Path(emulated.environment["VCUDA_EMULATOR_PROFILE"])
    profile.write_bytes(compile_profile(json.dumps(TWO_GPUS | {"cuda": cuda})))
    return emulated


def test_the_runtime_begins_up_to_the_driver_s_authentication(
    of_the_same_release: Container, cuda: str, build: Path
) -> None:
    found = of_the_same_release.run("runtime_begins", str(_RUNTIMES[cuda]), _SYMBOLS, LD_LIBRARY_PATH=str(build)).value
    version = 1000 * int(cuda.split(".")[0]) + 10 * int(cuda.split(".")[1])
    assert found["numbers"]["cudaRuntimeGetVersion"] == found["numbers"]["cudaDriverGetVersion"] == version
    assert found["tables"][-1] == _AUTHENTICATION
    assert set(found["tables"]) >= _PUBLIC | ({_SINCE_13_4} if cuda == "13.5" else set())
    assert found["codes"]["cudaGetDeviceCount"] != "cudaSuccess"


def test_with_ours_in_front_it_gets_the_same_from_the_driver(
    of_the_same_release: Container, cuda: str, build: Path
) -> None:
    container = of_the_same_release
    container.grant(device(0, memory=2 * GIB), device(1, memory=GIB))
    bare = container.run("runtime_begins", str(_RUNTIMES[cuda]), _SYMBOLS, LD_LIBRARY_PATH=str(build)).value
    ours = container.run("runtime_begins", str(_RUNTIMES[cuda]), _SYMBOLS)
    assert ours.errors == ""
    calls = {side: found.pop("calls") for side, found in (("bare", bare), ("ours", ours.value))}
    assert ours.value == bare
    assert calls["bare"]["cuGetProcAddress_v2"] > 300
    assert {name for name in _SYMBOLS if calls["ours"].get(name, 0) != calls["bare"].get(name, 0)} <= _OURS_ASKS


def test_the_driver_s_tables_give_and_make_contexts_too(emulated: Container, build: Path) -> None:
    """The primary one as it is: not active before it is retained and after a reset, as with driver 580 on an H100."""
    found = emulated.run("contexts_by_tables", LD_LIBRARY_PATH=str(build)).value
    assert found == {"codes": [0] * 10, "active": [0, 1, 1, 0], "primaries": 1, "current": True, "unknown": 801}
