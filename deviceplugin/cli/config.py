"""`vcuda config print` and `print-scheduler`: the effective settings of agent and scheduler, and their origins.

In: the flags, environment and file of the agent or scheduler. Out: on standard output a file for --config, with the
origin of each value as a comment; or JSON. Nothing is started and nothing is written.
"""

import json
from typing import Any

import click
import yaml

from deviceplugin.cli.command import OutputForm
from deviceplugin.config.agent import AGENT
from deviceplugin.config.command import API_VERSION, Effective, EffectiveValue, SettingsCommand
from deviceplugin.config.scheduler import SCHEDULER

_output = click.Option(
    ["-o", "--output"], type=OutputForm(["yaml", "json"]), default="yaml", show_default=True, help="Output format."
)


@click.group("config")
def config() -> None:
    """Print the effective settings and the origin of each."""


@config.command("print", cls=SettingsCommand, program=AGENT, params=[_output], short_help="Those of `vcuda agent`.")
def print_agent(effective: Effective[Any], output: str) -> None:
    """Print the effective settings of `vcuda agent` as a file for --config, with the origin of each value.

    Takes the same flags as `vcuda agent`.
    """
    _print(effective, output)


@config.command(
    "print-scheduler",
    cls=SettingsCommand,
    program=SCHEDULER,
    params=[_output],
    short_help="Those of `vcuda scheduler`.",
)
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
