"""Both flavours can be mounted whole at every instant, also when the agent dies at it or the disk is full.

A preloaded library ends or fails a real process at each change that it makes, one run for each: `kill` before the call,
`half` in the middle of a copy or a write, `nospace` as a full disk. Only the thorough run tries every change.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples import every

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_SIGKILL = -9
_ORDER = ("nothing", "gpu-manager", "", "570.1", "580.1")
_WHOLE = {"570.1": ["570.1 old", "570.1"], "580.1": ["580.1 new", "580.1"]}


@pytest.fixture(scope="module")
def crashpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("crash") / "crashpoint.so"
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(_HERE / "crash" / "crashpoint.c"), "-ldl"], check=True, timeout=60)
    return library


@pytest.fixture
def memory() -> Iterator[Path]:
    """A file system in memory: waiting for a disk takes most of the time and decides nothing, for no power is lost."""
    with tempfile.TemporaryDirectory(prefix="vc-", dir="/dev/shm") as directory:
        yield Path(directory)


def run(crashpoint: Path, start: str, mode: str, directory: Path, *, stride: int = 1) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "tests.container.driver_mirror.crash.driver",
        start,
        mode,
        str(directory),
        str(stride),
    ]
    environment = {**os.environ, "LD_PRELOAD": str(crashpoint), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    *points, total = map(json.loads, done.stdout.splitlines())
    assert [point for point in points if "error" in point] == []
    assert len(points) == len(range(1, total["calls"] + 1, stride))
    assert total["calls"] > 50
    return points


@pytest.mark.timeout(900)  # hundreds of runs when thorough
@pytest.mark.parametrize(
    ("start", "mode", "stride"), [("gpu-manager", "kill", 1), ("mirrored", "kill", 1), ("mirrored", "half", 2)]
)
def test_a_killed_agent_leaves_both_flavours_whole_and_the_next_one_goes_on(
    crashpoint: Path, memory: Path, start: str, mode: str, stride: int
) -> None:
    points = run(crashpoint, start, mode, memory, stride=stride * every(5))
    assert {point["status"] for point in points} <= {_SIGKILL}
    for flavour in (0, 1):
        seen = [_ORDER.index(point["after"][flavour].partition(" ")[0]) for point in points]
        assert seen == sorted(seen), "nothing that was in place is lost, and nothing unfinished is ever in place"
        assert set(seen) == {_ORDER.index(each) for each in (*_BEFORE[start], "570.1", "580.1")}
    for point in points:
        nvidia, origin = point["after"]
        assert nvidia.partition(" ")[0] == origin or {nvidia, origin} <= {"gpu-manager", ""}, point
        assert point["reopened"] == (point["after"] if "gpu-manager" not in point["after"] else ["", ""]), point
        assert point["end"] == _WHOLE[point["loaded"]], point
        assert point["litter"] == [], point
        assert point["aside"] == (["nvidia.before-1", "origin.before-1"] if start == "gpu-manager" else []), point


_BEFORE = {"gpu-manager": ("gpu-manager", ""), "mirrored": ()}


@pytest.mark.parametrize(("start", "stride"), [("fresh", 4), ("mirrored", 2)])
def test_a_full_disk_is_one_sentence_and_the_next_look_succeeds(
    crashpoint: Path, memory: Path, start: str, stride: int
) -> None:
    for point in run(crashpoint, start, "nospace", memory, stride=stride * every(5)):
        assert point["status"] == 0, point
        assert point["after"] == point["end"] == _WHOLE["580.1"], point
        assert point["litter"] == [], point
