"""Whose memory NVML means by a pid: what is not certain is not charged."""

import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import compiled
from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import GIB
from tests.library.machine import REPOSITORY
from tests.library.memory_client import MIB, Cuda
from tests.library.starting_line import line_of
from tests.library.test_interposer_loading import program
from tests.library.test_interposer_memory_overhead import GUESS

needs_root = pytest.mark.root
TAKEN = 128 * MIB
UNCERTAIN, OURS, OTHERS = range(3)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U16)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug 12 12:53:38 UTC 2023\n"
GCC = "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"


def test_what_a_drivers_version_says(short_tmp: Path) -> None:
    texts = {
        OPEN.format("570.86.15") + GCC: OURS,
        OPEN.format("565.57.01"): OURS,
        OPEN.format("600.1"): OURS,
        OPEN.format("565.10.01"): OTHERS,
        OPEN.format("535.113.01") + GCC: OTHERS,
        CLOSED.format("580.95.05") + GCC: OTHERS,
        GCC: UNCERTAIN,
        "": UNCERTAIN,
        "NVRM version: something new\n": UNCERTAIN,
    }
    sources = ("tests/library/native/translation_versions.c", "library/interposer/cuda/memory/translation.c")
    versions = compiled(short_tmp / "versions", *(REPOSITORY / source for source in sources))
    said = subprocess.run([versions, *texts], capture_output=True, text=True, timeout=10, check=True).stdout
    assert list(map(int, said.split())) == list(texts.values())


@pytest.fixture
def becoming(build: Path, short_tmp: Path) -> Path:
    return program(short_tmp, "becoming.c", str(build / "libcuda.so.1"))


def start(gpu_slice: GpuSlice, becoming: Path, *, pid: int, **environment: str) -> subprocess.Popen[str]:
    """A process with this pid in its own namespace."""
    inside = f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; {becoming} {TAKEN} 1 stay; true"
    command = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inside)
    return gpu_slice.container.start_program(*command, **environment)


def begin(process: subprocess.Popen[str]) -> None:
    assert line_of(process) == "done\n"


@needs_root
def test_a_driver_that_translates_is_trusted(
    gpu_slice: GpuSlice, becoming: Path, running: list[subprocess.Popen[str]]
) -> None:
    running.append(start(gpu_slice, becoming, pid=4711))
    begin(running[0])
    assert eventually(lambda: gpu_slice.total() == CONTEXT + TAKEN)


@needs_root
def test_a_host_process_with_the_same_pid_is_not_charged(
    gpu_slice: GpuSlice, becoming: Path, running: list[subprocess.Popen[str]], build: Path
) -> None:
    environment = gpu_slice.container.environment
    with Cuda(build / "libcuda.so.1", environment, gpu_slice.errors) as stranger:
        stranger.alloc(GIB)
        running.append(
            start(
                gpu_slice,
                becoming,
                pid=stranger.process.pid,
                VCUDA_EMULATOR_PIDS="host",
                VCUDA_EMULATOR_NVML_MS="6000",  # until somebody outside has looked, the emulated driver cannot know
            )
        )
        begin(running[0])
        subprocess.run([build / "vcuda-emulator", "show"], env=environment, check=True, capture_output=True, timeout=10)
        (slot,) = gpu_slice.container.slots().values()
        assert slot.pid == stranger.process.pid
        assert eventually(lambda: gpu_slice.total() == GUESS + TAKEN)
        assert not eventually(lambda: gpu_slice.total() != GUESS + TAKEN, within=8)
