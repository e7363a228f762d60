"""The reader of limits files against libFuzzer, for a moment in each run; `make fuzz` is for longer ones."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import made
from tests.library.machine import LIBRARY

pytestmark = pytest.mark.thorough

RUNS = 100_000


def has_libfuzzer() -> bool:
    if shutil.which("clang") is None:
        return False
    source = "int LLVMFuzzerTestOneInput(const char *b, unsigned long n) { return b && n ? 0 : 0; }"
    command = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-", "-o", "/dev/null"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0


def test_no_bytes_upset_the_reader(short_tmp: Path) -> None:
    if not has_libfuzzer():
        pytest.skip("clang with libFuzzer is not installed (Debian: clang libclang-rt-dev)")
    made("fuzz", "CC=clang")
    corpus = short_tmp / "corpus"
    shutil.copytree(LIBRARY / "fuzz/corpus/limits", corpus)
    limits = [f"-runs={RUNS}", "-max_total_time=20", "-max_len=8300", f"-artifact_prefix={short_tmp}/"]
    done = subprocess.run(
        [LIBRARY / "build/fuzz/limits", *limits, corpus], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr
