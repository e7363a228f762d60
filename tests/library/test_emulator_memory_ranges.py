"""Free ranges of addresses against a plain array of what is taken, with every memory error fatal."""

import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import MEMORY_ERRORS_FATAL, compiled
from tests.library.machine import EMULATOR

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("native") / "ranges_model"
    memory = EMULATOR / "cuda/memory"
    sources = [Path(__file__).parent / "native/ranges_model.c", memory / "ranges.c", memory / "spans.c"]
    return compiled(output, *MEMORY_ERRORS_FATAL, f"-I{EMULATOR}", *sources)


@pytest.mark.parametrize("seed", range(5))
def test_a_take_is_the_lowest_place_that_fits_and_what_is_given_is_joined(model: Path, seed: int) -> None:
    command = [str(model), "100000", str(seed)]
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "agreed\n"), done.stderr
