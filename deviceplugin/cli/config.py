"""`vcuda config print`: the settings that `vcuda agent` would run with, and where each came from.

In: the same flags, environment and file. Out: the effective file on standard output, ready to be given to --config,
with the origin of each value as a comment; or JSON. Nothing is started and nothing is written.
"""

import json

import click
import yaml

from deviceplugin.config.effective import Effective, Entry, Layer
from deviceplugin.config.file import API_VERSION, KIND
from deviceplugin.config.options import SettingsCommand, with_settings


@click.group("config", short_help="Show the settings in force and where each came from.")
def config() -> None:
    """Show the settings in force and where each came from."""


@config.command("print", cls=SettingsCommand)
@with_settings
@click.option("--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="How to print.")
def print_(effective: Effective, retired: tuple[str, ...], output: str) -> None:
    """Print the settings in force as a file for --config, with where each came from.

    Takes what `vcuda agent` takes.
    """
    for sentence in retired:
        click.echo(f"vcuda: {sentence}", err=True)
    click.echo(_as_json(effective) if output == "json" else _as_yaml(effective))


def _as_json(effective: Effective) -> str:
    spec = {
        entry.setting.key: {"value": entry.plain, "from": entry.layer.value, "where": entry.where}
        for entry in effective.entries
    }
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": spec}, indent=2)


def _as_yaml(effective: Effective) -> str:
    head = f"apiVersion: {API_VERSION}\nkind: {KIND}\nspec:"
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
