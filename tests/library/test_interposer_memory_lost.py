"""NVML that was there and is not: closed by the application, refusing for a while, not to be loaded at first."""

import sys
from pathlib import Path

import pytest

from tests.library.codes import SUCCESS
from tests.library.compiler import SHARED, compiled
from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import Container
from tests.library.memory_client import MIB, OUT_OF_MEMORY, Cuda, pointer_to, room
from tests.library.memory_rig import image

GLOBAL = 100 * MIB
MOST = 4  # in 512 MiB beside a context

_BEGINNINGS_AND_ENDS = """
import ctypes, json, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
print(json.dumps([getattr(nvml, name)(*([0] if "Flags" in name else [])) for name in sys.argv[1:]]))
"""

_FAILING_NVML = """
#include <dlfcn.h>
#include <unistd.h>
#include "nvml.h"
/* Refuses all questions for processes while a file is there. */
__attribute__((visibility("default")))
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
    nvmlReturn_t (*next)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
    *(void **)&next = dlsym(RTLD_NEXT, "nvmlDeviceGetComputeRunningProcesses_v3");
    return access(REFUSES, F_OK) == 0 ? NVML_ERROR_UNKNOWN : next(device, count, list);
}
"""


def nvml(cuda: Cuda, name: str, *args: int, library: str = "libnvidia-ml.so.1") -> int:
    """The application's own call of NVML."""
    return int(cuda.ask(call=name, args=list(args), library=library)["code"])


def loaded(cuda: Cuda) -> int:
    """How many modules of GLOBAL fit, of twenty."""
    picture = pointer_to(image(variable=GLOBAL))
    return next((n for n in range(20) if cuda.code("cuModuleLoadData", room(8), picture) == OUT_OF_MEMORY), 20)


@pytest.mark.parametrize(
    ("calls", "answers"),
    [
        (["nvmlShutdown"], [SUCCESS]),
        (["nvmlInit_v2", "nvmlShutdown", "nvmlShutdown"], [SUCCESS, SUCCESS, SUCCESS]),
        (["nvmlInit", "nvmlInitWithFlags", "nvmlShutdown", "nvmlShutdown", "nvmlShutdown"], [SUCCESS] * 5),
    ],
)
def test_an_end_too_many_is_answered_as_by_the_driver(
    gpu_slice: GpuSlice, calls: list[str], answers: list[int]
) -> None:
    with gpu_slice.container.start_program(sys.executable, "-c", _BEGINNINGS_AND_ENDS, *calls) as process:
        out, errors = process.communicate(timeout=20)
    assert (out.strip(), errors) == (str(answers), "")


@pytest.mark.parametrize("times", [1, 3])
def test_what_an_application_ends_too_often_is_counted_on(gpu_slice: GpuSlice, user: Cuda, times: int) -> None:
    assert nvml(user, "nvmlInitWithFlags", 0) == SUCCESS
    assert [nvml(user, "nvmlShutdown") for _ in range(times + 1)] == [SUCCESS] * (times + 1)
    assert loaded(user) == MOST
    assert user.left() < GLOBAL


def test_a_session_that_was_closed_past_the_library_is_opened_again(gpu_slice: GpuSlice, user: Cuda) -> None:
    """By a program that has the driver's own library."""
    ended = [nvml(user, "nvmlShutdown", library="libnvidia-ml-real.so.1") for _ in range(3)]
    assert ended == [SUCCESS] * 3
    assert loaded(user) == MOST


@pytest.fixture
def refuses(emulated: Container, build: Path, short_tmp: Path) -> Path:
    """While this file is there, NVML says nothing of processes."""
    directory, flag = short_tmp / "nvml", short_tmp / "refuses"
    directory.mkdir()
    real = directory / "libnvidia-em.so.1"
    real.write_bytes((build / "libnvidia-ml.so.1").read_bytes().replace(b"libnvidia-ml.so.1\0", b"libnvidia-em.so.1\0"))
    (directory / "failing.c").write_text(f'#define REFUSES "{flag}"\n' + _FAILING_NVML)
    linking = ("-Wl,-soname,libnvidia-ml.so.1", "-Wl,--no-as-needed", f"-Wl,-rpath,{directory}")
    output = directory / "libnvidia-ml.so.1"
    emulated.stand_behind(nvml=compiled(output, *SHARED, *linking, directory / "failing.c", real, "-ldl"))
    return flag


def test_what_nvml_refuses_to_say_is_not_what_it_said_last(refuses: Path, gpu_slice: GpuSlice) -> None:
    """A module waits for the answer, once; then it is refused, until NVML answers again. Other memory is given."""
    user = gpu_slice.start()
    refuses.touch()
    assert loaded(user) == 0
    user.alloc(MIB)
    refuses.unlink()
    assert eventually(lambda: loaded(user) == MOST)


def test_a_context_that_nobody_can_count_is_not_made(refuses: Path, gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start()
    refuses.touch()
    assert eventually(lambda: user.code("cuCtxCreate_v2", room(8), 0, 0) == OUT_OF_MEMORY)
    refuses.unlink()
    assert eventually(lambda: user.code("cuCtxCreate_v2", room(8), 0, 0) == SUCCESS)


def test_a_refusal_that_passes_while_a_module_waits_harms_nobody(refuses: Path, gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start()
    refuses.touch()
    user.tell(call="cuModuleLoadData", args=[room(8), pointer_to(image(variable=GLOBAL))])
    refuses.unlink()
    assert user.listen()["code"] == SUCCESS


@pytest.mark.parametrize("what", ["descriptors", "memory"])
def test_nvml_that_could_not_be_loaded_at_first_is_loaded_later(gpu_slice: GpuSlice, what: str) -> None:
    cuda = gpu_slice.start(context=False)
    cuda("cuInit", 0)
    cuda.ask(without=what)
    cuda.code("cuDevicePrimaryCtxRetain", room(8), 0)
    cuda.ask(**{"with": what})
    cuda.begin()
    assert eventually(lambda: gpu_slice.use(cuda).overhead == CONTEXT)
    assert loaded(cuda) == MOST
