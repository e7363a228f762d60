"""`vcuda pods`: the pods with GPUs, where they are, or why they wait.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML; the columns of pods and containers, `PODS` for
`vcuda pods`, `POD_USE` and `CONTAINER_USE` for `vcuda top`.
"""

import asyncio
from collections.abc import Callable, Iterable
from operator import attrgetter

import click
import msgspec

from deviceplugin import log
from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand, headers_option, node_name, output_option
from deviceplugin.cli.completion import complete_node
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.listing import Field, Kind, Shape, Sort, show_rows
from deviceplugin.cli.scheduler_client import opened
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


def _total(row: PodRow, of: Callable[[ShareLive], float | None]) -> float | None:
    """Of what its containers use; None if nothing is known."""
    lives = [share.live for each in row.containers for share in each.shares if share.live is not None]
    return q.total(map(of, lives))


def _cores_used(row: PodRow, _at: float) -> str:
    used = _total(row, attrgetter("cores_used"))
    return q.UNKNOWN if used is None else f"{used:.0f}"


def _peak(row: PodRow, _at: float) -> str:
    return q.memory(_total(row, attrgetter("memory_peak_bytes")))


def _over_limit(row: PodRow, _at: float) -> str:
    return "; ".join(sentence for each in row.containers for sentence in each.over_limit or ())


def _by_use(field: str) -> Callable[[PodRow], tuple[float] | None]:
    def key(row: PodRow) -> tuple[float] | None:
        total = _total(row, attrgetter(field))
        return None if total is None else (total,)

    return key


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
    "used": Sort(_by_use("cores_used"), server="used", of_use=True),
    "used-memory": Sort(_by_use("memory_used_bytes"), server="used-memory", of_use=True),
    "throttled": Sort(_by_use("throttled_seconds"), server="throttled", of_use=True),
}
_WHOLE_PODS = ("name", "node")
"""In these orders the containers of a pod are equal."""
_USE: tuple[Field[PodRow], ...] = (
    Field("NODE", rank=3, text=lambda row, _: row.node or ""),
    Field("GPU", rank=5, text=lambda row, _: _gpus(row.containers)),
    Field("CORES", rank=1, right=True, text=lambda row, _: str(_cores(row))),
    Field("USED", right=True, text=_cores_used),
    Field("MEMORY", rank=2, right=True, text=lambda row, _: q.blocks(_blocks(row))),
    Field("USED", rank=1, right=True, text=lambda row, _: q.memory(_total(row, attrgetter("memory_used_bytes")))),
    Field("PEAK", rank=7, right=True, wide=True, text=_peak),
    Field("THROTTLED", rank=4, right=True, text=lambda row, _: q.seconds(_total(row, attrgetter("throttled_seconds")))),
    Field("OVER LIMIT", rank=6, if_any=True, text=_over_limit),
)


def _field_of_container(field: Field[PodRow]) -> Field[ContainerEntry]:
    def text(entry: ContainerEntry, at: float) -> str:
        return field.text(entry.pod, at)

    return Field(field.heading, field.rank, field.wide, field.right, field.if_any, text=text)


def _of_container(sort: Sort[PodRow], *, by: str) -> Sort[ContainerEntry]:
    return Sort(lambda entry: sort.key(entry.pod), sort.largest_first, sort.server, by, sort.of_use)


PODS: Kind[PodRow] = Kind(
    what="pods with GPUs",
    columns=(
        Field("NAMESPACE", rank=2, text=lambda row, _: row.namespace),
        Field("NAME", text=lambda row, _: row.pod),
        Field("STATUS", rank=1, text=lambda row, _: _STATUS[row.stage]),
        Field("NODE", rank=3, text=lambda row, _: row.node or ""),
        Field("GPU", rank=6, text=lambda row, _: _gpus(row.containers)),
        Field("CORES", rank=4, right=True, text=lambda row, _: str(_cores(row))),
        Field("MEMORY", rank=5, right=True, text=lambda row, _: q.blocks(_blocks(row))),
        Field("AGE", rank=7, right=True, text=_age),
        Field("PRIORITY", rank=8, wide=True, right=True, text=lambda row, _: str(row.priority)),
        Field("GANG", rank=8, wide=True, text=lambda row, _: row.gang or ""),
        Field("SCHEDULER", rank=8, wide=True, text=lambda row, _: row.scheduler),
        Field("CLAIM", rank=7, if_any=True, text=lambda row, _: _claims(row)),
        Field("REASON", rank=6, if_any=True, text=lambda row, _: row.reason),
    ),
    sorts=_SORTS,
    name=lambda row: f"pod/{row.pod}",
)
POD_USE: Kind[PodRow] = Kind(
    what="pods with GPUs",
    columns=(
        Field("NAMESPACE", rank=4, text=lambda row, _: row.namespace),
        Field("NAME", text=lambda row, _: row.pod),
        *_USE,
    ),
    sorts=_USE_SORTS,
    name=lambda row: f"pod/{row.pod}",
)
CONTAINER_USE: Kind[ContainerEntry] = Kind(
    what="containers with GPUs",
    columns=(
        Field("NAMESPACE", rank=4, text=lambda entry, _: entry.pod.namespace),
        Field("POD", text=lambda entry, _: entry.pod.pod),
        Field("NAME", rank=2, text=lambda entry, _: entry.container.name),
        *map(_field_of_container, _USE),
    ),
    sorts={
        word: _of_container(sort, by="" if word in _WHOLE_PODS else "container") for word, sort in _USE_SORTS.items()
    },
    name=lambda entry: f"pod/{entry.pod.pod}",
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
