"""The memory accounting under the sanitizers: every family, threads, forks; nothing is said, nothing is left."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.library.compiler import runtime
from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import Container, two_gpus
from tests.library.memory_client import MIB, OUT_OF_MEMORY, UNIT, Cuda, pointer_to, pool_properties, room
from tests.library.memory_rig import STEP as GROWTH
from tests.library.memory_rig import Rig
from tests.library.starting_line import line_of
from tests.library.test_interposer_memory_families import FAMILIES, STEP
from tests.library.test_interposer_memory_graphs import captured, executable
from tests.library.test_interposer_memory_pools import capture
from tests.library.test_interposer_memory_processes import build_storm
from tests.library.test_interposer_memory_virtual import MAP, map_parts, part, sparse
from tests.library.test_interposer_memory_ways import WAYS, took

pytestmark = pytest.mark.thorough


@pytest.fixture
def checked(sanitized_build: Path, sanitized_interposers: Path, short_tmp: Path) -> Iterator[GpuSlice]:
    environment = two_gpus(short_tmp) | {"LD_PRELOAD": runtime("libasan.so"), "ASAN_OPTIONS": "detect_leaks=0"}
    cuda, nvml = sanitized_build / "libcuda.so.1", sanitized_build / "libnvidia-ml.so.1"
    with ExitStack() as processes:
        yield GpuSlice(Container(short_tmp, sanitized_interposers, cuda, nvml, environment), processes)


@pytest.fixture
def thread_checked(thread_checked_build: Path, build: Path, short_tmp: Path) -> Iterator[GpuSlice]:
    """Our library alone: the emulated driver has its own tests."""
    environment = two_gpus(short_tmp) | {"TSAN_OPTIONS": "die_after_fork=0 exitcode=66"}
    interposers = thread_checked_build / "interposer"
    cuda, nvml = build / "libcuda.so.1", build / "libnvidia-ml.so.1"
    with ExitStack() as processes:
        yield GpuSlice(Container(short_tmp, interposers, cuda, nvml, environment), processes)


def test_every_family_to_its_end(checked: GpuSlice) -> None:
    cuda = checked.start()
    for family in FAMILIES:
        made = family.make(cuda, checked.room)
        assert family.code(cuda, STEP) == OUT_OF_MEMORY
        family.end(cuda, made)
        cuda.code(family.free, made, 0)
        cuda.synchronize()
        assert eventually(lambda: checked.used() == 0)
    _pools_and_graphs(checked)
    _handles(checked)
    cuda.code("cuMemAlloc_v2", None, 1)
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    cuda.__exit__()
    assert (cuda.process.returncode, checked.errors.read_text()) == (0, "")


def _pools_and_graphs(checked: GpuSlice) -> None:
    cuda = checked.start()
    for _ in range(70):
        pool = cuda.get("cuMemPoolCreate", pointer_to(pool_properties()))
        pointer = cuda.get("cuMemAllocFromPoolAsync", MIB, pool, 0)
        cuda("cuMemPoolTrimTo", pool, 0)
        cuda("cuMemPoolDestroy", pool)
        cuda.free_async(pointer)
    stream = cuda.stream()
    with capture(cuda, stream) as graph:
        cuda.free_async(cuda.alloc_async(STEP, stream), stream)
    cuda("cuGraphLaunch", cuda.get("cuGraphInstantiateWithFlags", graph[0], 0), stream)
    assert eventually(lambda: checked.use(cuda).used == STEP)
    _executables(cuda, checked)
    cuda.__exit__()
    assert cuda.process.returncode == 0


def _executables(cuda: Cuda, checked: GpuSlice) -> None:
    """Made, updated, run in several streams, refused, destroyed while they run and after their context."""
    made = [executable(cuda, size, milliseconds=20) for size in (STEP, 2 * STEP, 4 * STEP)]
    left = executable(cuda, STEP, kept=True, flags=1)
    streams = [cuda.stream() for _ in made]
    for _ in range(2):
        for one, stream in zip(made, streams, strict=True):
            cuda("cuGraphLaunch", one, stream)
            cuda("cuGraphLaunch", left, stream)
    other, _ = captured(cuda, 2 * STEP, milliseconds=20)
    cuda("cuGraphExecUpdate_v2", made[0], other, room(24))
    assert cuda.code("cuGraphUpload", executable(cuda, checked.limit), 0) == OUT_OF_MEMORY
    cuda("cuGraphLaunch", made[0], streams[0])
    cuda("cuGraphExecDestroy", made[0])
    cuda("cuGraphLaunch", made[1], streams[0])
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    for one in (left, *made[1:]):
        cuda("cuGraphExecDestroy", one)


def _handles(checked: GpuSlice) -> None:
    cuda = checked.start()
    array = sparse(cuda)
    handle = cuda.create(UNIT)
    for at in range(200):
        assert map_parts(cuda, part(array, MAP, handle, at)) == 0
    cuda("cuMemRelease", handle)
    cuda("cuArrayDestroy", array)
    address = cuda.reserve(190 * UNIT)
    for i in range(190):
        handle = cuda.create(UNIT)
        cuda.map(address + i * UNIT, UNIT, handle)
        cuda("cuMemRelease", handle)
    cuda("cuMemRelease", cuda.get("cuMemRetainAllocationHandle", address + 100 * UNIT))
    cuda("cuMemUnmap", address, 190 * UNIT)
    assert checked.use(cuda).used == 0
    assert cuda.ask(fork=[["cuMemFree_v2", [address]]])["codes"] != [0]
    cuda.__exit__()
    assert cuda.process.returncode == 0


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_the_limit_and_beyond(checked: GpuSlice, short_tmp: Path, way: str) -> None:
    checked.container.environment["VCUDA_EMULATOR_FURTHER_CONTEXT_MIB"] = str(GROWTH // MIB)
    rig = Rig(checked, short_tmp, checked.outside(), checked.start())
    while took(way, rig, rig.cuda):
        assert rig.held() <= checked.limit
    rig.cuda.__exit__()
    assert (rig.cuda.process.returncode, checked.errors.read_text()) == (0, "")


def test_threads_without_a_race(thread_checked: GpuSlice, build: Path, short_tmp: Path) -> None:
    storm = build_storm(build, short_tmp / "storm", "-fsanitize=thread")
    thread_checked.change_limit(thread_checked.room // 8 + CONTEXT, 2)
    with thread_checked.container.start_program(storm, "storm", 8, 3000) as process:
        assert line_of(process) == "done\n"
        assert thread_checked.used() == 0
        out, errors = process.communicate("\n", timeout=50)
    assert (process.returncode, out, errors) == (0, "", "")


def test_every_family_in_threads_without_a_race(thread_checked: GpuSlice, build: Path, short_tmp: Path) -> None:
    storm = build_storm(build, short_tmp / "storm", "-fsanitize=thread")
    with thread_checked.container.start_program(storm, "churn", 300) as process:
        out, errors = process.communicate(timeout=100)
    assert (process.returncode, out, errors) == (0, "churned\n", "")


def test_a_fork_under_the_thread_sanitizer(thread_checked: GpuSlice, build: Path, short_tmp: Path) -> None:
    storm = build_storm(build, short_tmp / "storm", "-fsanitize=thread")
    with thread_checked.container.start_program(storm, "fork", UNIT) as process:
        out, errors = process.communicate("\n", timeout=50)
    assert (process.returncode, out, errors) == (0, "both\n", "")


def test_memory_errors_in_a_storm(checked: GpuSlice, build: Path, short_tmp: Path) -> None:
    storm = build_storm(build, short_tmp / "storm")
    with checked.container.start_program(storm, "churn", 300) as process:
        out, errors = process.communicate(timeout=100)
    assert (process.returncode, out, errors) == (0, "churned\n", "")
