"""`vcuda pods`: the pods with GPUs, where they are, or why they wait.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML; the columns of pods and containers, `PODS` for
`vcuda pods`, `POD_USE` and `CONTAINER_USE` for `vcuda top`.
"""

import asyncio
from collections.abc import Iterable

import click
import msgspec

from deviceplugin import log
from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand, headers_option, node_name, output_option
from deviceplugin.cli.completion import complete_node
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.listing import Kind, Shape, Sort, show_rows
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.cli.table import Column
from deviceplugin.cli.view_client import Found, ViewClient
from deviceplugin.model.cluster_view import ContainerRow, PodRow, PodStage, ShareLive, ShareSource

_STATUS = {PodStage.WAITING: "Waiting", PodStage.RESERVED: "Reserved", PodStage.BOUND: "Bound"}


class ContainerEntry(msgspec.Struct, frozen=True):
    """One container and its pod, which has only this container here."""

    pod: PodRow
    container: ContainerRow


def entries(rows: Iterable[PodRow]) -> tuple[ContainerEntry, ...]:
    return tuple(
        ContainerEntry(msgspec.structs.replace(row, containers=(each,)), each)
        for row in rows
        for each in row.containers
    )


def _cores(row: PodRow) -> int:
    return sum(each.cores for each in row.containers)


def _blocks(row: PodRow) -> int:
    return sum(each.blocks for each in row.containers)


def _gpus(containers: Iterable[ContainerRow]) -> str:
    """Minor numbers; `?` for a GPU that the node does not have any more."""
    minors = {share.minor for each in containers for share in each.shares}
    return ",".join(["?" if each is None else str(each) for each in sorted(minors, key=lambda one: (one is None, one))])


def _claims(row: PodRow) -> str:
    """Names of the ResourceClaims; `yes` if kube-scheduler has still to make the claim."""
    by_claim = [each for each in row.containers if each.source is ShareSource.CLAIM]
    return ",".join(dict.fromkeys(each.claim or "yes" for each in by_claim))


def _age(row: PodRow, at: float) -> str:
    return q.age(at - row.created) if row.created else q.UNKNOWN


def _pod(row: PodRow, at: float) -> tuple[str, ...]:
    return (
        row.namespace,
        row.pod,
        _STATUS[row.stage],
        row.node or "",
        _gpus(row.containers),
        str(_cores(row)),
        q.blocks(_blocks(row)),
        _age(row, at),
        str(row.priority),
        row.gang or "",
        row.scheduler,
        _claims(row),
        row.reason,
    )


def _lives(containers: Iterable[ContainerRow]) -> list[ShareLive]:
    return [share.live for each in containers for share in each.shares if share.live is not None]


def _use(row: PodRow, containers: tuple[ContainerRow, ...]) -> tuple[str, ...]:
    lives = _lives(containers)
    used = q.total(each.cores_used for each in lives)
    return (
        row.node or "",
        _gpus(containers),
        str(sum(each.cores for each in containers)),
        q.UNKNOWN if used is None else f"{used:.0f}",
        q.blocks(sum(each.blocks for each in containers)),
        q.memory(q.total(each.memory_used_bytes for each in lives)),
        q.memory(q.total(each.memory_peak_bytes for each in lives)),
        q.seconds(q.total(each.throttled_seconds for each in lives)),
        "; ".join(sentence for each in containers for sentence in each.over_limit or ()),
    )


def _pod_use(row: PodRow, _at: float) -> tuple[str, ...]:
    return (row.namespace, row.pod, *_use(row, row.containers))


def _container_use(entry: ContainerEntry, _at: float) -> tuple[str, ...]:
    row = entry.pod
    return (row.namespace, row.pod, entry.container.name, *_use(row, (entry.container,)))


def _known(total: float | None) -> tuple[float] | None:
    return None if total is None else (total,)


def _used_cores(row: PodRow) -> tuple[float] | None:
    return _known(q.total(each.cores_used for each in _lives(row.containers)))


def _used_memory(row: PodRow) -> tuple[float] | None:
    return _known(q.total(each.memory_used_bytes for each in _lives(row.containers)))


def _throttled(row: PodRow) -> tuple[float] | None:
    return _known(q.total(each.throttled_seconds for each in _lives(row.containers)))


def _by_name(row: PodRow) -> tuple[str, str, str]:
    return row.namespace, row.pod, row.uid


_SORTS: dict[str, Sort[PodRow]] = {
    "name": Sort(_by_name, largest_first=False, server="name"),
    "node": Sort(lambda row: (row.node or "",), largest_first=False, server="node"),
    "cores": Sort(lambda row: (_cores(row),), server="cores"),
    "memory": Sort(lambda row: (_blocks(row),), server="memory"),
    "age": Sort(lambda row: (row.created,), largest_first=False, server="age"),
}
_USE_SORTS: dict[str, Sort[PodRow]] = {
    **{word: _SORTS[word] for word in ("name", "cores", "memory", "node")},
    "used": Sort(_used_cores, server="used", of_use=True),
    "used-memory": Sort(_used_memory, server="used-memory", of_use=True),
    "throttled": Sort(_throttled, server="throttled", of_use=True),
}
_WHOLE_PODS = ("name", "node")
"""In these orders the containers of a pod are equal."""
_USE = (
    Column("NODE", rank=3),
    Column("GPU", rank=5),
    Column("CORES", rank=1, right=True),
    Column("USED", right=True),
    Column("MEMORY", rank=2, right=True),
    Column("USED", rank=1, right=True),
    Column("PEAK", rank=7, right=True, wide=True),
    Column("THROTTLED", rank=4, right=True),
    Column("OVER LIMIT", rank=6, if_any=True),
)


def _of_container(sort: Sort[PodRow], *, by: str) -> Sort[ContainerEntry]:
    return Sort(lambda entry: sort.key(entry.pod), sort.largest_first, sort.server, by, sort.of_use)


def _pod_name(row: PodRow) -> str:
    return f"pod/{row.pod}"


PODS = Kind(
    what="pods with GPUs",
    columns=(
        Column("NAMESPACE", rank=2),
        Column("NAME"),
        Column("STATUS", rank=1),
        Column("NODE", rank=3),
        Column("GPU", rank=6),
        Column("CORES", rank=4, right=True),
        Column("MEMORY", rank=5, right=True),
        Column("AGE", rank=7, right=True),
        Column("PRIORITY", rank=8, wide=True, right=True),
        Column("GANG", rank=8, wide=True),
        Column("SCHEDULER", rank=8, wide=True),
        Column("CLAIM", rank=7, if_any=True),
        Column("REASON", rank=6, if_any=True),
    ),
    cells=_pod,
    sorts=_SORTS,
    name=_pod_name,
)
POD_USE = Kind(
    what="pods with GPUs",
    columns=(Column("NAMESPACE", rank=4), Column("NAME"), *_USE),
    cells=_pod_use,
    sorts=_USE_SORTS,
    name=_pod_name,
)
CONTAINER_USE = Kind(
    what="containers with GPUs",
    columns=(Column("NAMESPACE", rank=4), Column("POD"), Column("NAME", rank=2), *_USE),
    cells=_container_use,
    sorts={
        word: _of_container(sort, by="" if word in _WHOLE_PODS else "container") for word, sort in _USE_SORTS.items()
    },
    name=lambda entry: _pod_name(entry.pod),
)


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
        return await ViewClient(client).pods(query if all_namespaces else {**query, "namespace": client.namespace})
