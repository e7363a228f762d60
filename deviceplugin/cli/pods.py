"""`vcuda pods` and `vcuda events`: the pods with GPUs, where they are, or why they are Pending; recent events.

In: the scheduler's view. Out: a table, or the rows as JSON or YAML; the columns of pods and containers, `PODS` for
`vcuda pods`, `POD_USE`, `CONTAINER_USE` and `NAMESPACE_USE` for `vcuda top`. Who may not know the names of all
namespaces gets the others as one row, named in parentheses, which no namespace can be. Events are those of the view:
what happened to pods, nodes and GPUs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import click
import msgspec

from deviceplugin.cli import table as q
from deviceplugin.cli.command import OperatorCommand, name_option, node_name
from deviceplugin.cli.completion import complete_node
from deviceplugin.cli.connection import Connection, all_namespaces_option, connected
from deviceplugin.cli.scheduler_client import EVENT_ROWS, POD_ROWS, Found, RowList, SchedulerClient, asked
from deviceplugin.cli.table import Field, Kind, Nothing, Shape, Sort, listed, show_rows
from deviceplugin.cli.terminal import Colour, even_colour
from deviceplugin.model.cluster_view import (
    ClusterEventKind,
    ClusterEventRow,
    ContainerRow,
    NamespaceRow,
    NamespacesView,
    PodRow,
    PodStage,
    ShareSource,
    idle_of,
)
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.placement.describe import numbers_text
from deviceplugin.structs import replace

Row = TypeVar("Row")


class ContainerEntry(msgspec.Struct, frozen=True):
    """One container and its pod, which has only this container here."""

    pod: PodRow
    container: ContainerRow


def container_entries(rows: Iterable[PodRow]) -> tuple[ContainerEntry, ...]:
    return tuple(ContainerEntry(replace(row, containers=(each,)), each) for row in rows for each in row.containers)


def _cores(row: PodRow) -> int:
    return sum(each.cores for each in row.containers)


def _blocks(row: PodRow) -> int:
    return sum(each.blocks for each in row.containers)


def _gpus(containers: Iterable[ContainerRow]) -> str:
    """Minor numbers, neighbours together; `?` for a GPU that the node does not have any more."""
    minors = {share.minor for each in containers for share in each.shares if share.uuid}
    known = numbers_text(each for each in minors if each is not None)
    return ",".join(filter(None, [known, "?" * (None in minors)]))


def _claims(row: PodRow) -> str:
    """Names of the ResourceClaims; `yes` if kube-scheduler has still to make the claim."""
    by_claim = [each for each in row.containers if each.source is ShareSource.CLAIM]
    return ",".join(dict.fromkeys(each.claim or "yes" for each in by_claim))


def _age(row: PodRow, at: float) -> str:
    return q.age(at - row.created) if row.created else q.UNKNOWN


def _total(row: PodRow, field: str) -> float | None:
    """Of what its containers use, a field of `ShareLive`; None if nothing is known."""
    lives = [share.live for each in row.containers for share in each.shares if share.live is not None]
    return q.total(getattr(live, field) for live in lives)


def _cores_used(row: PodRow, _at: float) -> str:
    return q.cores(_total(row, "cores_used"))


def _idle(row: PodRow) -> float | None:
    """Of the shares whose use is known."""
    known = [(share.cores, share.live.cores_used) for each in row.containers for share in each.shares if share.live]
    return q.total(idle_of(cores, used) for cores, used in known)


def _idle_cores(row: PodRow, _at: float) -> str:
    return q.cores(_idle(row))


def _used_part(row: PodRow) -> float | None:
    """Of the allocated cores."""
    used = _total(row, "cores_used")
    return None if used is None or not _cores(row) else used / _cores(row)


def _memory_part(row: PodRow) -> float | None:
    used = _total(row, "memory_used_bytes")
    return None if used is None or not _blocks(row) else used / (_blocks(row) * BLOCK_BYTES)


def _pod_total(rows: Sequence[PodRow]) -> PodRow | None:
    """Of what is allocated: one container with all their shares, which name no GPU. None if nothing is allocated."""
    rows = [row for row in rows if row.stage is not PodStage.PENDING]
    if not rows:
        return None
    shares = tuple(replace(share, uuid="") for row in rows for each in row.containers for share in each.shares)
    one = ContainerRow("", sum(map(_cores, rows)), sum(map(_blocks, rows)), shares)
    return replace(rows[0], containers=(one,), reason="")


def _container_total(rows: Sequence[ContainerEntry]) -> ContainerEntry | None:
    pod = _pod_total([each.pod for each in rows])
    return None if pod is None else ContainerEntry(pod, pod.containers[0])


def _status_colour(row: PodRow) -> Colour | None:
    return Colour.YELLOW if row.stage is PodStage.PENDING else None


def _over_limit(row: PodRow, _at: float) -> str:
    return "; ".join(sentence for each in row.containers for sentence in each.over_limit or ())


def _of_use(heading: str, sort: str, text: Callable[[PodRow, float], str]) -> Field[PodRow]:
    """A column that is there where agents were asked and one has answered."""

    def if_known(row: PodRow, at: float) -> str:
        return "" if _total(row, "cores_used") is None else text(row, at)

    return Field(heading, rank=4, if_any=True, right=True, summed=True, sort=sort, text=if_known)


def _by_use(field: str) -> Callable[[PodRow], tuple[float] | None]:
    def key(row: PodRow) -> tuple[float] | None:
        return q.known(_total(row, field))

    return key


_SORTS: dict[str, Sort[PodRow]] = {
    "name": Sort(lambda row: (row.namespace, row.pod, row.uid), largest_first=False),
    "node": Sort(lambda row: (row.node or "",), largest_first=False),
    "cores": Sort(lambda row: (_cores(row),)),
    "memory": Sort(lambda row: (_blocks(row),)),
    "age": Sort(lambda row: (row.created,), largest_first=False),
}
_USE_SORTS: dict[str, Sort[PodRow]] = {
    **{word: _SORTS[word] for word in ("name", "cores", "memory", "node")},
    "used": Sort(_by_use("cores_used"), of_use=True),
    "idle": Sort(lambda row: q.known(_idle(row)), of_use=True),
    "used-memory": Sort(_by_use("memory_used_bytes"), of_use=True),
    "throttled": Sort(_by_use("throttled_seconds"), of_use=True),
}
_WHOLE_PODS = ("name", "node")
"""In these orders the containers of a pod are equal."""
_USE: tuple[Field[PodRow], ...] = (
    Field("NODE", is_name=True, rank=5, sort="node", text=lambda row, _: row.node or ""),
    Field("GPU", rank=5, text=lambda row, _: _gpus(row.containers)),
    Field("CORES", rank=1, right=True, summed=True, sort="cores", text=lambda row, _: str(_cores(row))),
    Field("USED", right=True, summed=True, sort="used", text=_cores_used, bar=_used_part, bar_colour=even_colour),
    Field("IDLE", rank=1, right=True, summed=True, sort="idle", text=_idle_cores),
    Field("MEMORY", rank=2, right=True, summed=True, sort="memory", text=lambda row, _: q.blocks(_blocks(row))),
    Field(
        "USED",
        rank=1,
        right=True,
        summed=True,
        sort="used-memory",
        text=lambda row, _: q.memory(_total(row, "memory_used_bytes")),
        bar=_memory_part,
    ),
    Field("PEAK", rank=7, right=True, wide=True, text=lambda row, _: q.memory(_total(row, "memory_peak_bytes"))),
    Field(
        "THROTTLED",
        rank=4,
        right=True,
        summed=True,
        sort="throttled",
        text=lambda row, _: q.seconds(_total(row, "throttled_seconds")),
    ),
    Field("OVER LIMIT", rank=6, if_any=True, below=True, text=_over_limit, colour=lambda _: Colour.RED),
)


def _field_of_container(field: Field[PodRow]) -> Field[ContainerEntry]:
    def text(entry: ContainerEntry, at: float) -> str:
        return field.text(entry.pod, at)

    bar, colour = field.bar, field.colour
    return Field(
        *(field.heading, field.rank, field.wide, field.right, field.if_any, field.below, field.is_name),
        text=text,
        bar=None if bar is None else lambda entry: bar(entry.pod),
        bar_colour=field.bar_colour,
        colour=None if colour is None else lambda entry: colour(entry.pod),
        summed=field.summed,
        sort=field.sort,
    )


def _of_container(sort: Sort[PodRow], *, by: str) -> Sort[ContainerEntry]:
    return Sort(lambda entry: sort.key(entry.pod), sort.largest_first, by, sort.of_use)


PODS: Kind[PodRow] = Kind(
    what="pods with GPUs",
    columns=(
        Field("NAMESPACE", rank=2, text=lambda row, _: row.namespace),
        Field("NAME", is_name=True, text=lambda row, _: row.pod),
        Field("STATUS", rank=1, text=lambda row, _: row.stage.value.capitalize(), colour=_status_colour),
        Field("NODE", is_name=True, rank=3, if_any=True, sort="node", text=lambda row, _: row.node or ""),
        Field("GPU", rank=6, if_any=True, text=lambda row, _: _gpus(row.containers)),
        Field("CORES", rank=4, right=True, summed=True, sort="cores", text=lambda row, _: str(_cores(row))),
        _of_use("USED", "used", _cores_used),
        _of_use("IDLE", "idle", _idle_cores),
        Field("MEMORY", rank=5, right=True, summed=True, sort="memory", text=lambda row, _: q.blocks(_blocks(row))),
        Field("AGE", rank=7, right=True, sort="age", text=_age),
        Field("PRIORITY", rank=8, wide=True, right=True, text=lambda row, _: str(row.priority)),
        Field("GANG", rank=8, wide=True, text=lambda row, _: row.gang or ""),
        Field("SCHEDULER", rank=8, wide=True, text=lambda row, _: row.scheduler),
        Field("CLAIM", rank=7, if_any=True, text=lambda row, _: _claims(row)),
        Field("REASON", rank=6, if_any=True, below=True, text=lambda row, _: row.reason, colour=_status_colour),
    ),
    sorts=_SORTS | {word: _USE_SORTS[word] for word in ("used", "idle")},
    name=lambda row: f"pod/{row.pod}",
    total=_pod_total,
)
POD_USE: Kind[PodRow] = Kind(
    what="pods with GPUs",
    columns=(
        Field("NAMESPACE", rank=4, text=lambda row, _: row.namespace),
        Field("NAME", is_name=True, text=lambda row, _: row.pod),
        *_USE,
    ),
    sorts=_USE_SORTS,
    name=lambda row: f"pod/{row.pod}",
    total=_pod_total,
)
CONTAINER_USE: Kind[ContainerEntry] = Kind(
    what="containers with GPUs",
    columns=(
        Field("NAMESPACE", rank=4, text=lambda entry, _: entry.pod.namespace),
        Field("POD", is_name=True, text=lambda entry, _: entry.pod.pod),
        Field("NAME", rank=2, text=lambda entry, _: entry.container.name),
        *map(_field_of_container, _USE),
    ),
    sorts={
        word: _of_container(sort, by="" if word in _WHOLE_PODS else "container") for word, sort in _USE_SORTS.items()
    },
    name=lambda entry: f"pod/{entry.pod.pod}",
    total=_container_total,
)


OTHERS = "(others)"


def _rows_of(view: NamespacesView) -> tuple[NamespaceRow, ...]:
    return (*view.items, *([] if view.others is None else [replace(view.others, namespace=OTHERS)]))


NAMESPACE_ROWS: RowList[NamespaceRow] = RowList(
    "/view/namespaces", NamespacesView, lambda row: row.namespace, items=_rows_of
)


def _part(used: float | None, whole: float) -> float | None:
    return None if used is None or not whole else used / whole


def _namespace_total(rows: Sequence[NamespaceRow]) -> NamespaceRow:
    memory = q.total(row.memory_used_bytes for row in rows)
    measured = q.total(row.cores_measured for row in rows)
    return NamespaceRow(
        *("", sum(row.pods for row in rows), sum(row.cores for row in rows), sum(row.blocks for row in rows)),
        cores_used=q.total(row.cores_used for row in rows),
        cores_idle=q.total(row.cores_idle for row in rows),
        memory_used_bytes=None if memory is None else round(memory),
        throttled_seconds=q.total(row.throttled_seconds for row in rows),
        cores_measured=None if measured is None else round(measured),
    )


def _measured(row: NamespaceRow, _at: float) -> str:
    """Where not all is: USED and IDLE are of this part."""
    measured = row.cores_measured
    return "" if measured is None or measured >= row.cores else f"use is known of {measured} of {row.cores} cores"


NAMESPACE_USE: Kind[NamespaceRow] = Kind(
    what="namespaces with GPUs",
    columns=(
        Field("NAME", text=lambda row, _: row.namespace),
        Field("PODS", rank=4, right=True, summed=True, text=lambda row, _: str(row.pods)),
        Field("CORES", rank=1, right=True, summed=True, sort="cores", text=lambda row, _: str(row.cores)),
        Field(
            "USED",
            right=True,
            summed=True,
            sort="used",
            text=lambda row, _: q.cores(row.cores_used),
            bar=lambda row: _part(row.cores_used, row.cores),
            bar_colour=even_colour,
        ),
        Field("IDLE", rank=1, right=True, summed=True, sort="idle", text=lambda row, _: q.cores(row.cores_idle)),
        Field("MEMORY", rank=2, right=True, summed=True, sort="memory", text=lambda row, _: q.blocks(row.blocks)),
        Field(
            "USED",
            rank=2,
            right=True,
            summed=True,
            sort="used-memory",
            text=lambda row, _: q.memory(row.memory_used_bytes),
            bar=lambda row: _part(row.memory_used_bytes, row.blocks * BLOCK_BYTES),
        ),
        Field("THROTTLED", rank=5, right=True, summed=True, text=lambda row, _: q.seconds(row.throttled_seconds)),
        Field("NOTE", rank=6, if_any=True, below=True, summed=True, text=_measured),
    ),
    sorts={
        "name": Sort(lambda row: (row.namespace == OTHERS, row.namespace), largest_first=False),
        "cores": Sort(lambda row: (row.cores,)),
        "memory": Sort(lambda row: (row.blocks,)),
        "used": Sort(lambda row: q.known(row.cores_used), of_use=True),
        "used-memory": Sort(lambda row: q.known(row.memory_used_bytes), of_use=True),
        "idle": Sort(lambda row: q.known(row.cores_idle), of_use=True),
    },
    name=lambda row: f"namespace/{row.namespace}",
    total=_namespace_total,
)


_EXAMPLES = (
    ("Pods with GPUs in the context's namespace.", "pods"),
    ("All pending pods, the oldest first, with the reason.", "pods -A --status pending --sort-by age"),
    ("Who is on a node.", "pods -A --node node-a"),
    ("Pods that waste most first.", "pods -A --sort-by idle"),
    ("Pods by a part of their name, in namespaces that begin with team-.", "pods -n 'team-*' --name llm"),
)


@click.command("pods", cls=OperatorCommand, examples=_EXAMPLES)
@all_namespaces_option
@click.option("--node", "on_node", default="", help="Only pods on this node.", shell_complete=complete_node)
@name_option("Only pods whose name contains this; of several namespaces, whose NAMESPACE/NAME does.")
@click.option(
    "--status",
    type=click.Choice([each.value for each in PodStage], case_sensitive=False),
    help="Only pods that are pending, reserved or bound.",
)
@listed(PODS.sorts)
@connected
def pods(
    all_namespaces: bool, on_node: str, named: str, status: str | None, shape: Shape, connection: Connection
) -> None:
    """List pods that request GPUs: node and GPUs of those that have them, and why the others are Pending.

    CORES (1/100 of a GPU's time) and MEMORY are allocated; those of a Pending pod are what it asks for, and in no sum.
    Pending: no node is chosen. Reserved: GPUs are allocated, and the pod is being bound. Bound: the pod has its node.
    In an order by use, USED and IDLE are the allocated cores that are used, and not used. `explain` says more about one
    pod.
    """
    filters = {"--node": on_node, "--name": named, "--status": status or ""}
    example = "docs/ask-for-a-share.md has a pod that asks for a share"
    _show(PODS, POD_ROWS, connection, filters, shape, all_namespaces=all_namespaces, example=example)


_QUERY = {"--node": "node", "--name": "name", "--status": "stage", "--kind": "kind"}
"""The view's parameter for each filter."""


def _show(
    kind: Kind[Row],
    wanted: RowList[Row],
    connection: Connection,
    filters: Mapping[str, str],
    shape: Shape,
    *,
    all_namespaces: bool,
    example: str = "",
) -> None:
    query = {_QUERY[option]: value for option, value in filters.items() if value}
    query |= {"node": node_name(query["node"])} if "node" in query else {}
    query |= {"live": "1"} if shape.sort_by and kind.sorts[shape.sort_by].of_use else {}

    async def read(client: SchedulerClient) -> tuple[Found[Row], str]:
        namespace = {} if all_namespaces else {"namespace": client.namespace}
        return await client.rows(wanted, query | namespace), namespace.get("namespace", "")

    found, namespace = asked(connection, read)
    rows = kind.ordered(found.rows, shape.sort_by, reverse=shape.reverse)
    is_one = connection.is_for_one_namespace and not all_namespaces
    kind = kind.without("NAMESPACE") if is_one else kind
    instead = example if all_namespaces else "-A lists those of all namespaces"
    where = f"namespace {namespace}" if namespace else ""
    show_rows(kind, rows, at=found.at, shape=shape, nothing=Nothing(filters, where, instead))


def _object(row: ClusterEventRow) -> str:
    return f"pod/{row.pod}" if row.uid else f"node/{row.node}"


EVENTS: Kind[ClusterEventRow] = Kind(
    what="events",
    columns=(
        Field("NAMESPACE", rank=4, text=lambda row, _: row.namespace),
        Field("LAST SEEN", right=True, text=lambda row, at: q.age(at - row.at)),
        Field("KIND", rank=2, text=lambda row, _: row.kind.value),
        Field("OBJECT", text=lambda row, _: _object(row)),
        Field("NODE", is_name=True, rank=3, text=lambda row, _: row.node),
        Field("COUNT", rank=8, wide=True, right=True, text=lambda row, _: str(row.count)),
        Field("FIRST SEEN", rank=8, wide=True, right=True, text=lambda row, at: q.age(at - row.first)),
        Field("MESSAGE", rank=1, below=True, text=lambda row, _: row.sentence),
    ),
    sorts={"age": Sort(lambda row: (row.at,), largest_first=False)},
    name=_object,
)
_EVENT_EXAMPLES = (
    ("What happened to the pods of the context's namespace.", "events"),
    ("What happened to all pods, nodes and GPUs.", "events -A"),
    ("GPUs that stopped accepting pods, or accept them again.", "events -A --kind gpu"),
)


@click.command("events", cls=OperatorCommand, examples=_EVENT_EXAMPLES)
@all_namespaces_option
@click.option("--node", "on_node", default="", help="Only events on this node.", shell_complete=complete_node)
@click.option(
    "--kind",
    type=click.Choice([each.value for each in ClusterEventKind], case_sensitive=False),
    help="Only events of this kind.",
)
@listed()
@connected
def events(all_namespaces: bool, on_node: str, kind: str | None, shape: Shape, connection: Connection) -> None:
    """List what happened lately, the newest last.

    Placed: a pod got its node and GPUs. Pending: kube-scheduler found no node for a pod. Ended: a pod ended or was
    deleted. Node and gpu: one that became available or unavailable; these belong to no namespace, and -A lists them.

    The scheduler keeps the last 500 of each kind since it started; those of Kubernetes stay in `kubectl events`.
    """
    filters = {"--node": on_node, "--kind": kind or ""}
    _show(EVENTS, EVENT_ROWS, connection, filters, shape, all_namespaces=all_namespaces)
