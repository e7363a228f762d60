"""`vcuda nodes`: the nodes with GPUs, and what of them is held and free.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML.
"""

import asyncio

import click

from deviceplugin import log
from deviceplugin.cli.command import OperatorCommand, headers_option, output_option
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.listing import Shape, show_notes, show_rows
from deviceplugin.cli.node_rows import NODES
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.cli.view_client import Found, ViewClient
from deviceplugin.model.cluster_view import NodeRow

_EXAMPLES = (
    ("List nodes with their GPUs and what is free.", "nodes"),
    ("Nodes with free A100 GPUs, those with most free GPUs first.", "nodes --model a100 --free --sort-by free"),
    ("Nodes that take no pods, and why.", "nodes --problems -o wide"),
    ("As JSON, with every GPU and who holds it.", "nodes --gpus -o json"),
)


@click.command("nodes", cls=OperatorCommand, examples=_EXAMPLES)
@click.option("--model", default="", metavar="TEXT", help="Only nodes with a GPU whose model contains this.")
@click.option("--free", is_flag=True, help="Only nodes with a free GPU.")
@click.option("--problems", is_flag=True, help="Only nodes that take no pods, or have unusable GPUs.")
@click.option("--gpus", is_flag=True, help="With -o json or yaml: also every GPU and who holds it.")
@click.option(
    "--sort-by", type=click.Choice(list(NODES.sorts)), default="name", show_default=True, help="Order of rows."
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@output_option("table", "wide", "json", "yaml", "name")
@headers_option
@connected
def nodes(
    model: str,
    free: bool,
    problems: bool,
    gpus: bool,
    sort_by: str,
    reverse: bool,
    output: str,
    no_headers: bool,
    connection: Connection,
) -> None:
    """List nodes with their GPUs: how much is held, and what is free.

    CORES and MEMORY are what pods hold, of what the node has; 100 cores are one GPU. FREE counts usable GPUs of which
    nothing is held.
    """
    log.open_log(level="error", format_="console")
    if free and problems:
        raise click.UsageError("--free and --problems ask for different nodes; give one of them")
    query = {"model": model} if model else {}
    query |= {"state": "free"} if free else {"state": "problem"} if problems else {}
    query |= {"gpus": "1"} if gpus and output in ("json", "yaml") else {}
    found = asyncio.run(_read(connection, query))
    rows = NODES.ordered(found.rows, sort_by, reverse=reverse)
    show_rows(NODES, rows, at=found.at, shape=Shape(output, no_headers))


async def _read(connection: Connection, query: dict[str, str]) -> Found[NodeRow]:
    async with opened(connection) as client:
        view = ViewClient(client)
        found = await view.nodes(query)
        show_notes(view)
        return found
