"""`vcuda agent` and `vcuda scheduler`, and `vcuda config`, which prints their settings and the origin of each.

In: flags, environment, file. Out: the exit status; of `config` a file for --config, with the origin of each value as a
comment, or JSON. What runs is imported only after the settings were found good, so that `--help` and a wrong flag
answer at once. A VcudaError goes on to `vcuda`; anything else is a bug: status 70, and the traceback in the log.
"""

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
import structlog
import yaml

from deviceplugin import __version__, log
from deviceplugin.cli.command import output_option
from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.config.command import API_VERSION, Effective, EffectiveValue, LogSettings, SettingsCommand
from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings
from deviceplugin.errors import VcudaError

Settings = TypeVar("Settings")


def _print_version(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    """gpu-manager's flag has a value, or none."""
    if value in ("true", "raw"):
        click.echo(__version__)
        context.exit()


@click.command("agent", cls=SettingsCommand, program=AGENT)
@click.option(
    "--version",
    type=click.Choice(("true", "false", "raw")),
    is_flag=False,
    flag_value="true",
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def agent(effective: Effective[AgentSettings]) -> None:
    """Allocate this node's GPUs, and shares of them, to pods through kubelet.

    The value of a setting is that of its flag; without the flag that of its environment variable; without both that of
    its key in the file of --config; else the default. `vcuda config print` shows the effective settings.
    """
    _open_log(effective, effective.settings.log)
    from deviceplugin.agent.run import run

    _serve(run, effective.settings, logger="vcuda.agent")


@click.command("scheduler", cls=SettingsCommand, program=SCHEDULER)
def scheduler(effective: Effective[SchedulerSettings]) -> None:
    """Serve the webhook that completes GPU pods and the scheduler extender that chooses node and GPUs for them.

    The value of a setting is that of its flag; without the flag that of its environment variable; without both that of
    its key in the file of --config; else the default. `vcuda config print-scheduler` shows the effective settings.
    """
    _open_log(effective, effective.settings.log)
    from deviceplugin.scheduler.run import run

    _serve(run, effective.settings, logger="vcuda.scheduler")


def _open_log(effective: Effective[Settings], settings: LogSettings) -> None:
    log.open_log(level=settings.level.value)
    logger = structlog.get_logger("vcuda.config")
    for sentence in effective.retired:
        logger.warning("flag_retired", error=sentence)
    logger.info("effective_settings", version=__version__, file=str(effective.file or ""), set=effective.changed())


def _serve(run: Callable[[Settings], None], settings: Settings, *, logger: str) -> None:
    try:
        run(settings)
    except VcudaError:
        raise
    except Exception:
        structlog.get_logger(logger).exception("internal_error")
        raise SystemExit(os.EX_SOFTWARE) from None  # supervisors and people can tell a bug from a refusal


@click.group("config")
def config() -> None:
    """Print the effective settings and the origin of each."""


@config.command("print", cls=SettingsCommand, program=AGENT, short_help="Those of `vcuda agent`.")
@output_option("yaml", "json", default="yaml")
def print_agent(effective: Effective[Any], output: str) -> None:
    """Print the effective settings of `vcuda agent` as a file for --config, with the origin of each value.

    Takes the same flags as `vcuda agent`.
    """
    _print(effective, output)


@config.command("print-scheduler", cls=SettingsCommand, program=SCHEDULER, short_help="Those of `vcuda scheduler`.")
@output_option("yaml", "json", default="yaml")
def print_scheduler(effective: Effective[Any], output: str) -> None:
    """Print the effective settings of `vcuda scheduler` as a file for --config, with the origin of each value.

    Takes the same flags as `vcuda scheduler`.
    """
    _print(effective, output)


def _print(effective: Effective[Any], output: str) -> None:
    for sentence in effective.retired:
        click.echo(f"vcuda: {sentence}", err=True)
    click.echo(_as_json(effective) if output == "json" else _as_yaml(effective))


def _as_json(effective: Effective[Any]) -> str:
    spec = {
        entry.setting.key: {"value": entry.plain, "from": entry.origin, "where": entry.where}
        for entry in effective.entries
    }
    return json.dumps({"apiVersion": API_VERSION, "kind": effective.program.kind, "spec": spec}, indent=2)


def _as_yaml(effective: Effective[Any]) -> str:
    head = f"apiVersion: {API_VERSION}\nkind: {effective.program.kind}\nspec:"
    pairs = [(_pair(entry), _origin(entry)) for entry in effective.entries]
    width = min(60, max(len(pair) for pair, _ in pairs))
    return "\n".join([head, *(f"  {pair:{width}}  # {origin}" for pair, origin in pairs)])


def _pair(entry: EffectiveValue) -> str:
    flow = yaml.safe_dump({entry.setting.key: entry.plain}, default_flow_style=True, width=float("inf"))
    return flow.strip().removeprefix("{").removesuffix("}")


def _origin(entry: EffectiveValue) -> str:
    if entry.where:
        return entry.where
    return f"default: {entry.setting.derived}" if entry.setting.derived else "default"
