"""Kinds of objects of the API server and collections of them, and the reading of pages and watch lines.

In: a group, a schema, a function from the schema to a value; selectors. Out: `ObjectKind`, of which `client` gets and
changes one object; `Collection`, which it lists and watches and `reflector` caches; `Listing`, all values at one
version; `WatchEvent`, one line of a watch. Invariant: an object that cannot be read, whatever its writer did, hides no
other one, and is never taken for one that is gone. Not here: retries, except inside one list.
"""

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from deviceplugin.errors import KubeError, KubeGoneError, ParseError
from deviceplugin.kube.api_errors import TOO_LARGE, refusal
from deviceplugin.kube.structs import (
    Identified,
    ListMeta,
    Object,
    Page,
    StatusObject,
    WatchLine,
    decode,
    decode_strict,
    readable,
)
from deviceplugin.latest import others_turn

if TYPE_CHECKING:  # it loads an HTTP client, which reading objects from a file does not need
    from deviceplugin.kube.transport import Transport

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
AnySchema = TypeVar("AnySchema")
_PAGE = 500
_SMALLER = 20
_ATTEMPTS = 3
_AT_ONCE = 32


ObjectName = tuple[str, str]
"""Namespace and name."""


class Ref(Protocol):
    """Which object: `namespace` is empty for kinds without, `uid` for whichever object has the name."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class ObjectRef(msgspec.Struct, frozen=True):
    """Any object by its name."""

    namespace: str
    name: str
    uid: str = ""

    @property
    def key(self) -> ObjectName:
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Unreadable(msgspec.Struct, frozen=True):
    """An object that exists and cannot be read; `name` with its namespace."""

    uid: str
    name: str
    error: str


class Seen(msgspec.Struct, Generic[Value], frozen=True):
    """One object of a list or watch; `item` is None if vcuda does not need it, or cannot read it."""

    version: str
    item: Value | None
    unreadable: Unreadable | None = None


Reader = Callable[[bytes], Seen[Value]]


class Collection(msgspec.Struct, Generic[Key, Value], frozen=True):
    """`what` completes `list ...`.

    Of two objects with the same key that of the higher `rank` counts, of equal ones the later; `identity` differs
    between them.
    """

    what: str
    path: str
    read: Reader[Value]
    key: Callable[[Value], Key]
    identity: Callable[[Value], str]
    rank: Callable[[Value], int] = lambda _: 0
    query: Mapping[str, str] = msgspec.field(default_factory=dict)


def _seen(raw: bytes, collection: Collection[Key, Value]) -> Seen[Value]:
    """Raises ParseError only for what does not even say which object it is."""
    try:
        return collection.read(raw)
    except (ParseError, msgspec.ValidationError) as error:
        meta = decode(Identified, raw, what=f"one of {collection.what}").metadata
        return Seen(meta.resource_version, None, Unreadable(meta.uid, str(meta), str(error)))


class ObjectKind(msgspec.Struct, Generic[AnySchema, Value], frozen=True):
    """Where the API server has the objects of one kind, and what one becomes here.

    `name` is its `kind`, `noun` what sentences call it. `uid` is the UID of a value, of kinds that are asked for by UID
    or watched.
    """

    version: str
    plural: str
    name: str
    noun: str
    schema: type[AnySchema]
    value: Callable[[AnySchema], Value]
    uid: Callable[[Value], str] = lambda _: ""

    def path(self, namespace: str | None = None, *rest: str) -> str:
        """Parts are quoted: a name from outside cannot change the path. A port goes with a name to the proxy.

        An empty namespace is a mistake, and must not become all of them.
        """
        if namespace == "":
            raise KubeError(f"no namespace is named in which to look for the {self.noun}")
        group = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        parts = (*(() if namespace is None else ("namespaces", namespace)), self.plural, *rest)
        return "/".join((group, *(quote(part, safe=":") for part in parts)))

    def read(self, body: bytes | msgspec.Raw) -> Value:
        return self.value(decode(self.schema, body, what=f"the {self.noun}"))

    def as_written(self) -> "ObjectKind[dict[str, Any], dict[str, Any]]":
        """The JSON itself, for who hands it on."""
        return ObjectKind(self.version, self.plural, self.name, self.noun, dict[str, Any], lambda found: found)

    def collection(
        self: "ObjectKind[Any, Value]",
        what: str,
        *,
        key: Callable[[Value], Key],
        rank: Callable[[Value], int] = lambda _: 0,
        query: Mapping[str, str] | None = None,
    ) -> Collection[Key, Value]:
        """Those of all namespaces; `what` completes `list ...`."""

        def read(raw: bytes) -> Seen[Value]:
            found = decode(self.schema, raw, what=f"the {self.noun}")
            return Seen(found.metadata.resource_version, self.value(found))

        return Collection(what, self.path(), read, key, self.uid, rank, query or {})


class Listing(msgspec.Struct, Generic[Key, Value], frozen=True):
    """All values at one version of the cluster. A watch continues from this version.

    `unreadable`, by UID, exist too. Of these `items` has what was known before.
    """

    items: Mapping[Key, Value]
    version: str
    unreadable: Mapping[str, Unreadable] = msgspec.field(default_factory=dict)


async def list_all(
    transport: "Transport", collection: Collection[Key, Value], kept: Mapping[Key, Value]
) -> Listing[Key, Value]:
    """Starts again if the pages were compacted.

    A value that equals a kept one is replaced by it, so that a second list needs no second memory.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return await _list_once(transport, collection, kept)
        except KubeGoneError:
            continue
    return await _list_once(transport, collection, kept)


async def pages(transport: "Transport", path: str, what: str, query: Mapping[str, str]) -> AsyncGenerator[Page]:
    """The pages of a list, one in memory at a time; smaller ones if one is too large to read."""
    size, more = _PAGE, ""
    while True:
        asked = {**query, "limit": str(size), **({"continue": more} if more else {})}
        try:
            body = await transport.request("GET", path, what=f"list {what}", query=asked)
        except KubeError as error:
            if error.code != TOO_LARGE or size == 1:
                raise
            size = max(1, size // _SMALLER)
            continue
        page = await _page(body, what=f"the API server's list of {what}")
        yield page
        more = (page.metadata.continue_ or "") if page.metadata is not None else ""
        if not more:
            return


async def _list_once(
    transport: "Transport", collection: Collection[Key, Value], kept: Mapping[Key, Value]
) -> Listing[Key, Value]:
    found: dict[Key, Value] = {}
    unreadable: dict[str, Unreadable] = {}
    version = ""
    async for page in pages(transport, collection.path, collection.what, collection.query):
        for number, raw in enumerate(page.items or ()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await others_turn()
            seen = _seen(bytes(raw), collection)
            if seen.unreadable is not None:
                unreadable[seen.unreadable.uid] = seen.unreadable
            elif seen.item is not None:
                key = collection.key(seen.item)
                if key in found and collection.rank(found[key]) > collection.rank(seen.item):
                    continue
                known = kept.get(key)
                found[key] = known if known is not None and known == seen.item else seen.item
        version = (page.metadata or ListMeta()).resource_version
    return Listing(_with_known(found, unreadable, collection, kept), version, unreadable)


async def _page(body: bytes, *, what: str) -> Page:
    try:
        return decode_strict(Page, body, what=what)
    except ParseError:
        return decode_strict(Page, await asyncio.to_thread(readable, body), what=what)


def _with_known(
    found: dict[Key, Value],
    unreadable: Mapping[str, Unreadable],
    collection: Collection[Key, Value],
    kept: Mapping[Key, Value],
) -> Mapping[Key, Value]:
    """Nothing is given back because its object could not be read."""
    if not unreadable:
        return found
    return {key: known for key, known in kept.items() if collection.identity(known) in unreadable} | found


class EventKind(enum.Enum):
    """The type of a watch line; a bookmark only has a new version."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[Value], frozen=True):
    """A change, and the version from which to continue; after a deletion `item` is the last state.

    `item` is None in a bookmark, and if vcuda does not need the object or cannot read it.
    """

    kind: EventKind
    version: str
    item: Value | None = None
    unreadable: Unreadable | None = None


async def read_any_line(line: bytes, collection: Collection[Key, Value]) -> WatchEvent[Value]:
    """As `read_line`, for an object however unusual."""
    try:
        return read_line(line, collection)
    except ParseError:
        return read_line(await asyncio.to_thread(readable, line), collection)


def read_line(line: bytes, collection: Collection[Key, Value]) -> WatchEvent[Value]:
    """Parses a watch line. An ERROR line raises its error (410: KubeGoneError), any other text ParseError."""
    what = f"the watch of {collection.what}"
    found = decode_strict(WatchLine, line, what=what)
    if found.type == "ERROR":
        raise _error(bytes(found.object), what)
    if found.type not in EventKind.__members__:
        raise ParseError(f"{what} has a line of unknown type {found.type[:40]!a}")
    kind = EventKind[found.type]
    if kind is EventKind.BOOKMARK:
        return WatchEvent(kind, decode(Object, found.object, what=what).metadata.resource_version)
    seen = _seen(bytes(found.object), collection)
    return WatchEvent(kind, seen.version, seen.item, seen.unreadable)


def _error(status: bytes, what: str) -> KubeError:
    code = decode(StatusObject, status, what=what).code or 500
    return refusal(code, status, what=f"go on with {what}")
