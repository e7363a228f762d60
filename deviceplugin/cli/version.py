"""`vcuda version`: the version of this command, and that of the scheduler that it asks.

In: the scheduler's view. Out: two lines, or JSON. Without a scheduler the first line is printed all the same.
"""

import click

from deviceplugin import __version__
from deviceplugin.cli.command import OperatorCommand, output_option
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.scheduler_client import asked
from deviceplugin.cli.terminal import show_document

_EXAMPLES = (("Both versions.", "version"), ("Only that of this command; no cluster is asked.", "version --client"))


@click.command("version", cls=OperatorCommand, examples=_EXAMPLES)
@click.option("--client", "only_client", is_flag=True, help="Only the version of this command.")
@output_option("table", "json", "yaml")
@connected
def version(only_client: bool, output: str, connection: Connection) -> None:
    """Print the versions of this command and of the scheduler."""
    if output == "table":
        click.echo(f"Client Version: {__version__}")
    found = "" if only_client else asked(connection, lambda client: client.cluster()).scheduler_version
    if output != "table":
        show_document({"clientVersion": __version__} | ({"schedulerVersion": found} if found else {}), output)
    elif found:
        click.echo(f"Scheduler Version: {found}")
