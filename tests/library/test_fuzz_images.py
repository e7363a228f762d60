"""The readers of modules' images against libFuzzer, for a moment in each run; `make fuzz` is for longer ones."""

import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import emulator_made
from tests.library.cuda_client import kernel, ptx
from tests.library.machine_code import cubin, fat_binary
from tests.library.test_fuzz_limits import has_libfuzzer

pytestmark = pytest.mark.thorough

RUNS = 100_000


def test_no_bytes_upset_the_readers(short_tmp: Path) -> None:
    if not has_libfuzzer():
        pytest.skip("clang with libFuzzer is not installed (Debian: clang libclang-rt-dev)")
    emulator_made("fuzz", "CC=clang")
    corpus = short_tmp / "corpus"
    corpus.mkdir()
    text = ptx(kernel("work", "3 * param 0", ".param .u64 n"), rest=".global .align 4 .b8 table[4096];")
    image = cubin(["work", "other"], variables={"table": 64}, device_functions=["helper"])
    for number, seed in enumerate((text, image, cubin(since_13=False), fat_binary((70, text), (80, image)))):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-runs={RUNS}", "-max_total_time=20", "-max_len=4096", f"-artifact_prefix={short_tmp}/"]
    command = [str(emulator_made() / "fuzz/images"), *limits, str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr
