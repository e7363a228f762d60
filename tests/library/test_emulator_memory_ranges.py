"""Free ranges of addresses against a plain array of what is taken, with every memory error fatal."""

import subprocess
from pathlib import Path

import pytest

from tests.library.machine import LIBRARY

_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{LIBRARY}/emulator"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("native") / "ranges_model"
    memory = LIBRARY / "emulator/cuda/memory"
    sources = [Path(__file__).parent / "native/ranges_model.c", memory / "ranges.c", memory / "spans.c"]
    subprocess.run(["gcc", *_FLAGS, *_SANITIZERS, "-o", str(output), *map(str, sources)], check=True, timeout=55)
    return output


@pytest.mark.parametrize("seed", range(5))
def test_a_take_is_the_lowest_place_that_fits_and_what_is_given_is_joined(model: Path, seed: int) -> None:
    command = [str(model), "100000", str(seed)]
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "agreed\n"), done.stderr
