"""`vcuda config print` and `print-scheduler`: the settings that agent and scheduler would run with, and their origins.

In: the same flags, environment and file. Out: the effective file on standard output, ready to be given to --config,
with the origin of each value as a comment; or JSON. Nothing is started and nothing is written.
"""

import json
from typing import Any

import click
import yaml

from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.config.effective import Effective, Entry, Layer
from deviceplugin.config.file import API_VERSION
from deviceplugin.config.options import command_of, with_settings
from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings

_output = click.option(
    "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="How to print."
)


@click.group("config", short_help="Show the settings in force and where each came from.")
def config() -> None:
    """Show the settings in force and where each came from."""


@config.command("print", cls=command_of(AGENT), short_help="Those of `vcuda agent`.")
@with_settings(AGENT)
@_output
def print_agent(effective: Effective[AgentSettings], retired: tuple[str, ...], output: str) -> None:
    """Print the settings in force as a file for --config, with where each came from.

    Takes what `vcuda agent` takes.
    """
    _print(effective, retired, output)


@config.command("print-scheduler", cls=command_of(SCHEDULER), short_help="Those of `vcuda scheduler`.")
@with_settings(SCHEDULER)
@_output
def print_scheduler(effective: Effective[SchedulerSettings], retired: tuple[str, ...], output: str) -> None:
    """Print the settings in force as a file for --config, with where each came from.

    Takes what `vcuda scheduler` takes.
    """
    _print(effective, retired, output)


def _print(effective: Effective[Any], retired: tuple[str, ...], output: str) -> None:
    for sentence in retired:
        click.echo(f"vcuda: {sentence}", err=True)
    click.echo(_as_json(effective) if output == "json" else _as_yaml(effective))


def _as_json(effective: Effective[Any]) -> str:
    spec = {
        entry.setting.key: {"value": entry.plain, "from": entry.layer.value, "where": entry.where}
        for entry in effective.entries
    }
    return json.dumps({"apiVersion": API_VERSION, "kind": effective.program.kind, "spec": spec}, indent=2)


def _as_yaml(effective: Effective[Any]) -> str:
    head = f"apiVersion: {API_VERSION}\nkind: {effective.program.kind}\nspec:"
    pairs = [(_pair(entry), _origin(entry)) for entry in effective.entries]
    width = min(60, max(len(pair) for pair, _ in pairs))
    return "\n".join([head, *(f"  {pair:{width}}  # {origin}" for pair, origin in pairs)])


def _pair(entry: Entry) -> str:
    flow = yaml.safe_dump({entry.setting.key: entry.plain}, default_flow_style=True, width=float("inf"))
    return flow.strip().removeprefix("{").removesuffix("}")


def _origin(entry: Entry) -> str:
    if entry.layer is not Layer.DEFAULT:
        return entry.where
    return f"default: {entry.setting.derived}" if entry.setting.derived else "default"
