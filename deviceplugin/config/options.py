"""The settings as click options, and back: which flags were given on this command line.

In: the tree of `agent`. Out: a decorator that adds the flags and hands the command an `Effective`. Click only splits
the command line and prints help; values stay text until `effective` reads them, so that flag, variable and file are
read alike. Three flags of the lineage that no longer mean anything are accepted and reported.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from deviceplugin.config.agent import AgentSettings
from deviceplugin.config.effective import FILE_ENV, Effective, resolve
from deviceplugin.config.kinds import BOOLEAN
from deviceplugin.config.setting import Setting, sections_of, settings_of

RETIRED = {
    "standalone": "the agent always speaks with a kubelet",
    "incluster-mode": "without --kubeconfig the agent speaks with the API server as a pod of the cluster does",
    "docker-endpoint": "the container runtime is reached through CRI, see --container-runtime-endpoint",
}


class SettingsCommand(click.Command):
    """A command whose help lists the settings under the titles of their sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_name = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for branch in sections_of(AgentSettings):
            shown = (by_name.pop(_name(leaf.flag)).get_help_record(ctx) for leaf in branch.settings.values())
            with formatter.section(branch.title):
                formatter.write_dl([record for record in shown if record])
        rest = (parameter.get_help_record(ctx) for parameter in by_name.values())
        with formatter.section("Other"):
            formatter.write_dl([record for record in rest if record])


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Adds every flag; the command is called with `effective` and with `retired`, sentences about dead flags."""

    @functools.wraps(command)
    def invoke(config: str | None, **given: str | None) -> None:
        retired = [
            f"--{flag} has no effect: {why}" for flag, why in RETIRED.items() if given.pop(_name(flag)) is not None
        ]
        flags = {setting.flag: given.pop(_name(setting.flag)) for setting in settings_of(AgentSettings)}
        set_ = {flag: text for flag, text in flags.items() if text is not None}
        command(effective=_resolve(set_, config), retired=tuple(retired), **given)

    wrapped: Callable[..., None] = invoke
    options = [_option(setting) for setting in settings_of(AgentSettings)]
    for add in reversed([*options, _config_option(), *map(_retired_option, RETIRED)]):
        wrapped = add(wrapped)
    return wrapped


def _resolve(flags: dict[str, str], config: str | None) -> Effective:
    return resolve(flags=flags, env=os.environ, file=Path(config) if config else None)


def _name(flag: str) -> str:
    return flag.replace("-", "_")


def _option(setting: Setting) -> Callable[[Callable[..., None]], Callable[..., None]]:
    default = f"; default: {setting.default_text}" if setting.default_text else ""
    return click.option(
        setting.option,
        _name(setting.flag),
        metavar=setting.kind.metavar,
        help=f"{setting.doc}  [env: {', '.join(setting.env)}{default}]",
        hidden=setting.hidden,
        **_go_boolean(setting.kind is BOOLEAN),
    )


def _go_boolean(boolean: bool) -> dict[str, Any]:
    """`--share-mode` alone is true, as with Go's flags."""
    return {"is_flag": False, "flag_value": "true"} if boolean else {"type": str}


def _config_option() -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--config", metavar="PATH", help=f"YAML file with settings, apiVersion vcuda/v1.  [env: {FILE_ENV}]"
    )


def _retired_option(flag: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(f"--{flag}", _name(flag), is_flag=False, flag_value="true", hidden=True)
