"""A collection of objects of the API server: which objects, how one is parsed, and reading pages and watch lines.

In: a path, selectors, a schema, a function from the schema to a value. Out: `Collection`, which `client` lists and
watches and `reflector` caches; `Listing`, all values at one version; `WatchEvent`, one line of a watch. Not here:
retries, except inside one list.
"""

import enum
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from deviceplugin.errors import KubeError, KubeGoneError, ParseError
from deviceplugin.kube.api_errors import TOO_LARGE, refusal
from deviceplugin.kube.structs import ListMeta, Object, Page, StatusObject, WatchLine, decode
from deviceplugin.loop_turn import others_turn

if TYPE_CHECKING:  # it loads an HTTP client, which reading objects from a file does not need
    from deviceplugin.kube.transport import Transport

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Schema = TypeVar("Schema", bound=Object)
_PAGE = 500
_SMALLER = 20
_ATTEMPTS = 3
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Seen(Generic[Value]):
    """One object of a list or watch; `item` is None if vcuda does not need it."""

    version: str
    item: Value | None


Reader = Callable[[bytes], Seen[Value]]


@dataclass(frozen=True, slots=True)
class Collection(Generic[Key, Value]):
    """`what` completes `list ...`.

    Of two objects with the same key the later one counts; `identity` differs between them.
    """

    what: str
    path: str
    read: Reader[Value]
    key: Callable[[Value], Key]
    identity: Callable[[Value], str]
    query: Mapping[str, str] = field(default_factory=dict)


def reader(schema: type[Schema], value: Callable[[Schema], Value], *, what: str) -> Reader[Value]:

    def read(raw: bytes) -> Seen[Value]:
        found = decode(schema, raw, what=what)
        return Seen(found.metadata.resource_version, value(found))

    return read


@dataclass(frozen=True, slots=True)
class Listing(Generic[Key, Value]):
    """All values at one version of the cluster. A watch continues from this version."""

    items: Mapping[Key, Value]
    version: str


async def list_all(
    transport: "Transport", collection: Collection[Key, Value], kept: Mapping[Key, Value]
) -> Listing[Key, Value]:
    """Starts again if the pages were compacted, and with smaller pages if a page is too large to read.

    A value that equals a kept one is replaced by it, so that a second list needs no second memory.
    """
    size = _PAGE
    for _ in range(_ATTEMPTS - 1):
        try:
            return await _list_once(transport, collection, kept, size)
        except KubeGoneError:
            continue
        except KubeError as error:
            if error.code != TOO_LARGE:
                raise
            size = max(1, size // _SMALLER)
    return await _list_once(transport, collection, kept, size)


async def _list_once(
    transport: "Transport", collection: Collection[Key, Value], kept: Mapping[Key, Value], size: int
) -> Listing[Key, Value]:
    found: dict[Key, Value] = {}
    query = {**collection.query, "limit": str(size)}
    while True:
        body = await transport.request("GET", collection.path, what=f"list {collection.what}", query=query)
        page = decode(Page, body, what=f"the API server's list of {collection.what}")
        for number, raw in enumerate(page.items or ()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await others_turn()
            item = collection.read(bytes(raw)).item
            if item is not None:
                key = collection.key(item)
                known = kept.get(key)
                found[key] = known if known is not None and known == item else item
        meta = page.metadata or ListMeta()
        if not meta.continue_:
            return Listing(found, meta.resource_version)
        query["continue"] = meta.continue_


class EventKind(enum.Enum):
    """The type of a watch line; a bookmark only has a new version."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[Value]):
    """A change, and the version from which to continue; after a deletion `item` is the last state.

    `item` is None in a bookmark, and if vcuda does not need the object.
    """

    kind: EventKind
    version: str
    item: Value | None = None


def read_line(line: bytes, collection: Collection[Key, Value]) -> WatchEvent[Value]:
    """Parses a watch line. An ERROR line raises its error (410: KubeGoneError), any other text ParseError."""
    what = f"the watch of {collection.what}"
    found = decode(WatchLine, line, what=what)
    if found.type == "ERROR":
        raise _error(bytes(found.object), what)
    if found.type not in EventKind.__members__:
        raise ParseError(f"{what} has a line of unknown type {found.type[:40]!a}")
    kind = EventKind[found.type]
    if kind is EventKind.BOOKMARK:
        return WatchEvent(kind, decode(Object, found.object, what=what).metadata.resource_version)
    seen = collection.read(bytes(found.object))
    return WatchEvent(kind, seen.version, seen.item)


def _error(status: bytes, what: str) -> KubeError:
    code = decode(StatusObject, status, what=what).code or 500
    return refusal(code, status, what=f"go on with {what}")
