"""The pod as the JSON it is, read and written without losing what we do not know.

In: what a JSON decoder made of a pod; any member may be missing, null, or of a kind that the API would refuse. Out: its
objects and lists, or a ParseError that names the place. Not here: what the members mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import ContainerRole

Json = dict[str, Any]
MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class JsonContainer:
    """One container of the pod's JSON, which is edited in place; `what` begins a sentence about it."""

    json: Json
    role: ContainerRole
    name: str

    @property
    def what(self) -> str:
        kind = "container" if self.role is ContainerRole.APP else "init container"
        return f"{kind} {ascii(self.name)[1:-1][:63]}"


def child(parent: Json, key: str) -> Json:
    """An object inside another; empty where it is missing or null, and then not part of its parent."""
    found = parent.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ParseError(f"the pod's {key} is no object")
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
        raise ParseError(f"the pod's {key} is no list of objects")
    return found


def texts(parent: Json, key: str) -> dict[str, str]:
    """A map of texts: labels or annotations."""
    found = child(parent, key)
    if not all(isinstance(value, str) for value in found.values()):
        raise ParseError(f"the pod's {key} hold something that is no text")
    return found


def metadata(pod: Json) -> Json:
    return child(pod, "metadata")


def annotations(pod: Json) -> dict[str, str]:
    return texts(metadata(pod), "annotations")


def annotate(pod: Json, name: str, text: str) -> None:
    made_child(made_child(pod, "metadata"), "annotations")[name] = text


def spec(pod: Json) -> Json:
    return child(pod, "spec")


def containers(pod: Json) -> Iterator[JsonContainer]:
    """In kubelet's order; ephemeral containers cannot ask for resources."""
    for each in objects(spec(pod), "initContainers"):
        role = ContainerRole.SIDECAR if each.get("restartPolicy") == "Always" else ContainerRole.INIT
        yield JsonContainer(each, role, _name(each))
    for each in objects(spec(pod), "containers"):
        yield JsonContainer(each, ContainerRole.APP, _name(each))


def _name(container: Json) -> str:
    name = container.get("name")
    return name if isinstance(name, str) else ""
