"""Every program under benchmarks/ runs in its short form, prints its figures, and fails in one sentence.

Its figures are those that docs/measurements.md lists by their keys.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from benchmarks.command import make
from benchmarks.traces import example
from tests.own_network import own_network
from tests.waiting import PATIENCE_S, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "agent",
    "call_path",
    "dra",
    "extender",
    "dearest",
    "volcano",
    "library",
    "operator_commands",
    "placement",
    "sharing",
    "hiding",
    "traces.held_out",
)
ELSEWHERE = {"page", "gpu.__main__"}
"""The page needs a browser; the GPU's program runs in gpu/test_run.py."""
PARTS = {"bare", "bare_dra", "pods_call", "cluster.agents", "cluster.empty", "cluster.stub", "gpu.single"}
"""Processes that a benchmark starts for itself."""


PAGE = (REPOSITORY / "docs" / "measurements.md").read_text()
WITHOUT_KEYS = {"placement", "sharing", "hiding", "dearest", "traces.held_out"}
"""Rows of their tables are cases."""


def listed(program: str) -> set[str]:
    """The keys in the first column of the tables for this program; `| key, ...` is of another way to start it."""
    after = re.split(rf"-m benchmarks\.{re.escape(program)}\b", PAGE, maxsplit=1)[1]
    section = re.split(r"-m benchmarks\.|^#", after, maxsplit=1, flags=re.MULTILINE)[0]
    tables = re.findall(r"^\| key \|.*\n(?:\|.*\n)+", section, re.MULTILINE)
    return {key for table in tables for row in table.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{program}", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def check_short_form(program: str) -> None:
    done = run(program, "--short", "--output", "json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    first, *more = printed if isinstance(printed, list) else [printed]
    assert all(row.keys() == first.keys() for row in more)
    figures = [value for row in (first, *more) for value in row.values() if isinstance(value, (int, float))]
    assert figures
    assert all(map(math.isfinite, figures)), printed
    assert listed(program) - first.keys() == set()
    assert bool(listed(program)) is (program not in WITHOUT_KEYS)


@pytest.mark.timeout(300)  # a busy machine makes a short form long, not wrong
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_short_form_prints_figures(program: str) -> None:
    check_short_form(program)


@pytest.mark.timeout(300)
def test_the_short_form_of_the_page_prints_figures(chromium: None) -> None:
    with own_network():
        check_short_form("page")


def test_every_program_runs_in_its_short_form_here() -> None:
    root = REPOSITORY / "benchmarks"
    names = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if 'if __name__ == "__main__"' in path.read_text() and path.parent.name != "inside"
    }
    assert names - {"traces.example"} == {*PROGRAMS, *ELSEWHERE, *PARTS}


def test_an_error_is_one_sentence_and_an_exit_status() -> None:
    done = run("traces.held_out", "/nowhere", "/nowhere/results", "default:as-is:binpack:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("benchmark: /nowhere/")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.timeout(300)
def test_a_benchmark_that_is_ended_ends_what_it_started() -> None:
    command = [sys.executable, "-m", "benchmarks.volcano", "--short"]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=PIPE, text=True, start_new_session=True) as process:
        assert eventually(lambda: len(of_session(process.pid)) > 2)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (1, "benchmark: interrupted\n")
    assert of_session(process.pid) == []


INTERRUPTED = """
import signal, subprocess
from benchmarks.command import ends_in_one_sentence

def main():
    subprocess.Popen(["sleep", "600"])  # known to nobody, as when the signal comes before Popen returns
    signal.raise_signal(signal.SIGTERM)

ends_in_one_sentence(main)
"""


def test_a_process_whose_start_is_interrupted_ends_too() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=PIPE, text=True, start_new_session=True) as process:
        try:
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            for left in of_session(process.pid):
                os.kill(left, signal.SIGKILL)
    assert (process.returncode, errors) == (1, "benchmark: interrupted\n")


def of_session(leader: int) -> list[int]:
    """The processes that a leader and its children started, zombies aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_what_make_says_is_not_among_the_figures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Makefile").write_text("all:\n\t@echo built\n")
    make(tmp_path)
    assert capfd.readouterr() == ("", "built\n")


def test_the_example_trace_is_made_by_its_program(tmp_path: Path) -> None:
    example.main(tmp_path)
    for name in ("example-nodes.csv", "example-pods.csv"):
        assert (tmp_path / name).read_bytes() == (REPOSITORY / "benchmarks/traces" / name).read_bytes()
