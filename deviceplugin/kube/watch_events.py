"""One line of a watch as a value.

In: a line of JSON, and the collection that is watched. Out: a `WatchEvent`; an ERROR line becomes the error that it
says, 410 as KubeGoneError; a line that is none becomes ParseError.
"""

import enum
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic

from deviceplugin.errors import KubeError, ParseError
from deviceplugin.kube.collection import NOTHING_KEPT, Collection, Kept, Key, Value
from deviceplugin.kube.structs import Head, StatusObject, WatchLine, decode
from deviceplugin.kube.transport import refusal


class EventKind(enum.Enum):
    """What a line of a watch says; a bookmark only moves the version on."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[Value]):
    """A change, and the version to go on from; `item` is the last state in a deletion.

    It is None in a bookmark, and where the object is none of ours.
    """

    kind: EventKind
    version: str
    item: Value | None = None


_HEADS = {
    f'{{"type":"{kind.value}","object":'.encode(): kind
    for kind in (EventKind.ADDED, EventKind.MODIFIED, EventKind.DELETED)
}
"""How the API server begins nearly all lines; what follows is the object and one brace, or it is not JSON at all."""


def read_line(line: bytes, collection: Collection[Key, Value], kept: Kept = NOTHING_KEPT) -> WatchEvent[Value]:
    """A watch line as an event; raises what an ERROR line says."""
    begin = line.find(b"{", 1)
    kind = _HEADS.get(line[:begin])
    if kind is not None and line.endswith(b"}}"):
        with suppress(ParseError):
            seen = collection.read(line[begin:-1], kept)
            return WatchEvent(kind, seen.version, seen.item)
    return _read_any(line, collection, kept)


def _read_any(line: bytes, collection: Collection[Key, Value], kept: Kept) -> WatchEvent[Value]:
    """However it is written: the line is read once for its type, and its object again."""
    what = f"the watch of {collection.what}"
    found = decode(WatchLine, line, what=what)
    if found.type == "ERROR":
        raise _error(bytes(found.object), what)
    if found.type not in EventKind.__members__:
        raise ParseError(f"{what} has a line of unknown type {found.type[:40]!a}")
    kind = EventKind[found.type]
    if kind is EventKind.BOOKMARK:
        return WatchEvent(kind, decode(Head, found.object, what=what).metadata.resource_version)
    seen = collection.read(bytes(found.object), kept)
    return WatchEvent(kind, seen.version, seen.item)


def _error(status: bytes, what: str) -> KubeError:
    code = decode(StatusObject, status, what=what).code or 500
    return refusal(code, status, what=f"go on with {what}")
