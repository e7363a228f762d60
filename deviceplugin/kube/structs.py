"""What we read of the API server's JSON, as msgspec structs; everything else in it is skipped without allocation.

In: bytes from the API server or from kubelet. Out: structs for `pods`, `node` and `client`, or ParseError. Nothing
outside `kube` sees them. Every field may be missing or null: kubelet writes null for an empty list.
"""

from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError

Decoded = TypeVar("Decoded")


class Json(msgspec.Struct, rename="camel"):
    """Kubernetes writes its keys in camel case."""


class OwnerReference(Json):
    """Who made an object; one of its owners may be the controller."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Meta(Json):
    """metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Object(Json):
    """Any object: what lists and watches need of it. The schemas of single kinds add to it."""

    metadata: Meta


class HeadMeta(Json):
    """The least of metadata: labels and annotations are skipped."""

    uid: str = ""
    resource_version: str = ""


class Head(Json):
    """An object of which no more is wanted."""

    metadata: HeadMeta


class EnvVar(Json):
    """One environment variable; `value` is null where it comes from elsewhere."""

    name: str
    value: str | None = None


class Amounts(Json):
    """CPU and memory out of a list of resources, as written."""

    cpu: str | int | None = None
    memory: str | int | None = None


class Resources(Json):
    """Limits and requests as written: quantities. The API server sets requests where only limits were given."""

    limits: dict[str, str | int] | None = None
    requests: Amounts | None = None


class Container(Json):
    """A container of a pod's spec."""

    name: str
    env: list[EnvVar] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None


class Waiting(Json):
    """Why a container waits."""

    reason: str | None = None
    message: str | None = None


class Empty(Json):
    """An object of which only the presence counts."""


class State(Json):
    """One of the three is set."""

    waiting: Waiting | None = None
    running: Empty | None = None
    terminated: Empty | None = None


class ContainerStatus(Json):
    """What kubelet last reported of a container."""

    name: str
    state: State | None = None
    restart_count: int = 0
    container_id: str | None = msgspec.field(default=None, name="containerID")


class PodSpec(Json):
    """spec of a pod."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str | None = None


class PodStatus(Json):
    """status of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodObject(Object):
    """A pod."""

    spec: PodSpec | None = None
    status: PodStatus | None = None


class ListMeta(Json):
    """metadata of a list: its version, and the token of its next page."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class PodListObject(Json):
    """Kubelet's own list of pods: it has no version."""

    items: list[PodObject] | None = None


class Page(Json):
    """A page of any list; each item is read on its own."""

    items: list[msgspec.Raw] | None = None
    metadata: ListMeta | None = None


class StatusObject(Json):
    """The API server's refusal."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None


class WatchLine(Json):
    """One line of a watch; what `object` is depends on `type`."""

    type: str
    object: msgspec.Raw


def decode(type_: type[Decoded], body: bytes | msgspec.Raw, *, what: str) -> Decoded:
    """JSON into a struct; anything else is one ParseError that names `what` and the place."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{what} cannot be read: {str(error)[:200]}") from None
