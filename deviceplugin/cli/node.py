"""`vcuda node NAME`: the picture of one node, once or until it is stopped.

In: the scheduler's view of the node. Out: text, or the row as JSON or YAML.
"""

import asyncio

import click
import msgspec

from deviceplugin import log
from deviceplugin.cli.command import OperatorCommand, node_name, output_option
from deviceplugin.cli.completing import complete_node
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.listing import say, show_document, show_notes
from deviceplugin.cli.node_picture import glyphs, picture
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.cli.screen import Frame, Page, is_interactive, watch
from deviceplugin.cli.table import terminal_width
from deviceplugin.cli.view_client import ViewClient
from deviceplugin.model.cluster_view import NodeRow

_EXAMPLES = (
    ("The GPUs of a node, who holds what, and what is used.", "node node-a"),
    ("The same, refreshed until you press q.", "node node-a --watch"),
)


@click.command("node", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("name", shell_complete=complete_node)
@click.option("-w", "--watch", "watching", is_flag=True, help="Refresh every 2 seconds, until q is pressed.")
@output_option("table", "wide", "json", "yaml", "name")
@connected
def node(name: str, watching: bool, output: str, connection: Connection) -> None:
    """Show one node: its GPUs by NUMA node, how much of each is held and used, and by whom.

    NAME is the name of a node, or node/NAME.
    """
    log.open_log(level="error", format_="console")
    asyncio.run(_show(connection, node_name(name), output, watching=watching and is_interactive()))


async def _show(connection: Connection, name: str, output: str, *, watching: bool) -> None:
    async with opened(connection) as client:
        view = ViewClient(client)
        row, _ = await view.node(name, live=True)
        if watching and output in ("table", "wide"):
            await watch(lambda frame: _frame(view, name, frame))
        else:
            show_notes(view)
            _print(row, output)


async def _frame(view: ViewClient, name: str, frame: Frame) -> Page:
    row, _ = await view.node(name, live=True)
    return Page(picture(row, glyphs(), width=frame.width))


def _print(row: NodeRow, output: str) -> None:
    if output == "name":
        say(f"node/{row.node}")
    elif output in ("json", "yaml"):
        show_document(msgspec.to_builtins(row), output)
    else:
        say("\n".join(picture(row, glyphs(), width=None if output == "wide" else terminal_width())))
