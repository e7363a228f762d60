"""Builds of the emulated driver and of the interposers, machines that run on the one, containers on the other."""

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox.shared_gpu import SharedGpu
from tests.examples import every
from tests.library import cuda_client, memory_client
from tests.library.compiler import compiled, emulator_made, made, runtime
from tests.library.compute import Simulation, build_parts, build_simulation
from tests.library.cuda_client import Process
from tests.library.driver import Driver
from tests.library.gpu_slice import GpuSlice
from tests.library.interposed import Container, two_gpus
from tests.library.machine import EMULATOR, Machine
from tests.library.memory_client import MIB, Cuda
from tests.library.memory_rig import STEP, Rig

_NATIVE = Path(__file__).parent / "native"


@pytest.fixture(scope="session")
def build() -> Path:
    return emulator_made()


@pytest.fixture(scope="session")
def sanitized_build() -> Path:
    return emulator_made("sanitize") / "sanitize"


@pytest.fixture(scope="session")
def sanitized_interposers() -> Path:
    return made("sanitize", "WHAT=interposer") / "sanitize/interposer"


@pytest.fixture(scope="session")
def hammer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = sorted(path for where in ("*.c", "shared/*.c") for path in EMULATOR.glob(where))
    return compiled(tmp_path_factory.mktemp("native") / "hammer", f"-I{EMULATOR}", _NATIVE / "hammer.c", *sources)


@pytest.fixture
def machine(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Machine]:
    """In a thorough test every memory error and undefined behaviour of the emulated driver is fatal."""
    thorough = request.node.get_closest_marker("thorough") is not None
    build: Path = request.getfixturevalue("sanitized_build" if thorough else "build")
    with ExitStack() as processes:
        machine = Machine(build, short_tmp, processes, preload=runtime("libasan.so") if thorough else "")
        yield machine
    found = machine.errors.read_text() if machine.errors.exists() else ""
    assert not re.search("Sanitizer|runtime error:", found), found


@pytest.fixture
def plain_machine(build: Path, short_tmp: Path) -> Iterator[Machine]:
    """As programs meet it: for what takes its time, or ends, otherwise under the sanitizers."""
    with ExitStack() as processes:
        yield Machine(build, short_tmp, processes)


@pytest.fixture
def cuda(machine: Machine) -> Cuda:
    """A process on a machine of one small GPU."""
    return memory_client.start(machine)


@pytest.fixture
def process(machine: Machine) -> Process:
    """A process on a machine of eight A100."""
    return cuda_client.start(machine)


@pytest.fixture
def stream(process: Process) -> int:
    return process.stream()


@pytest.fixture(scope="session")
def interposers() -> Path:
    return made("interposer") / "interposer"


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Driver], Path]:
    """Builds a test driver once."""
    built: dict[Driver, Path] = {}

    def get(driver: Driver) -> Path:
        if driver not in built:
            built[driver] = driver.build(tmp_path_factory.mktemp("driver"))
        return built[driver]

    return get


@pytest.fixture
def container(interposers: Path, build: Path, drivers: Callable[[Driver], Path], short_tmp: Path) -> Container:
    """On the test driver of native/interposer, and the emulated NVML. Without limits until it is granted some."""
    return Container(short_tmp, interposers, drivers(Driver()), build / "libnvidia-ml.so.1", two_gpus(short_tmp))


@pytest.fixture
def emulated(interposers: Path, build: Path, short_tmp: Path) -> Container:
    """On the emulated driver alone, with the same two GPUs."""
    return Container(short_tmp, interposers, build / "libcuda.so.1", build / "libnvidia-ml.so.1", two_gpus(short_tmp))


@pytest.fixture
def gpu_slice(emulated: Container) -> Iterator[GpuSlice]:
    with ExitStack() as processes:
        yield GpuSlice(emulated, processes)


@pytest.fixture
def user(gpu_slice: GpuSlice) -> Cuda:
    """A process of the container, with a context."""
    return gpu_slice.start()


@pytest.fixture
def rig(gpu_slice: GpuSlice, short_tmp: Path) -> Rig:
    """Each further context takes STEP."""
    gpu_slice.container.environment["VCUDA_EMULATOR_FURTHER_CONTEXT_MIB"] = str(STEP // MIB)
    outside = gpu_slice.outside()
    return Rig(gpu_slice, short_tmp, outside, gpu_slice.start())


@pytest.fixture(scope="session")
def thread_checked_build() -> Path:
    return made("sanitize-threads") / "threads"


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test leaves behind are ended."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture(scope="session")
def workload() -> Path:
    """library/programs/workload.c."""
    return made("programs") / "programs/workload"


@pytest.fixture
def gpu(interposers: Path, build: Path, short_tmp: Path) -> SharedGpu:
    """For containers that share the emulated GPU's time."""
    return SharedGpu(short_tmp, interposers, build / "libcuda.so.1")


@pytest.fixture(scope="session")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Checked in the thorough run only."""
    return Simulation(build_simulation(tmp_path_factory.mktemp("compute"), checked=every(2) == 1))


@pytest.fixture(scope="session")
def checked_simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    return Simulation(build_simulation(tmp_path_factory.mktemp("checked"), checked=True))


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The limiter's arithmetic, function by function."""
    return build_parts(tmp_path_factory.mktemp("compute"))


@pytest.fixture(params=["addresses", "threads"])
def checked_gpu(request: pytest.FixtureRequest, build: Path, short_tmp: Path) -> tuple[SharedGpu, dict[str, str]]:
    """As `gpu`, with every memory error or every data race of our library fatal to programs in this environment."""
    if request.param == "addresses":
        interposers: Path = request.getfixturevalue("sanitized_interposers")
        checks = {"LD_PRELOAD": runtime("libasan.so"), "ASAN_OPTIONS": "detect_leaks=0"}
    else:
        interposers = request.getfixturevalue("thread_checked_build") / "interposer"
        checks = {"LD_PRELOAD": runtime("libtsan.so"), "TSAN_OPTIONS": "exitcode=66 die_after_fork=0"}
    return SharedGpu(short_tmp, interposers, build / "libcuda.so.1"), checks
