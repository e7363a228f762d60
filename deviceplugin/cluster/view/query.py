"""What a caller asks of the view.

In: the path below `/view` and the query's parameters as text. Out: frozen values, or a ParseError that names the
parameter and says what to write. An unknown parameter is an error: ignored, it would answer another question.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from deviceplugin.errors import ParseError
from deviceplugin.model.cluster_view import MOST_IN_DETAIL, MOST_ROWS, ClusterEventKind, PodStage

_USUAL_ROWS = 100
_LONGEST = 512
_Chosen = TypeVar("_Chosen", bound=enum.Enum)


class NodeSort(enum.Enum):
    """By name, by what is allocated, by the number of free GPUs, or by what is used: the mean utilization."""

    NAME = "name"
    CORES = "cores"
    MEMORY = "memory"
    FREE = "free"
    USED = "used"


class PodSort(enum.Enum):
    """By namespace and name, by node, by what is requested, by age (the oldest first), or by what is used now."""

    NAME = "name"
    NODE = "node"
    CORES = "cores"
    MEMORY = "memory"
    AGE = "age"
    USED = "used"
    USED_MEMORY = "used-memory"
    THROTTLED = "throttled"


class NodePart(enum.Enum):
    """What an order compares: nodes, or of each node the GPU that comes first."""

    NODE = "node"
    GPU = "gpu"


class PodPart(enum.Enum):
    """What an order compares: pods, or of each pod the container that comes first."""

    POD = "pod"
    CONTAINER = "container"


BY_NODE_USE = (NodeSort.USED,)
BY_POD_USE = (PodSort.USED, PodSort.USED_MEMORY, PodSort.THROTTLED)
OF_GPUS = (NodeSort.CORES, NodeSort.MEMORY, *BY_NODE_USE)
OF_CONTAINERS = (PodSort.CORES, PodSort.MEMORY, *BY_POD_USE)


class Order(enum.Enum):
    """Ascending or descending."""

    ASCENDING = "asc"
    DESCENDING = "desc"


class NodeFilter(enum.Enum):
    """Nodes with a free GPU, or with a problem."""

    FREE = "free"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class PageQuery:
    """`more` is the token of the page; empty: the first."""

    limit: int = _USUAL_ROWS
    more: str = ""
    descending: bool = False


@dataclass(frozen=True, slots=True)
class NodesQuery:
    """`name` and `model` are parts of the node's and of a GPU model's name, in upper or lower case."""

    page: PageQuery = PageQuery()
    sort: NodeSort = NodeSort.NAME
    by_part: bool = False
    name: str = ""
    model: str = ""
    state: NodeFilter | None = None
    with_gpus: bool = False
    live: bool = False


@dataclass(frozen=True, slots=True)
class PodsQuery:
    """Empty strings and None ask for all."""

    page: PageQuery = PageQuery()
    sort: PodSort = PodSort.NAME
    by_part: bool = False
    namespace: str = ""
    node: str = ""
    stage: PodStage | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class EventsQuery:
    """Empty strings and None ask for all; with a namespace, for events about its pods only."""

    page: PageQuery = PageQuery(descending=True)
    namespace: str = ""
    node: str = ""
    kind: ClusterEventKind | None = None


def nodes_query(asked: Mapping[str, str]) -> NodesQuery:
    _check(asked, "limit", "more", "sort", "by", "order", "name", "model", "state", "gpus", "live")
    with_gpus, live = _flag(asked, "gpus"), _flag(asked, "live")
    sort = _choice(NodeSort, asked, "sort") or NodeSort.NAME
    _needs_live(sort, BY_NODE_USE, live=live)
    return NodesQuery(
        page=_page(asked, MOST_IN_DETAIL if with_gpus else MOST_ROWS),
        sort=sort,
        by_part=_by_part(NodePart.GPU, asked, sort, OF_GPUS),
        name=asked.get("name", "").lower(),
        model=asked.get("model", "").lower(),
        state=_choice(NodeFilter, asked, "state"),
        with_gpus=with_gpus,
        live=live,
    )


def pods_query(asked: Mapping[str, str]) -> PodsQuery:
    _check(asked, "limit", "more", "sort", "by", "order", "namespace", "node", "stage", "live")
    live = _flag(asked, "live")
    sort = _choice(PodSort, asked, "sort") or PodSort.NAME
    _needs_live(sort, BY_POD_USE, live=live)
    return PodsQuery(
        page=_page(asked, MOST_ROWS),
        sort=sort,
        by_part=_by_part(PodPart.CONTAINER, asked, sort, OF_CONTAINERS),
        namespace=asked.get("namespace", ""),
        node=asked.get("node", ""),
        stage=_choice(PodStage, asked, "stage"),
        live=live,
    )


def events_query(asked: Mapping[str, str]) -> EventsQuery:
    """The newest first unless another order is asked for."""
    _check(asked, "limit", "more", "order", "namespace", "node", "kind")
    return EventsQuery(
        page=_page({"order": Order.DESCENDING.value} | dict(asked), MOST_ROWS),
        namespace=asked.get("namespace", ""),
        node=asked.get("node", ""),
        kind=_choice(ClusterEventKind, asked, "kind"),
    )


def node_query(asked: Mapping[str, str]) -> bool:
    """Whether live use is asked for."""
    _check(asked, "live")
    return _flag(asked, "live")


def no_query(asked: Mapping[str, str]) -> None:
    """For a path without parameters."""
    _check(asked)


def _check(asked: Mapping[str, str], *known: str) -> None:
    for name, value in asked.items():
        if name not in known:
            these = f"the parameters are {', '.join(known)}" if known else "this path takes none"
            raise ParseError(f"{name[:40]!r} is not a parameter; {these}")
        if len(value) > _LONGEST:
            raise ParseError(f"{name} has more than {_LONGEST} characters")


def _page(asked: Mapping[str, str], most: int) -> PageQuery:
    text = asked.get("limit", str(min(_USUAL_ROWS, most)))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
        raise ParseError(f"limit is {text[:20]!r}; write a number from 1 to {most}")
    order = _choice(Order, asked, "order") or Order.ASCENDING
    return PageQuery(int(text), asked.get("more", ""), order is Order.DESCENDING)


def _choice(kind: type[_Chosen], asked: Mapping[str, str], name: str) -> _Chosen | None:
    if name not in asked:
        return None
    try:
        return kind(asked[name])
    except ValueError:
        allowed = ", ".join(str(each.value) for each in kind)
        raise ParseError(f"{name} is {asked[name][:20]!r}; write one of {allowed}") from None


def _needs_live(sort: enum.Enum, by_use: Collection[enum.Enum], *, live: bool) -> None:
    if sort in by_use and not live:
        raise ParseError(f"sort={sort.value} needs live=1, because the agents say what is used")


def _by_part(part: enum.Enum, asked: Mapping[str, str], sort: enum.Enum, has_parts: Collection[enum.Enum]) -> bool:
    """Whether `by` names the part; orders in which all parts of a row are equal have none."""
    chosen = _choice(type(part), asked, "by")
    if chosen is part and sort not in has_parts:
        words = ", ".join(str(each.value) for each in has_parts)
        raise ParseError(f"by={part.value} needs an order of its own amounts; set sort to one of {words}")
    return chosen is part


def _flag(asked: Mapping[str, str], name: str) -> bool:
    text = asked.get(name, "0")
    if text not in ("0", "1"):
        raise ParseError(f"{name} is {text[:20]!r}; write 1 or 0")
    return text == "1"
