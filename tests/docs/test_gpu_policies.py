"""The page about GPU policies shows what the program answers."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.findall(r"^\$ vcuda (.+)\n((?:.+\n)+)", (ROOT / "docs/gpu-policies.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("command", "answer"), SHOWN)
def test_each_command_of_the_page_answers_as_shown(command: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(main, shlex.split(command))
    said = result.output.removeprefix("vcuda: ")
    assert said == answer.removesuffix("```\n")


def test_the_page_shows_commands() -> None:
    assert len(SHOWN) >= 8
