"""The pod as JSON, read, changed and compared without losing unknown members.

In: a decoded pod; any member may be missing, null, of a wrong type, or bytes that nobody reads (`read_pod`). Out: its
objects and lists, or a ParseError that names the place; the difference of two values as an RFC 6902 patch. Not here:
what the members mean.

A patch names only what differs, so unknown members and changes of other webhooks stay. Its operations apply in their
order. Missing parents are added with their content. Lists are compared by index; one with another length is replaced.

Decodes of a pod only what the webhook reads.

In: a pod as JSON. Out: the same pod, in which every other member is the bytes that came (`msgspec.Raw`); a ParseError
for a pod with far more containers or members than any real one.
Invariant: memory and time are bounded, whatever was sent. Anybody who reaches the port may send a review, and a list of
a million empty lists, decoded and copied, would hold the event loop for seconds and take hundreds of MiB.

Members that are not read stay, as bytes, because a patch that replaces a list must contain them. A member of a wrong
type becomes bytes or a scalar, and `pod_json` reports it when it is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.kube.structs import decode_strict
from deviceplugin.model.allocation import ContainerRole

Json = dict[str, Any]
Operation = dict[str, Any]
"""Of a JSON patch."""
MIRROR = "kubernetes.io/config.mirror"


class JsonContainer(msgspec.Struct, frozen=True):
    """One container of the pod's JSON, changed in place; `what` begins a sentence about it."""

    json: Json
    role: ContainerRole
    name: str

    @property
    def what(self) -> str:
        kind = "container" if self.role is ContainerRole.APP else "init container"
        return f"{kind} {ascii(self.name)[1:-1][:63]}"


@contextmanager
def naming(container: JsonContainer) -> Iterator[None]:
    """A RequestError about the container begins with it."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{container.what}: {error.message}") from None


def child(parent: Json, key: str) -> Json:
    """An object inside another; empty where it is missing or null, and then not part of its parent."""
    found = parent.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ParseError(f"the pod's {key} is not an object")
    return found


def made_child(parent: Json, key: str) -> Json:
    """The same, made where it is missing."""
    if parent.get(key) is None:
        parent[key] = {}
    return child(parent, key)


def objects(parent: Json, key: str) -> list[Json]:
    """The objects of a list; empty where it is missing or null."""
    found = parent.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ParseError(f"the pod's {key} is not a list of objects")
    return found


def texts(parent: Json, key: str) -> dict[str, str]:
    """A map of strings: labels or annotations."""
    found = child(parent, key)
    if not all(isinstance(value, str) for value in found.values()):
        raise ParseError(f"the pod's {key} have a value that is not a string")
    return found


def metadata(pod: Json) -> Json:
    return child(pod, "metadata")


def annotations(pod: Json) -> dict[str, str]:
    return texts(metadata(pod), "annotations")


def annotate(pod: Json, name: str, text: str) -> None:
    made_child(made_child(pod, "metadata"), "annotations")[name] = text


def append_items(pod: Json, name: str, items: str) -> None:
    """To an annotation that is a list by commas, in which later items win."""
    written = annotations(pod).get(name)
    annotate(pod, name, f"{written},{items}" if written else items)


def spec(pod: Json) -> Json:
    return child(pod, "spec")


def containers(pod: Json) -> Iterator[JsonContainer]:
    """In kubelet's order; ephemeral containers cannot request resources."""
    for each in objects(spec(pod), "initContainers"):
        role = ContainerRole.SIDECAR if each.get("restartPolicy") == "Always" else ContainerRole.INIT
        yield JsonContainer(each, role, _name(each))
    for each in objects(spec(pod), "containers"):
        yield JsonContainer(each, ContainerRole.APP, _name(each))


def _name(container: Json) -> str:
    name = container.get("name")
    return name if isinstance(name, str) else ""


def copied(pod: Json) -> Json:
    """New objects and lists, the same leaves."""
    return {key: _copied(value) for key, value in pod.items()}


def _copied(value: object) -> object:
    if isinstance(value, dict):
        return copied(value)
    return [_copied(item) for item in value] if isinstance(value, list) else value


def difference(before: object, after: object, path: str = "") -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _members(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from difference(old, new, f"{path}/{place}")
    elif not _same_text(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _members(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Operation]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": f"{path}/{escaped(key)}"}
    for key, value in after.items():
        place = f"{path}/{escaped(key)}"
        if key not in before or (before[key] is None and value is not None):
            # A null member may be gone when the patch is applied; `add` works in both cases.
            yield {"op": "add", "path": place, "value": value}
        else:
            yield from difference(before[key], value, place)


def escaped(key: str) -> str:
    """A key as one step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _same_text(before: object, after: object) -> bool:
    """In Python 1 == True == 1.0; in JSON they differ."""
    return type(before) is type(after) and before == after


_WHAT = "the pod"
_MOST_CONTAINERS = 1000
_MOST_MEMBERS = 100_000
_LONGEST_ANNOTATION = 256 << 10  # Kubernetes' limit for all annotations of an object


_Shape = None | list["_Shape"] | dict[str, "_Shape"]
"""A scalar (a text, a number, a boolean or null), a list of items of one shape, or an object; `*` is every member."""
_SCALAR: _Shape = None
_MAP: _Shape = {"*": _SCALAR}
_CONTAINERS: _Shape = [
    {
        "name": _SCALAR,
        "restartPolicy": _SCALAR,
        "env": [{"name": _SCALAR, "value": _SCALAR}],
        "resources": {"limits": _MAP, "requests": _MAP, "claims": [_MAP]},
        "securityContext": {"privileged": _SCALAR, "capabilities": {"add": [_SCALAR]}},
        "volumeMounts": [{"name": _SCALAR, "mountPath": _SCALAR}],
    }
]
_TERM: _Shape = {
    "matchFields": [{"key": _SCALAR, "operator": _SCALAR, "values": [_SCALAR]}],
    "matchExpressions": [_SCALAR],
}
_PREFERRING: dict[str, _Shape] = {"preferredDuringSchedulingIgnoredDuringExecution": [_SCALAR]}
_POD: _Shape = {
    "metadata": {"annotations": _MAP, "labels": _MAP},
    "spec": {
        "containers": _CONTAINERS,
        "initContainers": _CONTAINERS,
        "resourceClaims": [_MAP],
        "nodeName": _SCALAR,
        "schedulerName": _SCALAR,
        "runtimeClassName": _SCALAR,
        "hostPID": _SCALAR,
        "volumes": [{"name": _SCALAR, "hostPath": {"path": _SCALAR}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]},
                **_PREFERRING,
            },
            "podAffinity": _PREFERRING,
            "podAntiAffinity": _PREFERRING,
        },
        "topologySpreadConstraints": [{"whenUnsatisfiable": _SCALAR}],
    },
}


def read_pod(raw: msgspec.Raw) -> Json:
    found = _Reader().read(raw, _POD)
    if not isinstance(found, dict):
        raise ParseError("the admission review has no pod; expected an object")
    for name, text in child(metadata(found), "annotations").items():
        if isinstance(text, str) and len(text) > _LONGEST_ANNOTATION:
            raise ParseError(f"the pod's {ascii(name)[1:-1][:80]} is longer than {_LONGEST_ANNOTATION} characters")
    return found


class _Reader:
    """Counts the members of one pod."""

    def __init__(self) -> None:
        self._left = _MOST_MEMBERS

    def read(self, raw: msgspec.Raw, shape: _Shape) -> object:
        first = bytes(memoryview(raw)[:1])
        if isinstance(shape, list) and first == b"[":
            return self._list(raw, shape)
        if isinstance(shape, dict) and first == b"{":
            return self._object(raw, shape)
        return raw if first in (b"[", b"{") else decode_strict(Any, raw, what=_WHAT)

    def _list(self, raw: msgspec.Raw, shape: list[_Shape]) -> list[object]:
        found = decode_strict(list[msgspec.Raw], raw, what=_WHAT)
        most = _MOST_CONTAINERS if shape is _CONTAINERS else _MOST_MEMBERS
        if len(found) > most:
            raise ParseError(f"the pod has a list of {len(found)} items where at most {most} are read")
        self._count(len(found))
        return [self.read(each, shape[0]) for each in found]

    def _object(self, raw: msgspec.Raw, shape: dict[str, _Shape]) -> Json:
        found: Json = decode_strict(dict[str, msgspec.Raw], raw, what=_WHAT)
        self._count(len(found))
        for key in found.keys() if shape is _MAP else shape.keys() & found.keys():
            found[key] = self.read(found[key], shape.get(key))
        return found

    def _count(self, more: int) -> None:
        self._left -= more
        if self._left < 0:
            raise ParseError(f"the pod has more than {_MOST_MEMBERS} members that must be read; use fewer")
