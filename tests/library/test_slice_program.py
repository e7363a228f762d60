"""library/programs/slice.c on the emulated driver alone: what it says is so, and it needs nothing but libcuda."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.library.compiler import emulator_made, made
from tests.library.machine import EMULATOR, LIBRARY

PROGRAMS = LIBRARY / "build/programs"
GIB = 1 << 30
UNIT = 2 << 20  # of physical memory, and the smallest that it asks for
CONTEXT = 504 << 20  # and the module
Run = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    emulator_made()
    made("programs")


def run(directory: Path, *words: str, profile: str = "hgx-a100") -> Run:
    environment = {
        "LD_LIBRARY_PATH": str(EMULATOR / "build"),
        "VCUDA_EMULATOR_PROFILE": str(EMULATOR / f"build/profiles/{profile}.profile"),
        "VCUDA_EMULATOR_STATE": str(directory / "state"),
    }
    return subprocess.run(
        [PROGRAMS / "slice", *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def got(done: Run) -> dict[str, Any]:
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("name", ["slice", "workload", "overhead"])
def test_it_needs_libcuda_and_the_c_library_alone(name: str) -> None:
    with (PROGRAMS / name).open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        tags = [(tag.entry.d_tag, getattr(tag, "needed", "")) for tag in section.iter_tags()]
    needed = {name for tag, name in tags if tag == "DT_NEEDED"}
    assert "libcuda.so.1" in needed
    assert needed <= {"libcuda.so.1", "libc.so.6", "libdl.so.2", "libpthread.so.0"}
    assert not {tag for tag, _ in tags} & {"DT_RPATH", "DT_RUNPATH"}


@pytest.mark.realtime
def test_alone_it_gets_all_of_the_gpu(tmp_path: Path) -> None:
    told = got(run(tmp_path, "--seconds", "0.5"))
    assert told["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert told["free_bytes"] == told["total_bytes"] - CONTEXT
    assert told["free_bytes"] - UNIT < told["got_bytes"] <= told["free_bytes"]
    assert told["nvml"]["total_bytes"] - UNIT < told["nvml"]["used_bytes"] <= told["nvml"]["total_bytes"]
    assert told["nvml"]["processes"] == 1
    assert told["share_percent"] == pytest.approx(100, abs=3)


@pytest.mark.parametrize("more", [(), ("--graph",), ("--exact",), ("--graph", "--exact")])
def test_a_launch_is_worth_its_work(tmp_path: Path, more: tuple[str, ...]) -> None:
    told = got(run(tmp_path, "--seconds", "0.3", "--kernel-us", "1000", "--block-mib", "0", *more))
    assert told["unit_ns"] == 1_000_000 * (4 if "--graph" in more else 1)
    assert told["refusal"] == "CUDA_SUCCESS"
    assert told["got_bytes"] == 0


def test_without_seconds_only_memory_is_taken(tmp_path: Path) -> None:
    told = got(run(tmp_path, "--seconds", "0", "--block-mib", "1024"))
    assert (told["launches"], told["share_percent"]) == (0, 0)
    assert told["free_bytes"] - UNIT < told["got_bytes"] <= told["free_bytes"]


def test_it_waits_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    assert got(run(tmp_path, "--seconds", "0", "--after", str(tmp_path / "go")))["got_bytes"] > GIB


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--second", "1"), 2, "slice: unknown option --second\n"),
        (("--seconds",), 2, "slice: --seconds needs a number from 0 up, got nothing\n"),
        (("--block-mib", "-1"), 2, "slice: --block-mib needs a number from 0 up, got -1\n"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)


def test_where_there_is_no_gpu_it_says_which_call_failed(tmp_path: Path) -> None:
    done = run(tmp_path, profile="none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "slice: cuInit(0) failed: CUDA_ERROR_" in done.stderr
