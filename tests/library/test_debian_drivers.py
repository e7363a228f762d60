"""NVIDIA's own drivers of several years, without a GPU, bare and with ours in front: every answer is the same.

Debian's packages of drivers 470, 535, 550 and 555 (debian_drivers.py). Up to cuInit they work without a GPU, cuInit
says that there is none, and what comes after it says that it was not begun.
"""

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from scripts.driver_functions import hooks
from tests.library.compiler import kept
from tests.library.cuda_declarations import rows
from tests.library.debian_drivers import PACKAGED, DebianDriver, NoDriverError, debian_driver, functions_of
from tests.library.interposed import Container, device

pytestmark = pytest.mark.thorough

_CUDA, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_ROUTES = Path(__file__).parent / "native/interposer_programs/driver_routes.c"
_PACKAGES = Path(sysconfig.get_paths()["purelib"])
_RUNTIMES = {
    "12": _PACKAGES / "nvidia/cuda_runtime/lib/libcudart.so.12",
    "13": _PACKAGES / "nvidia/cu13/lib/libcudart.so.13",
}
_NEVER_RETURNED = {"cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"}
"""Exported by each of these drivers, but by cuGetProcAddress under no name and in no version."""
_CUDA_OF = {"470": 11040, "535": 12020, "550": 12040, "555": 12050}
_NO_DEVICE, _NOT_INITIALIZED, _DRIVER_NOT_LOADED, _UNINITIALIZED = "100", "3", "9", "1"
_INSUFFICIENT, _RUNTIME_WITHOUT_DEVICE = 35, 100


@pytest.fixture(scope="session", params=sorted(PACKAGED))
def driver(request: pytest.FixtureRequest) -> DebianDriver:
    try:
        return debian_driver(request.param)
    except NoDriverError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["limited", "without limits"])
def container(request: pytest.FixtureRequest, driver: DebianDriver, interposers: Path, short_tmp: Path) -> Container:
    made = Container(short_tmp, interposers, driver.libcuda, driver.nvml)
    if request.param == "limited":
        made.grant(device(0), device(1))
    return made


def _both(container: Container, driver: DebianDriver, name: str, *args: object) -> tuple[Any, Any]:
    """What the driver alone says, and what ours says in front of it, silently."""
    bare = container.run(name, *args, LD_LIBRARY_PATH=str(driver.libcuda.parent))
    ours = container.run(name, *args)
    assert ours.errors == bare.errors
    return bare.value, ours.value


def _release(driver: DebianDriver) -> str:
    return driver.version.partition(".")[0]


def test_every_answer_of_getprocaddress_is_ours_of_a_hooked_function_and_else_the_driver_s(
    container: Container, driver: DebianDriver, subtests: pytest.Subtests
) -> None:
    """Every name, version and kind of stream; a name that only newer drivers know is refused alike."""
    exported = functions_of(driver.libcuda, "cu")
    asked = sorted({*exported, *(row.symbol for row in rows())})
    program = kept("driver_routes", _ROUTES, "-ldl")
    for interface in sorted({"cuGetProcAddress", "cuGetProcAddress_v2"} & set(exported)):
        with subtests.test(interface), container.start_program(program, interface) as process:
            out, errors = process.communicate("\n".join(asked), timeout=250)
            *told, last = out.splitlines()
            assert (process.returncode, errors) == (0, "")
            assert set(told) == {f"unreturned {symbol}" for symbol in _NEVER_RETURNED}
            hooked = len(hooks("cuda") & set(exported))
            assert last.endswith(f"hooked {hooked} of {len(exported)}")
            assert hooked > 200
            assert int(last.split()[1]) > 1_000_000


@pytest.mark.parametrize("library", [_CUDA, _NVML])
def test_the_linker_shows_what_the_driver_has_and_ours_of_each_hooked_function(
    container: Container, driver: DebianDriver, library: str
) -> None:
    """Driver 470 has no cuGetProcAddress_v2: a runtime of CUDA 12 took it for a driver of CUDA 12."""
    cuda = library == _CUDA
    file, table = (driver.libcuda, hooks("cuda")) if cuda else (driver.nvml, hooks("nvml"))
    exported = functions_of(file, "cu" if cuda else "nvml")
    found = container.run("resolved", library, *sorted({*exported, *table})).value
    assert {name for name, (place, _) in found.items() if place} == set(exported)
    assert {name for name, (place, _) in found.items() if place == library} == table & set(exported)
    assert table & set(exported)
    assert not cuda or ("cuGetProcAddress_v2" in exported) == (_CUDA_OF[_release(driver)] >= 12000)


def test_each_hooked_function_answers_as_the_driver(container: Container, driver: DebianDriver) -> None:
    """Also where it ends the process, because it was given no pointer."""
    bare, ours = _both(container, driver, "answers_to_nothing", _CUDA, "cuInit", *sorted(hooks("cuda") - {"cuInit"}))
    assert ours == bare
    assert bare["cuInit"] == _NO_DEVICE
    assert bare["cuMemAlloc_v2"] == bare["cuCtxCreate_v2"] == _NOT_INITIALIZED


def test_each_hooked_function_of_nvml_answers_as_the_driver(container: Container, driver: DebianDriver) -> None:
    names = ("nvmlSystemGetDriverVersion", *sorted(hooks("nvml")))
    bare, ours = _both(container, driver, "answers_to_nothing", _NVML, "nvmlInit_v2", *names)
    assert ours == bare
    assert bare["nvmlInit_v2"] == _DRIVER_NOT_LOADED
    assert bare["nvmlDeviceGetMemoryInfo"] == bare["nvmlSystemGetDriverVersion"] == _UNINITIALIZED


@pytest.mark.parametrize("cuda", sorted(_RUNTIMES))
def test_the_cuda_runtime_answers_as_on_the_driver_alone(container: Container, driver: DebianDriver, cuda: str) -> None:
    runtime = _RUNTIMES[cuda]
    names = functions_of(runtime, "cuda")
    bare, ours = _both(container, driver, "runtime_answers", str(runtime), *names)
    assert ours == bare
    assert len(bare["said"]) > 400
    assert bare["numbers"]["cudaDriverGetVersion"] == _CUDA_OF[_release(driver)]
    serves = _CUDA_OF[_release(driver)] // 1000 >= int(cuda)
    assert bare["codes"]["cudaGetDeviceCount"] == (_RUNTIME_WITHOUT_DEVICE if serves else _INSUFFICIENT)


def test_cuda_bindings_answer_as_on_the_driver_alone(container: Container, driver: DebianDriver) -> None:
    """They find no driver that is older than CUDA 12, and say so of each function."""
    bare, ours = _both(container, driver, "bindings_answers")
    assert ours == bare
    assert len(bare) > 400
    older = "RuntimeError: Failed to get cuGetProcAddress_v2"
    assert bare["cuInit"] == (older if _CUDA_OF[_release(driver)] < 12000 else ["CUDA_ERROR_NO_DEVICE", []])


def test_nvidia_smi_says_what_it_says_on_the_driver_alone(container: Container, driver: DebianDriver) -> None:
    for words in ([], ["-L"], ["-q", "-x"], ["--query-gpu=memory.total", "--format=csv"]):
        bare, ours = (
            subprocess.run(
                [driver.smi, *words],
                env=container.environment | {"LD_LIBRARY_PATH": str(path)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            for path in (driver.nvml.parent, container.driver)
        )
        assert (ours.returncode, ours.stdout, ours.stderr) == (bare.returncode, bare.stdout, bare.stderr), words
        assert bare.returncode == int(_DRIVER_NOT_LOADED)
        assert "couldn't communicate with the NVIDIA driver" in bare.stdout
