"""The settings as click options, and back: which flags were given on this command line.

In: a program. Out: a decorator that adds its flags and hands the command an `Effective`. Click only splits the command
line and prints help; values stay text until `effective` reads them, so that flag, variable and file are read alike.
Flags that no longer mean anything are accepted and reported.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from deviceplugin.config.effective import Effective, resolve
from deviceplugin.config.kinds import BOOLEAN
from deviceplugin.config.program import Program, Tree
from deviceplugin.config.setting import Section, Setting

_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class SettingsCommand(click.Command):
    """A command whose help lists the settings under the titles of their sections."""

    sections: tuple[Section, ...] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_name = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for branch in self.sections:
            shown = (by_name.pop(_name(leaf.flag)).get_help_record(ctx) for leaf in branch.settings)
            with formatter.section(branch.title):
                formatter.write_dl([record for record in shown if record])
        rest = (parameter.get_help_record(ctx) for parameter in by_name.values())
        with formatter.section("Other"):
            formatter.write_dl([record for record in rest if record])


def command_of(program: Program[Tree]) -> type[SettingsCommand]:
    """The class of a command that takes the program's settings."""
    return type("SettingsCommand", (SettingsCommand,), {"sections": program.sections})


def with_settings(program: Program[Tree]) -> _Decorator:
    """Adds every flag; the command is called with `effective` and with `retired`, sentences about dead flags."""

    def add_to(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def invoke(config: str | None, **given: str | None) -> None:
            dead = (flag for flag in program.retired if given.pop(_name(flag)) is not None)
            retired = tuple(f"--{flag} has no effect: {program.retired[flag]}" for flag in dead)
            flags = {setting.flag: given.pop(_name(setting.flag)) for setting in program.settings}
            set_ = {flag: text for flag, text in flags.items() if text is not None}
            command(effective=_resolve(program, set_, config), retired=retired, **given)

        wrapped: Callable[..., None] = invoke
        options = [_option(program, setting) for setting in program.settings]
        for add in reversed([*options, _config_option(program), *map(_retired_option, program.retired)]):
            wrapped = add(wrapped)
        return wrapped

    return add_to


def _resolve(program: Program[Tree], flags: dict[str, str], config: str | None) -> Effective[Tree]:
    return resolve(program, flags=flags, env=os.environ, file=Path(config) if config else None)


def _name(flag: str) -> str:
    return flag.replace("-", "_")


def _option(program: Program[Tree], setting: Setting) -> _Decorator:
    default = f"; default: {setting.default_text}" if setting.default_text else ""
    return click.option(
        setting.option,
        _name(setting.flag),
        metavar=setting.kind.metavar,
        help=f"{setting.doc}  [env: {', '.join(program.variables(setting))}{default}]",
        hidden=setting.hidden,
        **_go_boolean(setting.kind is BOOLEAN),
    )


def _go_boolean(boolean: bool) -> dict[str, Any]:
    """`--share-mode` alone is true, as with Go's flags."""
    return {"is_flag": False, "flag_value": "true"} if boolean else {"type": str}


def _config_option(program: Program[Tree]) -> _Decorator:
    return click.option(
        "--config", metavar="PATH", help=f"YAML file with settings, apiVersion vcuda/v1.  [env: {program.file_env}]"
    )


def _retired_option(flag: str) -> _Decorator:
    return click.option(f"--{flag}", _name(flag), is_flag=False, flag_value="true", hidden=True)
