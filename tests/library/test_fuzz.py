"""The readers of limits files and of modules' images against libFuzzer, for a moment in each run.

`make fuzz` is for longer ones.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import emulator_made, made
from tests.library.cuda_client import kernel, ptx
from tests.library.machine import LIBRARY
from tests.library.machine_code import cubin, fat_binary

pytestmark = pytest.mark.thorough

RUNS = 100_000


@pytest.fixture(autouse=True)
def libfuzzer() -> None:
    source = "int LLVMFuzzerTestOneInput(const char *b, unsigned long n) { return b && n ? 0 : 0; }"
    command = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-", "-o", "/dev/null"]
    if not shutil.which("clang") or subprocess.run(command, input=source, capture_output=True, text=True).returncode:
        pytest.skip("clang with libFuzzer is not installed (Debian: clang libclang-rt-dev)")


def check_no_bytes_upset(program: Path, corpus: Path, most: int) -> None:
    limits = [f"-runs={RUNS}", "-max_total_time=20", f"-max_len={most}", f"-artifact_prefix={corpus.parent}/"]
    done = subprocess.run([program, *limits, corpus], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr


def test_no_bytes_upset_the_reader_of_limits(short_tmp: Path) -> None:
    made("fuzz", "CC=clang")
    shutil.copytree(LIBRARY / "fuzz/corpus/limits", short_tmp / "corpus")
    check_no_bytes_upset(LIBRARY / "build/fuzz/limits", short_tmp / "corpus", 8300)


def test_no_bytes_upset_the_readers_of_images(short_tmp: Path) -> None:
    emulator_made("fuzz", "CC=clang")
    corpus = short_tmp / "corpus"
    corpus.mkdir()
    text = ptx(kernel("work", "3 * param 0", ".param .u64 n"), rest=".global .align 4 .b8 table[4096];")
    image = cubin(["work", "other"], variables={"table": 64}, device_functions=["helper"])
    for number, seed in enumerate((text, image, cubin(since_13=False), fat_binary((70, text), (80, image)))):
        (corpus / str(number)).write_bytes(seed)
    check_no_bytes_upset(emulator_made() / "fuzz/images", corpus, 4096)
