"""How every command ends: a refusal, a wrong command line, or a bug."""

import click
import pytest
from click.testing import CliRunner, Result

from deviceplugin.cli import LazyGroup, main
from deviceplugin.errors import ConfigError

ENDS: dict[str, Exception] = {
    "refuse": ConfigError("the flag --x is wrong; leave it out"),
    "bug": KeyError("secret detail"),
    "usage": click.UsageError("no such thing"),
    "exit": click.exceptions.Exit(3),
}


class _Ending(LazyGroup):
    """The real group, with commands that end in every way."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        def end() -> None:
            raise ENDS[cmd_name]

        return click.Command(cmd_name, callback=end)


def run(name: str, **env: str) -> Result:
    return CliRunner().invoke(_Ending("vcuda"), [name], env={"VCUDA_DEBUG": None, **env})


def test_a_refusal_is_one_line_and_status_1() -> None:
    result = run("refuse")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "vcuda: the flag --x is wrong; leave it out\n"


def test_a_bug_is_one_general_sentence_without_its_details() -> None:
    result = run("bug")
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr.startswith("vcuda: ")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


def test_a_bug_shows_its_traceback_where_that_was_asked_for() -> None:
    assert isinstance(run("bug", VCUDA_DEBUG="1").exception, KeyError)


def test_clicks_own_ends_are_left_alone(subtests: pytest.Subtests) -> None:
    for name, status in [("usage", 2), ("exit", 3)]:
        with subtests.test(name=name):
            assert run(name).exit_code == status


def test_the_help_lists_every_command_without_importing_it() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("agent", "config", "place"))
