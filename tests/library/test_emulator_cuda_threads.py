"""Streams, events, host functions and captures from many threads at once, plainly and with every memory error fatal."""

import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import MEMORY_ERRORS_FATAL, compiled
from tests.library.machine import Machine

pytestmark = pytest.mark.thorough

_SOURCE = Path(__file__).parent / "native/cuda_threads.c"


def _run(machine: Machine, directory: Path, threads: int, rounds: int, *flags: str) -> str:
    machine.describe("hgx-a100")
    program = compiled(directory / "cuda_threads", *flags, _SOURCE, machine.build / "libcuda.so.1")
    environment = machine.environment | {"LD_LIBRARY_PATH": str(machine.build), "ASAN_OPTIONS": "detect_leaks=0"}
    words = [str(program), str(threads), str(rounds)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_threads_lose_nothing(machine: Machine, tmp_path: Path) -> None:
    assert _run(machine, tmp_path, 16, 300) == "all done\n"


def test_threads_with_every_memory_error_fatal(sanitized_machine: Machine, tmp_path: Path) -> None:
    assert _run(sanitized_machine, tmp_path, 8, 50, *MEMORY_ERRORS_FATAL) == "all done\n"
