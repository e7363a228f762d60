"""Decodes of a pod only what the webhook reads.

In: a pod as JSON. Out: the same pod, in which every other member is the bytes that came (`msgspec.Raw`); a ParseError
for a pod with far more containers or members than any real one.
Invariant: memory and time are bounded, whatever was sent. Anybody who reaches the port may send a review, and a list of
a million empty lists, decoded and copied, would hold the event loop for seconds and take hundreds of MiB.

Members that are not read stay, as bytes, because a patch that replaces a list must contain them. A member of a wrong
type becomes bytes or a scalar, and `pod_json` reports it when it is read.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.errors import ParseError
from deviceplugin.kube.structs import decode_strict

_WHAT = "the pod"
_MOST_CONTAINERS = 1000
_MOST_MEMBERS = 100_000
_LONGEST_ANNOTATION = 256 << 10  # Kubernetes' limit for all annotations of an object


@dataclass(frozen=True, slots=True)
class _Scalar:
    """A text, a number, a boolean or null."""


@dataclass(frozen=True, slots=True)
class _Map:
    """An object, of which every member is a scalar; texts of at most `longest` characters."""

    longest: int | None = None


@dataclass(frozen=True, slots=True)
class _List:
    of: "_Shape"
    most: int = _MOST_MEMBERS


_Shape = _Scalar | _Map | _List | dict[str, "_Shape"]
_SCALAR, _MAP = _Scalar(), _Map()
_CONTAINERS = _List(
    {
        "name": _SCALAR,
        "restartPolicy": _SCALAR,
        "env": _List({"name": _SCALAR, "value": _SCALAR}),
        "resources": {"limits": _MAP, "requests": _MAP, "claims": _List(_MAP)},
        "securityContext": {"privileged": _SCALAR, "capabilities": {"add": _List(_SCALAR)}},
        "volumeMounts": _List({"name": _SCALAR, "mountPath": _SCALAR}),
    },
    _MOST_CONTAINERS,
)
_TERMS = _List(
    {
        "matchFields": _List({"key": _SCALAR, "operator": _SCALAR, "values": _List(_SCALAR)}),
        "matchExpressions": _List(_SCALAR),
    }
)
_PREFERRING: dict[str, _Shape] = {"preferredDuringSchedulingIgnoredDuringExecution": _List(_SCALAR)}
_POD: _Shape = {
    "metadata": {"annotations": _Map(_LONGEST_ANNOTATION), "labels": _MAP},
    "spec": {
        "containers": _CONTAINERS,
        "initContainers": _CONTAINERS,
        "resourceClaims": _List(_MAP),
        "nodeName": _SCALAR,
        "schedulerName": _SCALAR,
        "runtimeClassName": _SCALAR,
        "hostPID": _SCALAR,
        "volumes": _List({"name": _SCALAR, "hostPath": {"path": _SCALAR}}),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _TERMS},
                **_PREFERRING,
            },
            "podAffinity": _PREFERRING,
            "podAntiAffinity": _PREFERRING,
        },
        "topologySpreadConstraints": _List({"whenUnsatisfiable": _SCALAR}),
    },
}


def read_pod(raw: msgspec.Raw) -> Json:
    found = _Reader().read(raw, _POD)
    if not isinstance(found, dict):
        raise ParseError("the admission review has no pod; expected an object")
    return found


class _Reader:
    """Counts the members of one pod."""

    def __init__(self) -> None:
        self._left = _MOST_MEMBERS

    def read(self, raw: msgspec.Raw, shape: _Shape) -> object:
        first = bytes(memoryview(raw)[:1])
        if isinstance(shape, _List) and first == b"[":
            return self._list(raw, shape)
        if isinstance(shape, _Map) and first == b"{":
            return self._map(raw, shape)
        if isinstance(shape, dict) and first == b"{":
            return self._object(raw, shape)
        return raw if first in (b"[", b"{") else decode_strict(Any, raw, what=_WHAT)

    def _list(self, raw: msgspec.Raw, shape: _List) -> list[object]:
        found = decode_strict(list[msgspec.Raw], raw, what=_WHAT)
        if len(found) > shape.most:
            raise ParseError(f"the pod has a list of {len(found)} items where at most {shape.most} are read")
        self._count(len(found))
        return [self.read(each, shape.of) for each in found]

    def _object(self, raw: msgspec.Raw, shape: dict[str, _Shape]) -> Json:
        found = self._members(raw)
        for key in shape.keys() & found.keys():
            found[key] = self.read(found[key], shape[key])
        return found

    def _map(self, raw: msgspec.Raw, shape: _Map) -> Json:
        found = {key: self.read(value, _SCALAR) for key, value in self._members(raw).items()}
        for key, value in found.items():
            if shape.longest is not None and isinstance(value, str) and len(value) > shape.longest:
                raise ParseError(f"the pod's {ascii(key)[1:-1][:80]} is longer than {shape.longest} characters")
        return found

    def _members(self, raw: msgspec.Raw) -> Json:
        found: Json = decode_strict(dict[str, msgspec.Raw], raw, what=_WHAT)
        self._count(len(found))
        return found

    def _count(self, more: int) -> None:
        self._left -= more
        if self._left < 0:
            raise ParseError(f"the pod has more than {_MOST_MEMBERS} members that must be read; use fewer")
