"""The whole command on the emulated driver: some checks, quick, from an empty environment to the results file."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import plan
from benchmarks.gpu.build import REPOSITORY

LIGHT = "T1.async,T2.cuda,T2.nvml,T2.torch,T3,T7.fork,T7.capture,T8.host,T9"


def run(
    results: Path, *words: str, python: tuple[str, ...] = (sys.executable,), timeout_s: float = 58
) -> subprocess.CompletedProcess[str]:
    command = [*python, "-m", "benchmarks.gpu", "--driver", "emulated", "--short", "--results", str(results), *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s, check=False)


def checks(results: Path) -> dict[str, dict[str, Any]]:
    (path,) = results.glob("*-emulated-*.json")
    found = json.loads(path.read_text())
    assert found["emulated"] is True
    assert found["why_this_driver"] == "asked for"
    return {check["id"]: check for check in found["checks"]}


def test_checks_run_without_any_package_on_the_emulated_driver_and_say_how_it_went(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", LIGHT, python=(sys.executable, "-S"))
    found = checks(tmp_path)
    wrong = {name: check["reason"] for name, check in found.items() if check["status"] == "failed"}
    assert not wrong, done.stdout + done.stderr
    assert done.returncode == 0
    assert found["T2.torch"]["status"] == "not run"
    assert "PyTorch" in found["T2.torch"]["reason"]
    assert found["T1.async"]["figures"]["4 GiB"]["got_mib"] == 3584
    assert found["T9.identity"]["figures"]["differ"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("topic", ["T10", "T11", "T12", "T13", "T14"])
def test_each_experiment_runs_to_its_end(tmp_path: Path, topic: str) -> None:
    """Each ends by itself, with its figures. Memory is within the limit too; of times a busy machine decides."""
    words = ("--only", topic, "--repeats", "1", "--window", "0.3")
    done = run(tmp_path, *words, timeout_s=280)
    found = checks(tmp_path)
    assert found.keys() == {check.id for check in plan.chosen(topic)}, done.stdout + done.stderr
    for name, check in found.items():
        assert check["status"] != "failed" or topic != "T10", (name, check["reason"])
        ended = check["status"] == "not run" or check["figures"]
        assert ended, (name, check["reason"])
        assert not re.search(r"was still running|said nothing|Error", check["reason"]), (name, check["reason"])


def test_a_later_run_keeps_the_checks_of_the_one_before(tmp_path: Path) -> None:
    """As on a borrowed machine: each command writes into an empty folder, and the next gets what it left."""
    first, second = tmp_path / "first", tmp_path / "second"
    run(first, "--only", "T2.cuda", "--commit", "a")
    (left,) = first.glob("*.json")
    second.mkdir()
    shutil.copy(left, second / f"2026-01-01-{left.name[11:]}")  # of another day
    run(second, "--only", "T9.exports", "--merge")
    (path,) = second.glob(f"{left.name[:11]}*.json")
    found = {check["id"]: check for check in json.loads(path.read_text())["checks"]}
    assert list(found) == ["T9.exports", "T2.cuda"]
    assert all(check["date"] and check["commit"] for check in found.values())


def test_without_a_gpu_the_real_driver_is_refused_in_a_sentence(tmp_path: Path) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    done = run(tmp_path, "--driver", "real")
    assert done.returncode == 2
    assert "nothing can be run: no driver can be used" in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_directory_of_results_holds_nothing_of_a_gpu_that_was_not_there() -> None:
    """Each file says what it was measured on, and its name agrees."""
    for path in (REPOSITORY / "benchmarks/results").glob("*.json"):
        found = json.loads(path.read_text())
        assert found["emulated"] == ("-emulated-" in path.name), path
        assert {"T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9"} <= {
            c["id"].split(".")[0] for c in found["checks"]
        }
        assert path.with_suffix(".md").stat().st_size > 0
