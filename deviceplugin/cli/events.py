"""`vcuda events`: what happened lately to pods with GPUs, to nodes and to GPUs.

In: the scheduler's view. Out: a table, the newest last as `kubectl events` has it, or the rows as JSON or YAML.
"""

import asyncio

import click

from deviceplugin import log
from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand, headers_option, node_name, output_option
from deviceplugin.cli.completion import complete_node
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.listing import Field, Kind, Shape, Sort, show_rows
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.cli.view_client import Found, ViewClient
from deviceplugin.model.cluster_view import ClusterEventKind, ClusterEventRow

_EXAMPLES = (
    ("What happened to the pods of the context's namespace.", "events"),
    ("What happened to all pods, nodes and GPUs.", "events -A"),
    ("GPUs that stopped to take pods, or take them again.", "events -A --kind gpu"),
)


def _object(row: ClusterEventRow) -> str:
    return f"pod/{row.pod}" if row.uid else f"node/{row.node}"


EVENTS: Kind[ClusterEventRow] = Kind(
    what="events",
    columns=(
        Field("NAMESPACE", rank=4, text=lambda row, _: row.namespace),
        Field("LAST SEEN", right=True, text=lambda row, at: q.age(at - row.at)),
        Field("KIND", rank=2, text=lambda row, _: row.kind.value),
        Field("OBJECT", text=lambda row, _: _object(row)),
        Field("NODE", rank=3, text=lambda row, _: row.node),
        Field("COUNT", rank=8, wide=True, right=True, text=lambda row, _: str(row.count)),
        Field("FIRST SEEN", rank=8, wide=True, right=True, text=lambda row, at: q.age(at - row.first)),
        Field("MESSAGE", rank=1, text=lambda row, _: row.sentence),
    ),
    sorts={"age": Sort(lambda row: (row.at,), largest_first=False)},
    name=_object,
)


@click.command("events", cls=OperatorCommand, examples=_EXAMPLES)
@all_namespaces_option
@click.option("--node", "on_node", default="", help="Only events on this node.", shell_complete=complete_node)
@click.option("--kind", type=click.Choice([each.value for each in ClusterEventKind]), help="Only events of this kind.")
@output_option("table", "wide", "json", "yaml", "name")
@headers_option
@connected
def events(
    all_namespaces: bool, on_node: str, kind: str | None, output: str, no_headers: bool, connection: Connection
) -> None:
    """List what happened lately, the newest last.

    Placed: a pod got its node and GPUs. Waits: kube-scheduler found no node for a pod. Ended: a pod ended or was
    deleted. Node and gpu: one that takes pods, or takes none any more; these belong to no namespace, and -A lists them.

    The scheduler keeps the last 500 of each kind since it started; those of Kubernetes stay in `kubectl events`.
    """
    log.open_log(level="error", format_="console")
    query = {"kind": kind} if kind else {}
    query |= {"node": node_name(on_node)} if on_node else {}
    found = asyncio.run(_read(connection, query, all_namespaces=all_namespaces))
    shown = EVENTS if all_namespaces else EVENTS.without("NAMESPACE")
    show_rows(shown, EVENTS.ordered(found.rows, "age"), at=found.at, shape=Shape(output, no_headers))


async def _read(connection: Connection, query: dict[str, str], *, all_namespaces: bool) -> Found[ClusterEventRow]:
    async with opened(connection) as client:
        return await ViewClient(client).events(query if all_namespaces else {**query, "namespace": client.namespace})
