"""Nothing granted is lost and nothing half done counts, whatever the instant at which the agent dies or the disk fails.

A preloaded library ends or fails a real process at each of its changes to the ledger's directory in turn, one run for
each: `kill` before the call, `half` in the middle of a write, `power` with all that was not synced taken back.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.crash.scenario import STEPS

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_SIGKILL = -9


@pytest.fixture(scope="module")
def crashpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("crash") / "crashpoint.so"
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(_HERE / "crash" / "crashpoint.c"), "-ldl"], check=True, timeout=60)
    return library


def run_every_point(crashpoint: Path, start: str, mode: str) -> tuple[list[dict[str, Any]], list[list[str]]]:
    driver = subprocess.run(
        [sys.executable, "-m", "tests.ledger.crash.driver", start, mode],
        cwd=_ROOT,
        env={**os.environ, "LD_PRELOAD": str(crashpoint)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    *points, summary = map(json.loads, driver.stdout.splitlines())
    assert summary["calls"] >= 2 * len(STEPS)
    assert [point["number"] for point in points] == list(range(1, summary["calls"] + 1))
    return points, summary["expected"]


@pytest.mark.parametrize("start", ["fresh", "torn"])
@pytest.mark.parametrize("mode", ["kill", "half", "power"])
def test_a_crash_at_any_change_to_the_disk_keeps_all_that_was_answered(crashpoint: Path, start: str, mode: str) -> None:
    points, expected = run_every_point(crashpoint, start, mode)
    for point in points:
        assert point["status"] == _SIGKILL
        done = point["acknowledged"] - 1  # the first is the opening
        possible = expected[:1] if done < 0 else expected[done : done + 2]
        assert point["state"] in possible, point
        assert point["warnings"] == 0, point


@pytest.mark.parametrize("mode", ["kill", "half", "power"])
def test_a_crash_while_damage_is_set_aside_loses_no_more_than_the_damage(crashpoint: Path, mode: str) -> None:
    points, expected = run_every_point(crashpoint, "damaged", mode)
    assert any("old-2" in line for line in expected[0])
    for point in points:
        done = max(point["acknowledged"] - 1, 0)
        assert point["state"] in expected[done : done + 2], point
        assert point["copies"], point


@pytest.mark.parametrize("start", ["fresh", "torn", "damaged"])
@pytest.mark.parametrize("mode", ["nospace", "ioerror"])
def test_a_disk_error_at_any_change_refuses_the_transition_and_changes_nothing(
    crashpoint: Path, start: str, mode: str
) -> None:
    points, expected = run_every_point(crashpoint, start, mode)
    for point in points:
        assert point["status"] == 0, point
        assert point["state"] == expected[-1], point
