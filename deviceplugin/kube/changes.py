"""One line of a watch as a value.

In: a line of JSON. Out: a `PodEvent`; an ERROR line becomes the error that it says, 410 as KubeGoneError; a line that
is none becomes ParseError.
"""

import enum
from dataclasses import dataclass

from deviceplugin.errors import KubeError, ParseError
from deviceplugin.kube.pods import pod_from
from deviceplugin.kube.structs import BookmarkObject, PodObject, StatusObject, WatchLine, decode
from deviceplugin.kube.transport import refusal
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

_WHAT = "the watch of pods"


class EventKind(enum.Enum):
    """What a line of a watch says; a bookmark only moves the version on."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A change, and the version to go on from; `pod` is None in a bookmark, the last state in a deletion."""

    kind: EventKind
    version: str
    pod: Pod | None = None


def read_line(line: bytes, names: ResourceNames) -> PodEvent:
    """A watch line as an event; raises what an ERROR line says."""
    found = decode(WatchLine, line, what=_WHAT)
    if found.type == "ERROR":
        raise _error(bytes(found.object))
    if found.type not in EventKind.__members__:
        raise ParseError(f"{_WHAT} has a line of unknown type {found.type[:40]!a}")
    kind = EventKind[found.type]
    if kind is EventKind.BOOKMARK:
        return PodEvent(kind, decode(BookmarkObject, found.object, what=_WHAT).metadata.resource_version)
    pod = pod_from(decode(PodObject, found.object, what=_WHAT), names)
    return PodEvent(kind, pod.resource_version, pod)


def _error(status: bytes) -> KubeError:
    code = decode(StatusObject, status, what=_WHAT).code or 500
    return refusal(code, status, what="go on with the watch of pods")
