"""What scripts/test --cluster says before and while it builds."""

import re
from pathlib import Path

import click
import pytest

from scripts import programs
from scripts.programs import Step


@pytest.fixture(autouse=True)
def may_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane of these tests may not."""
    monkeypatch.delenv("VCUDA_BUILD", raising=False)


def script(folder: Path, name: str, text: str) -> Step:
    path = folder / name
    path.write_text(f"#!/bin/sh\n[ -e {folder}/{name}.made ] && exit 0\n[ -z $VCUDA_BUILD ] || exit 3\n{text}\n")
    path.chmod(0o755)
    return Step(f"the {name}", (str(path),), 61)


def test_only_what_is_missing_is_built_and_it_is_said_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [script(tmp_path, name, f"touch {tmp_path}/{name}.made") for name in ("first", "second", "third")]
    (tmp_path / "second.made").touch()
    wanted = programs.missing(steps)
    assert [step.title for step in wanted] == ["the first", "the third"]
    assert programs.announcement(wanted).splitlines()[2:] == [
        *("    1:01  the first", "    1:01  the third", "", "    2:02  together")
    ]
    programs.build(wanted)
    said = [line.strip() for line in re.split(r"[\r\n]+", capsys.readouterr().out) if line]
    assert said == ["[1/2] the first: done in 0:00", "[2/2] the third: done in 0:00"]
    assert programs.missing(steps) == []


def test_while_a_step_goes_on_one_line_says_which_of_how_many_and_since_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_EVERY_S", 0.01)
    gate = tmp_path / "gate"
    step = script(tmp_path, "slow", f"while [ ! -e {gate} ]; do sleep 0.05; done")

    def echo(text: str, **_: object) -> None:
        gate.touch()
        print(text)

    monkeypatch.setattr(click, "echo", echo)
    programs.build([step])
    assert capsys.readouterr().out.splitlines()[0] == "[1/1] the slow: 0:00 (elsewhere 1:01)"


def test_a_step_that_fails_ends_all_with_its_last_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [script(tmp_path, "broken", "seq 100; echo no Go here >&2; exit 1"), script(tmp_path, "next", "")]
    with pytest.raises(SystemExit) as ended:
        programs.build(steps)
    assert ended.value.code == 1
    said = capsys.readouterr().out.strip().splitlines()
    assert "[1/2] the broken: failed after 0:00" in said[0]
    assert (said[-1], len(said)) == ("no Go here", 21)


def test_the_real_scripts_can_be_asked_without_building(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is there in an empty cache, and asking leaves it empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built = [step for step in programs.STEPS if not step.title.startswith("Debian's")]
    assert programs.missing(built) == built
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
