"""The command starts with whatever compiler a machine has (Library D11), and changes nothing of the GPU (D10)."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import build
from benchmarks.gpu.build import REPOSITORY

ALONE = ("gcc", "as", "ld")  # a compiler without make; as and ld are gcc's own
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> {record}
case "$(basename "$0")" in
nvidia-smi) echo "4096, 500" ;;
esac
"""
PROFILERS = ("ncu", "nsys", "compute-sanitizer", "nvidia-smi")
CHANGES_A_GPU = re.compile(
    r"nvmlDevice(Set|Reset)\w*|lock-(gpu|memory)-clocks|-lgc|-lmc|--(application|applications)-clocks|--power-limit|"
    r"--persistence-mode|--compute-mode|--multi-instance|--gpu-reset|nvidia-persistenced|nvidia-cuda-mps"
)


KEEPING = """
import runpy, shutil
from benchmarks.gpu import build
whole = build.build
def kept(scratch):
    made = whole(scratch)
    for name in ("ours", "driver"):
        shutil.copytree(getattr(made, name), {kept!r} + "/" + name)
    return made
build.build = kept
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""
"""The command, which leaves a copy of what it built."""


def gpu(
    scratch: Path, path: Path, *words: str, start: tuple[str, ...] = ("-m", "benchmarks.gpu"), **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command with nothing but PATH; its scratch directories come into `scratch`."""
    return subprocess.run(
        [sys.executable, *start, "--driver", "emulated", "--quick", *words],
        cwd=REPOSITORY,
        env={"PATH": str(path), "TMPDIR": str(scratch)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def only(directory: Path, *programs: str) -> Path:
    directory.mkdir()
    for name in programs:
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    return directory


def checks(results: Path) -> dict[str, str]:
    (path,) = results.glob("*.json")
    return {check["id"]: check["status"] for check in json.loads(path.read_text())["checks"]}


@pytest.fixture
def scratch(short_tmp: Path) -> Path:
    (short_tmp / "s").mkdir()
    return short_tmp / "s"


def test_a_compiler_alone_is_enough_and_builds_what_make_builds(
    short_tmp: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same names exported, needed and searched, in every file."""
    path, results = only(short_tmp / "bin", *ALONE), short_tmp / "results"
    words = ("--only", "T2.cuda,T2.nvml,T3,T9.identity", "--results", str(results))
    done = gpu(scratch, path, *words, start=("-c", KEEPING.format(kept=str(short_tmp))), CFLAGS="-O0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(checks(results).values()) == {"passed"}
    assert not list(scratch.iterdir())
    monkeypatch.setenv("CFLAGS", "-O0")
    build.by_make()
    theirs = {"ours": build.LIBRARY / "build/interposer", "driver": build.EMULATOR / "build"}
    files = [(folder / file.name, file) for name, folder in theirs.items() for file in (short_tmp / name).iterdir()]
    assert {file.name for _, file in files} == {*build.OURS, *build.DRIVER}
    assert [ours.name for made, ours in files if surface(ours) != surface(made)] == []


def surface(file: Path) -> list[str]:
    names = subprocess.run(["nm", "-D", "--defined-only", file], capture_output=True, text=True, check=True).stdout
    tags = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
    kept = re.findall(r"\((?:NEEDED|SONAME|RUNPATH|SYMBOLIC|FLAGS|FLAGS_1)\).*", tags)
    return sorted(line.split()[-1] for line in names.splitlines()) + sorted(" ".join(tag.split()) for tag in kept)


def test_no_command_of_the_run_changes_the_gpu(short_tmp: Path, scratch: Path) -> None:
    """Clocks, power, compute mode, MIG and persistence are the lender's: ncu locks clocks unless it is told not to."""
    record, path, results = short_tmp / "record", short_tmp / "bin", short_tmp / "results"
    path.mkdir()
    for name in PROFILERS:
        (path / name).write_text(RECORDER.format(record=record))
        (path / name).chmod(0o755)
    done = gpu(
        scratch,
        Path(f"{path}:{os.environ['PATH']}"),
        *("--only", "T2.nvidia-smi,T7.tools", "--results", str(results)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    commands = record.read_text().splitlines()
    assert {command.split()[0] for command in commands} == set(PROFILERS)
    for command in commands:
        assert not CHANGES_A_GPU.search(command), command
        assert "--clock-control none" in command or not command.startswith("ncu"), command
        assert "--query-gpu=" in command or not command.startswith("nvidia-smi"), command


def test_nothing_in_the_checks_names_what_changes_a_gpu() -> None:
    for path in (REPOSITORY / "benchmarks/gpu").rglob("*"):
        if path.suffix in {".py", ".c"}:
            assert not CHANGES_A_GPU.search(path.read_text()), path
