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

from tests.ledger.crash.scenario import MODES, SAID_AGAIN, STEPS

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_SIGKILL = -9


@pytest.fixture(scope="module")
def crashpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("crash") / "crashpoint.so"
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(_HERE / "crash" / "crashpoint.c"), "-ldl"], check=True, timeout=60)
    return library


Points = list[dict[str, Any]]


def run_every_point(crashpoint: Path, start: str) -> tuple[dict[str, Points], list[list[str]]]:
    """By mode. One process tries all of them: it takes longer to start than to crash its children."""
    driver = subprocess.run(
        [sys.executable, "-m", "tests.ledger.crash.driver", start, *MODES],
        cwd=_ROOT,
        env={**os.environ, "LD_PRELOAD": str(crashpoint)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    *points, summary = map(json.loads, driver.stdout.splitlines())
    assert summary["calls"] >= 2 * len(STEPS)
    found: dict[str, Points] = {mode: [point for point in points if point["mode"] == mode] for mode in MODES}
    numbers = list(range(1, summary["calls"] + 1))
    assert {mode: [point["number"] for point in each] for mode, each in found.items()} == dict.fromkeys(MODES, numbers)
    return found, summary["expected"]


@pytest.mark.parametrize("start", ["fresh", "torn", "damaged"])
def test_no_crash_and_no_disk_error_at_any_change_to_the_disk_loses_what_was_answered(
    crashpoint: Path, start: str, subtests: pytest.Subtests
) -> None:
    found, expected = run_every_point(crashpoint, start)
    if start == "damaged":
        assert any("old-2" in line for line in expected[0])
    for mode, points in found.items():
        check = refused if mode in ("nospace", "ioerror") else set_aside if start == "damaged" else kept
        with subtests.test(mode=mode):
            for point in points:
                check(point, expected)


def kept(point: dict[str, Any], expected: list[list[str]]) -> None:
    assert point["status"] == _SIGKILL
    assert point["state"] in possible(point, expected), point
    assert point["warnings"] == 0, point


def set_aside(point: dict[str, Any], expected: list[list[str]]) -> None:
    """No more is lost than the damage."""
    assert point["state"] in possible(point, expected), point
    assert point["copies"], point


def possible(point: dict[str, Any], expected: list[list[str]]) -> list[list[str]]:
    """The states before and after the step at which it died."""
    done = point["acknowledged"] - 1  # the first is the opening
    if done < 0:
        return expected[:1]
    is_open = point["mode"] == "power" and done - 1 in SAID_AGAIN
    return expected[done - is_open : done + 2]


def refused(point: dict[str, Any], expected: list[list[str]]) -> None:
    """The transition is, and it changes nothing."""
    assert point["status"] == 0, point
    assert point["state"] == expected[-1], point
