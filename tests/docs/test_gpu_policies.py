"""The page about policies shows what the program answers."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.findall(r"^\$ vcuda (.+)\n((?:.+\n)+)", (ROOT / "docs/policies.md").read_text(), re.MULTILINE)


def test_each_command_of_the_page_answers_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said = [(command, CliRunner().invoke(main, shlex.split(command)).output) for command, _ in SHOWN]
    shown = [(command, answer.removesuffix("```\n")) for command, answer in SHOWN]
    assert [(command, output.removeprefix("vcuda: ")) for command, output in said] == shown
    assert len(SHOWN) >= 4
