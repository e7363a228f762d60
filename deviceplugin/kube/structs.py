"""What we read of the API server's JSON, as msgspec structs; everything else in it is skipped without allocation.

In: bytes from the API server or from kubelet. Out: structs for `pods`, `node` and `client`, or ParseError. Nothing
outside `kube` sees them. Every field may be missing or null: kubelet writes null for an empty list.
"""

from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError

Decoded = TypeVar("Decoded")


class _Json(msgspec.Struct, rename="camel"):
    pass


class OwnerReference(_Json):
    """Who made an object; one of its owners may be the controller."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Meta(_Json):
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


class EnvVar(_Json):
    """One environment variable; `value` is null where it comes from elsewhere."""

    name: str
    value: str | None = None


class Resources(_Json):
    """Limits as written: quantities."""

    limits: dict[str, str | int] | None = None


class Container(_Json):
    """A container of a pod's spec."""

    name: str
    env: list[EnvVar] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None


class Waiting(_Json):
    """Why a container waits."""

    reason: str | None = None
    message: str | None = None


class Empty(_Json):
    """An object of which only the presence counts."""


class State(_Json):
    """One of the three is set."""

    waiting: Waiting | None = None
    running: Empty | None = None
    terminated: Empty | None = None


class ContainerStatus(_Json):
    """What kubelet last reported of a container."""

    name: str
    state: State | None = None
    restart_count: int = 0
    container_id: str | None = msgspec.field(default=None, name="containerID")


class PodSpec(_Json):
    """spec of a pod."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str | None = None


class PodStatus(_Json):
    """status of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodObject(_Json):
    """A pod."""

    metadata: Meta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class ListMeta(_Json):
    """metadata of a list: its version, and the token of its next page."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class PodListObject(_Json):
    """A page of pods. Kubelet's own list has no version."""

    items: list[PodObject] | None = None
    metadata: ListMeta | None = None


class NodeObject(_Json):
    """A node: labels and annotations are all that we touch."""

    metadata: Meta


class StatusObject(_Json):
    """The API server's refusal."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None


class WatchLine(_Json):
    """One line of a watch; what `object` is depends on `type`."""

    type: str
    object: msgspec.Raw


class BookmarkObject(_Json):
    """An object of which only the version is set."""

    metadata: Meta


def decode(type_: type[Decoded], body: bytes | msgspec.Raw, *, what: str) -> Decoded:
    """JSON into a struct; anything else is one ParseError that names `what` and the place."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{what} cannot be read: {str(error)[:200]}") from None
