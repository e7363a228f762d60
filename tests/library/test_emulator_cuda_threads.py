"""Streams, events, host functions and captures from many threads at once, plainly and with every memory error fatal."""

import subprocess
from pathlib import Path

from tests.library.machine import LIBRARY, Machine

_SOURCE = Path(__file__).parent / "native/cuda_threads.c"
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-pthread", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{LIBRARY}/include"]


def _run(machine: Machine, directory: Path, threads: int, rounds: int, *flags: str) -> str:
    machine.describe("hgx-a100")
    program = directory / "cuda_threads"
    command = ["gcc", *_FLAGS, *flags, "-o", str(program), str(_SOURCE), str(machine.build / "libcuda.so.1")]
    subprocess.run(command, check=True, timeout=55)
    environment = machine.environment | {"LD_LIBRARY_PATH": str(machine.build), "ASAN_OPTIONS": "detect_leaks=0"}
    words = [str(program), str(threads), str(rounds)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_threads_lose_nothing(machine: Machine, tmp_path: Path) -> None:
    assert _run(machine, tmp_path, 16, 300) == "all done\n"


def test_threads_with_every_memory_error_fatal(sanitized_machine: Machine, tmp_path: Path) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    assert _run(sanitized_machine, tmp_path, 8, 50, *flags) == "all done\n"
