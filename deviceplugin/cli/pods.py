"""`vcuda pods`: the pods with GPUs, where they are, or why they wait.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML.
"""

import asyncio

import click

from deviceplugin import log
from deviceplugin.cli.command import OperatorCommand, headers_option, node_name, output_option
from deviceplugin.cli.completing import complete_node
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.listing import Shape, show_notes, show_rows
from deviceplugin.cli.pod_rows import PODS
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.cli.view_client import Found, ViewClient
from deviceplugin.model.cluster_view import PodRow, PodStage

_EXAMPLES = (
    ("Pods with GPUs in the context's namespace.", "pods"),
    ("All pods that wait, the oldest first, with the reason.", "pods -A --status waiting --sort-by age"),
    ("Who is on a node.", "pods -A --node node-a"),
)


@click.command("pods", cls=OperatorCommand, examples=_EXAMPLES)
@all_namespaces_option
@click.option("--node", "on_node", default="", help="Only pods on this node.", shell_complete=complete_node)
@click.option(
    "--status", type=click.Choice([each.value for each in PodStage]), help="Only pods that wait, are reserved or bound."
)
@click.option(
    "--sort-by", type=click.Choice(list(PODS.sorts)), default="name", show_default=True, help="Order of rows."
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@output_option("table", "wide", "json", "yaml", "name")
@headers_option
@connected
def pods(
    all_namespaces: bool,
    on_node: str,
    status: str | None,
    sort_by: str,
    reverse: bool,
    output: str,
    no_headers: bool,
    connection: Connection,
) -> None:
    """List pods that request GPUs: node and GPUs of those that have them, and why the others wait.

    Waiting: no node is chosen. Reserved: GPUs are chosen, and the pod is being bound. Bound: the pod has its node.
    `explain` says more about one pod.
    """
    log.open_log(level="error", format_="console")
    query = {"stage": status} if status else {}
    query |= {"node": node_name(on_node)} if on_node else {}
    found = asyncio.run(_read(connection, query, all_namespaces=all_namespaces))
    rows = PODS.ordered(found.rows, sort_by, reverse=reverse)
    kind = PODS if all_namespaces else PODS.without("NAMESPACE")
    show_rows(kind, rows, at=found.at, shape=Shape(output, no_headers))


async def _read(connection: Connection, query: dict[str, str], *, all_namespaces: bool) -> Found[PodRow]:
    async with opened(connection) as client:
        view = ViewClient(client)
        found = await view.pods(query if all_namespaces else {**query, "namespace": client.namespace})
        show_notes(view)
        return found
