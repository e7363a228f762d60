"""Builds of the emulated driver and of the interposers, machines that run on the one, containers on the other."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.library.driver import Driver
from tests.library.gpu_slice import GpuSlice
from tests.library.interposed import Container, two_gpus
from tests.library.machine import LIBRARY, Machine

_NATIVE = Path(__file__).parent / "native"
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-pthread", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="session")
def build() -> Path:
    subprocess.run(["make", "--silent", "-C", str(LIBRARY), "emulator"], check=True, timeout=240)
    return LIBRARY / "build/emulator"


@pytest.fixture(scope="session")
def sanitized_build() -> Path:
    subprocess.run(["make", "--silent", "-C", str(LIBRARY), "sanitize", "WHAT=emulator"], check=True, timeout=240)
    return LIBRARY / "build/sanitize/emulator"


@pytest.fixture(scope="session")
def sanitized_interposers() -> Path:
    subprocess.run(["make", "--silent", "-C", str(LIBRARY), "sanitize", "WHAT=interposer"], check=True, timeout=240)
    return LIBRARY / "build/sanitize/interposer"


def _compile(source: str, output: Path, *flags: str) -> Path:
    emulator = LIBRARY / "emulator"
    sources = [*emulator.glob("*.c"), *emulator.glob("shared/*.c"), *emulator.glob("profile/*.c")]
    command = ["gcc", *_FLAGS, "-Wno-missing-field-initializers", f"-I{emulator}", *flags, "-o", str(output)]
    subprocess.run([*command, str(_NATIVE / source), *map(str, sources)], check=True, timeout=240)
    return output


@pytest.fixture(scope="session")
def hammer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compile("hammer.c", tmp_path_factory.mktemp("native") / "hammer")


@pytest.fixture(scope="session")
def json_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    return _compile("json_dump.c", tmp_path_factory.mktemp("native") / "json_dump", *sanitizers)


@pytest.fixture
def machine(build: Path, short_tmp: Path) -> Iterator[Machine]:
    with ExitStack() as processes:
        yield Machine(build, short_tmp, processes)


@pytest.fixture
def sanitized_machine(sanitized_build: Path, short_tmp: Path) -> Iterator[Machine]:
    """As `machine`, with every memory error and undefined behaviour fatal."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    with ExitStack() as processes:
        yield Machine(sanitized_build, short_tmp, processes, preload=found.stdout.strip())


@pytest.fixture(scope="session")
def interposers() -> Path:
    subprocess.run(["make", "--silent", "-C", str(LIBRARY), "interposer"], check=True, timeout=240)
    return LIBRARY / "build/interposer"


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


@pytest.fixture(scope="session")
def thread_checked_build() -> Path:
    subprocess.run(["make", "--silent", "-C", str(LIBRARY), "sanitize-threads"], check=True, timeout=240)
    return LIBRARY / "build/threads"
