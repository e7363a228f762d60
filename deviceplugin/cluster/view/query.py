"""What a caller asks of the view.

In: the path below `/view` and the query's parameters as text. Out: frozen values, or a ParseError that names the
parameter and says what to write. An unknown parameter is an error: ignored, it would answer another question.

Where a row stands among others: by name, or by what is allocated, requested or used.

In: a node or a pod as the view knows it, and a query. Out: the key of its row for `page.cut`. With parts compared, a
row stands where its GPU or container stands that comes first in the order. Invariants: keys of different rows are
different; what is not known comes last, whatever the order.

One page of many items, in an order, without stopping the event loop for long.

In: items, the key of each, a limit and the token of the page. Out: the items of the page, how many there are in all,
and the token of the next page. A token is the key of the last item, so a page neither repeats nor skips an item that
was there all the time, whatever came and went between two pages. Keys must be different. A walk gives way by its work,
and so also for items that are looked at and left out: there may be many in a row, and some are dear.
"""

import base64
import binascii
import enum
import heapq
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from deviceplugin.cluster.view.live import NodeUse, known_sum, node_idle, node_live
from deviceplugin.errors import ParseError
from deviceplugin.latest import others_turn
from deviceplugin.model.cluster_view import (
    MOST_IN_DETAIL,
    MOST_ROWS,
    ClusterEventKind,
    ContainerRow,
    GpuRow,
    NamespaceRow,
    NodeRow,
    PodStage,
    idle_of,
)
from deviceplugin.placement.budget import Budget

_USUAL_ROWS = 100
_DESCENDING = "desc"
_LONGEST = 512
_Chosen = TypeVar("_Chosen", bound=enum.Enum)


class NodeSort(enum.Enum):
    """By name, by what is allocated, by the number of free GPUs, or by what is used: the mean utilization.

    IDLE: cores that are allocated and not used.
    """

    NAME = "name"
    CORES = "cores"
    MEMORY = "memory"
    FREE = "free"
    USED = "used"
    IDLE = "idle"


class PodSort(enum.Enum):
    """By namespace and name, by node, by what is requested, by age (the oldest first), or by what is used now.

    IDLE: cores that are allocated and not used.
    """

    NAME = "name"
    NODE = "node"
    CORES = "cores"
    MEMORY = "memory"
    AGE = "age"
    USED = "used"
    USED_MEMORY = "used-memory"
    THROTTLED = "throttled"
    IDLE = "idle"


class NamespaceSort(enum.Enum):
    """By name, by what is allocated, or by what is used; IDLE as for pods."""

    NAME = "name"
    CORES = "cores"
    MEMORY = "memory"
    USED = "used"
    USED_MEMORY = "used-memory"
    IDLE = "idle"


BY_NODE_USE = (NodeSort.USED, NodeSort.IDLE)
BY_POD_USE = (PodSort.USED, PodSort.USED_MEMORY, PodSort.THROTTLED, PodSort.IDLE)
BY_NAMESPACE_USE = (NamespaceSort.USED, NamespaceSort.USED_MEMORY, NamespaceSort.IDLE)
OF_GPUS = (NodeSort.CORES, NodeSort.MEMORY, *BY_NODE_USE)
OF_CONTAINERS = (PodSort.CORES, PodSort.MEMORY, *BY_POD_USE)


ALL_STAGES = frozenset(PodStage)
_STAGES = {each.value: frozenset({each}) for each in PodStage} | {"allocated": ALL_STAGES - {PodStage.PENDING}}
"""By what a caller writes."""


class NodeFilter(enum.Enum):
    """Nodes with a free GPU, or with unavailable ones, or that are unavailable themselves."""

    FREE = "free"
    PROBLEM = "problem"


class PageQuery(msgspec.Struct, frozen=True):
    """`more` is the token of the page; empty: the first."""

    limit: int = _USUAL_ROWS
    more: str = ""
    descending: bool = False


class NodesQuery(msgspec.Struct, frozen=True):
    """`name` and `model` are parts of the node's and of a GPU model's name, in upper or lower case.

    `allowed`: the namespaces whose pods may be named as holders; None: all.
    """

    page: PageQuery = PageQuery()
    sort: NodeSort = NodeSort.NAME
    by_part: bool = False
    name: str = ""
    model: str = ""
    state: NodeFilter | None = None
    with_gpus: bool = False
    with_holders: bool = False
    live: bool = False
    allowed: frozenset[str] | None = None


class PodsQuery(msgspec.Struct, frozen=True):
    """Empty strings and None ask for all. `name` is a part of NAMESPACE/NAME, in lower case; of a pod's name alone
    where one namespace is asked for.

    `namespace` may end with `*`: all that begin so. `allowed`: of these the ones whose pods the caller may read.
    """

    page: PageQuery = PageQuery()
    sort: PodSort = PodSort.NAME
    by_part: bool = False
    namespace: str = ""
    name: str = ""
    node: str = ""
    stages: frozenset[PodStage] = ALL_STAGES
    live: bool = False
    allowed: frozenset[str] | None = None

    def has(self, namespace: str) -> bool:
        return _is_allowed(namespace, self.namespace, self.allowed)

    def is_named(self, namespace: str, name: str) -> bool:
        is_one = self.namespace and not is_pattern(self.namespace)
        return self.name in (name if is_one else f"{namespace}/{name}")


class NamespacesQuery(msgspec.Struct, frozen=True):
    """`namespace` as of `PodsQuery`."""

    page: PageQuery = PageQuery()
    sort: NamespaceSort = NamespaceSort.NAME
    namespace: str = ""
    live: bool = False


def is_pattern(namespace: str) -> bool:
    """Whether it asks for all namespaces that begin so."""
    return namespace.endswith("*")


def is_among(namespace: str, asked: str) -> bool:
    return namespace.startswith(asked[:-1]) if is_pattern(asked) else asked in ("", namespace)


class EventsQuery(msgspec.Struct, frozen=True):
    """Empty strings and None ask for all; with a namespace, for events about its pods only.

    `namespace` and `allowed` as of `PodsQuery`; events of nodes and GPUs name no pods and are for all callers.
    """

    page: PageQuery = PageQuery(descending=True)
    namespace: str = ""
    node: str = ""
    kind: ClusterEventKind | None = None
    allowed: frozenset[str] | None = None

    def has(self, namespace: str) -> bool:
        return _is_allowed(namespace, self.namespace, self.allowed)


def _is_allowed(namespace: str, asked: str, allowed: frozenset[str] | None) -> bool:
    return is_among(namespace, asked) and (allowed is None or not namespace or namespace in allowed)


def nodes_query(asked: Mapping[str, str]) -> NodesQuery:
    _check(asked, "limit", "more", "sort", "by", "order", "name", "model", "state", "gpus", "holders", "live")
    with_holders, live = _flag(asked, "holders"), _flag(asked, "live")
    with_gpus = _flag(asked, "gpus") or with_holders
    sort = _choice(NodeSort, asked, "sort") or NodeSort.NAME
    _needs_live(sort, BY_NODE_USE, live=live)
    return NodesQuery(
        page=_page(asked, MOST_IN_DETAIL if with_gpus else MOST_ROWS),
        sort=sort,
        by_part=_by_part(("node", "gpu"), asked, sort, OF_GPUS),
        name=asked.get("name", "").lower(),
        model=asked.get("model", "").lower(),
        state=_choice(NodeFilter, asked, "state"),
        with_gpus=with_gpus,
        with_holders=with_holders,
        live=live,
    )


def pods_query(asked: Mapping[str, str]) -> PodsQuery:
    _check(asked, "limit", "more", "sort", "by", "order", "namespace", "name", "node", "stage", "live")
    live = _flag(asked, "live")
    sort = _choice(PodSort, asked, "sort") or PodSort.NAME
    _needs_live(sort, BY_POD_USE, live=live)
    return PodsQuery(
        page=_page(asked, MOST_ROWS),
        sort=sort,
        by_part=_by_part(("pod", "container"), asked, sort, OF_CONTAINERS),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", "").lower(),
        node=asked.get("node", ""),
        stages=_STAGES[_word(asked, "stage", [*_STAGES])] if "stage" in asked else ALL_STAGES,
        live=live,
    )


def namespaces_query(asked: Mapping[str, str]) -> NamespacesQuery:
    _check(asked, "limit", "more", "sort", "order", "namespace", "live")
    live = _flag(asked, "live")
    sort = _choice(NamespaceSort, asked, "sort") or NamespaceSort.NAME
    _needs_live(sort, BY_NAMESPACE_USE, live=live)
    return NamespacesQuery(_page(asked, MOST_ROWS), sort, asked.get("namespace", ""), live)


def events_query(asked: Mapping[str, str]) -> EventsQuery:
    """The newest first unless another order is asked for."""
    _check(asked, "limit", "more", "order", "namespace", "node", "kind")
    return EventsQuery(
        page=_page({"order": _DESCENDING} | dict(asked), MOST_ROWS),
        namespace=asked.get("namespace", ""),
        node=asked.get("node", ""),
        kind=_choice(ClusterEventKind, asked, "kind"),
    )


def live_query(asked: Mapping[str, str]) -> bool:
    """Of a path without other parameters: whether live use is asked for."""
    _check(asked, "live")
    return _flag(asked, "live")


def _check(asked: Mapping[str, str], *known: str) -> None:
    for name, value in asked.items():
        if name not in known:
            raise ParseError(f"{name[:40]!r} is not a parameter; the parameters are {', '.join(known)}")
        if len(value) > _LONGEST:
            raise ParseError(f"{name} has more than {_LONGEST} characters")


def _page(asked: Mapping[str, str], most: int) -> PageQuery:
    text = asked.get("limit", str(min(_USUAL_ROWS, most)))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
        raise ParseError(f"limit is {text[:20]!r}; write a number from 1 to {most}")
    is_descending = _word(asked, "order", ("asc", _DESCENDING)) == _DESCENDING
    return PageQuery(int(text), asked.get("more", ""), is_descending)


def _choice(kind: type[_Chosen], asked: Mapping[str, str], name: str) -> _Chosen | None:
    return kind(_word(asked, name, [str(each.value) for each in kind])) if name in asked else None


def _word(asked: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """The first where none is written."""
    text = asked.get(name, allowed[0])
    if text not in allowed:
        raise ParseError(f"{name} is {text[:20]!r}; write one of {', '.join(allowed)}")
    return text


def _needs_live(sort: enum.Enum, by_use: Collection[enum.Enum], *, live: bool) -> None:
    if sort in by_use and not live:
        raise ParseError(f"sort={sort.value} needs live=1, because the agents say what is used")


def _by_part(
    words: tuple[str, str], asked: Mapping[str, str], sort: enum.Enum, has_parts: Collection[enum.Enum]
) -> bool:
    """Whether `by` names the part, the second word: a row stands where its first GPU or container stands.

    Orders in which all parts of a row are equal have none.
    """
    is_part = _word(asked, "by", words) == words[1]
    if is_part and sort not in has_parts:
        orders = ", ".join(str(each.value) for each in has_parts)
        raise ParseError(f"by={words[1]} needs an order of its own amounts; set sort to one of {orders}")
    return is_part


def _flag(asked: Mapping[str, str], name: str) -> bool:
    text = asked.get(name, "0")
    if text not in ("0", "1"):
        raise ParseError(f"{name} is {text[:20]!r}; write 1 or 0")
    return text == "1"


Item = TypeVar("Item")
Row = TypeVar("Row")
Key = tuple[int | float | str, ...]
STEPS_OF_ITEM = 10
_STEPS_PER_TURN = 5_000  # of a microsecond or less
_SLICE = 500
_MOST_KEPT = 4
_LONGEST_TOKEN = 2048


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """`more` is empty on the last page; `total` counts the items of all pages."""

    items: tuple[Item, ...]
    total: int
    more: str


async def paced(items: Iterable[Item], steps: Callable[[Item], int] | None = None) -> AsyncIterator[Item]:
    """The same items; gives way to other requests. `steps`: what is done with one, where that is not always little."""
    turn = Budget(_STEPS_PER_TURN)
    for item in items:
        if not turn.may(STEPS_OF_ITEM if steps is None else steps(item)):
            turn = Budget(_STEPS_PER_TURN)
            await others_turn()
        yield item


async def cut(
    items: Iterable[Item] | AsyncIterator[Item], key: Callable[[Item], Key | None], query: PageQuery
) -> Page[Item]:
    """`key` is None for items that were not asked for."""
    after, kept, total = _key_of(query.more), [], 0
    first = heapq.nlargest if query.descending else heapq.nsmallest
    async for item in items if isinstance(items, AsyncIterator) else paced(items):
        found = key(item)
        if found is not None:
            total += 1
            if after is None or _is_beyond(found, after, descending=query.descending):
                kept.append((found, item))
        if len(kept) > _MOST_KEPT * query.limit + _SLICE:
            kept = first(query.limit + 1, kept, key=_by_key)
    kept = first(query.limit + 1, kept, key=_by_key)
    shown = kept[: query.limit]
    more = _token(shown[-1][0]) if len(kept) > len(shown) else ""
    return Page(tuple(item for _, item in shown), total, more)


async def described(
    items: Iterable[Item], describe: Callable[[Item], Row], steps: Callable[[Item], int] | None = None
) -> tuple[Row, ...]:
    """All of them; gives way too."""
    return tuple([describe(item) async for item in paced(items, steps)])


def _by_key(pair: tuple[Key, Item]) -> Key:
    return pair[0]


def _is_beyond(key: Key, after: Key, *, descending: bool) -> bool:
    try:
        return key < after if descending else key > after
    except TypeError:
        raise ParseError("more belongs to another order; leave it out to begin with the first page") from None


def _token(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def _key_of(token: str) -> Key | None:
    if not token:
        return None
    if len(token) > _LONGEST_TOKEN:
        raise ParseError("more is no token of a page; take it from the previous page")
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return tuple(msgspec.json.decode(text, type=list[int | float | str]))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise ParseError("more is no token of a page; take it from the previous page") from None


NOTHING_KNOWN = NodeUse()


def node_key(row: NodeRow, gpus: Callable[[], tuple[GpuRow, ...]], use: NodeUse, query: NodesQuery) -> Key:
    """`gpus` is called only if GPUs are compared."""
    if query.sort is NodeSort.NAME:
        return (row.node,)
    if query.by_part:
        amount = _first(_gpu_amounts(gpus, use, query.sort), query.page)
    elif query.sort is NodeSort.IDLE:
        amount = node_idle(gpus(), use)
    else:
        amount = _node_amount(row, use, query.sort)
    return (*_placed(amount, query.page), row.node)


def _node_amount(row: NodeRow, use: NodeUse, sort: NodeSort) -> float | None:
    if sort is NodeSort.CORES:
        return row.cores_allocated
    if sort is NodeSort.MEMORY:
        return row.blocks_allocated
    if sort is NodeSort.FREE:
        return row.free_gpus
    live = node_live(use)
    return None if live is None else live.utilization_percent


def _gpu_amounts(gpus: Callable[[], tuple[GpuRow, ...]], use: NodeUse, sort: NodeSort) -> Iterator[float | None]:
    if sort is NodeSort.USED:
        return (each.utilization_percent for each in use.gpus.values())
    if sort is NodeSort.IDLE:
        return (idle_of(each.cores_allocated, use.percent(each.uuid)) for each in gpus())
    return (each.cores_allocated if sort is NodeSort.CORES else each.blocks_allocated for each in gpus())


def amounts_place(uid: str, containers: Iterable[ContainerRow], use: NodeUse, query: PodsQuery) -> Key:
    """The first part of a pod's key in an order by amounts; its name and node make it unique."""
    found = [_row_amount(uid, each, use, query.sort) for each in containers]
    return _placed(_first(found, query.page) if query.by_part else known_sum(found), query.page)


def _row_amount(uid: str, row: ContainerRow, use: NodeUse, sort: PodSort) -> float | None:
    if sort in (PodSort.CORES, PodSort.MEMORY):
        return row.cores if sort is PodSort.CORES else row.blocks
    lives = [use.shares.get((uid, row.name, share.uuid)) for share in row.shares]
    if sort is PodSort.IDLE:
        return known_sum(
            idle_of(share.cores, None if live is None else live.cores_used)
            for share, live in zip(row.shares, lives, strict=True)
        )
    known = [each for each in lives if each is not None]
    if sort is PodSort.USED:
        return known_sum(each.cores_used for each in known)
    if sort is PodSort.USED_MEMORY:
        return known_sum(each.memory_used_bytes for each in known)
    return known_sum(each.throttled_seconds for each in known)


def namespace_key(row: NamespaceRow, query: NamespacesQuery) -> Key:
    if query.sort is NamespaceSort.NAME:
        return (row.namespace,)
    amounts = {
        NamespaceSort.CORES: row.cores,
        NamespaceSort.MEMORY: row.blocks,
        NamespaceSort.USED: row.cores_used,
        NamespaceSort.USED_MEMORY: row.memory_used_bytes,
        NamespaceSort.IDLE: row.cores_idle,
    }
    return (*_placed(amounts[query.sort], query.page), row.namespace)


def _first(amounts: Iterable[float | None], page: PageQuery) -> float | None:
    known = [each for each in amounts if each is not None]
    return (max if page.descending else min)(known, default=None)


def _placed(amount: float | None, page: PageQuery) -> tuple[int, float]:
    """What is not known comes after all that is; pages in descending order begin with the greatest key."""
    is_known = amount is not None
    return (int(is_known == page.descending), amount if amount is not None else 0.0)
