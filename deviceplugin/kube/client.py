"""Objects of the API server, read and changed: one way for all kinds, and with it the requests that the agent needs.

In: an `ObjectKind` or a `Collection`, and which object; references, annotations. Out: values; `KubeError` and its
subclasses (404, 409, 410); `ParseError` if an answer cannot be read. A UID in a reference is a precondition: a later
object of the same name is never touched. Not here: retries and caches.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec

from deviceplugin.errors import KubeConflictError, KubeError, KubeNotFoundError, VcudaError
from deviceplugin.kube.collection import (
    Collection,
    Key,
    Listing,
    ObjectKind,
    ObjectRef,
    Ref,
    Value,
    WatchEvent,
    list_all,
    pages,
    read_any_line,
)
from deviceplugin.kube.pods import pod_kind
from deviceplugin.kube.resource_claims import CLAIMS, STATED_CLAIMS, with_devices
from deviceplugin.kube.resource_slices import SLICES, NodeSlice, owned_slice
from deviceplugin.kube.structs import Json, Object, decode
from deviceplugin.kube.transport import MERGE, Transport
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.claims import Claim, ClaimRef, DeviceStatus
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

Owners = Sequence[Mapping[str, str]]
"""metadata.ownerReferences."""

_INVALID = 422
_NO_QUERY: Mapping[str, str] = MappingProxyType({})


class _Version(Json):
    """The answer of /version."""

    git_version: str = ""


class _AccessStatus(Json):
    """status of an access review."""

    allowed: bool = False


class _AccessReview(Json):
    """The answer of a SubjectAccessReview, or of one about the caller himself."""

    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


def access_reviews(plural: str, name: str) -> ObjectKind[_AccessReview, bool]:
    """A kind of review; its value says whether the access is allowed."""
    return ObjectKind(
        "authorization.k8s.io/v1",
        plural,
        name,
        "review of an access",
        _AccessReview,
        lambda found: found.status.allowed,
    )


_OWN_ACCESS = access_reviews("selfsubjectaccessreviews", "SelfSubjectAccessReview")


class _Account(Json):
    """status.userInfo of a SelfSubjectReview."""

    username: str = ""
    uid: str = ""


class _SelfStatus(Json):
    """status of a SelfSubjectReview."""

    user_info: _Account = msgspec.field(default_factory=_Account)


class _SelfReview(Json):
    """The answer of a SelfSubjectReview."""

    status: _SelfStatus = msgspec.field(default_factory=_SelfStatus)


_WHO_AM_I = ObjectKind(
    "authentication.k8s.io/v1",
    "selfsubjectreviews",
    "SelfSubjectReview",
    "review of the caller",
    _SelfReview,
    lambda found: found.status.user_info,
)


class ObjectClient:
    """`what` completes `the API server refused to ...`. Use it with `async with`, or call `close` at the end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def close(self) -> None:
        await self._transport.close()

    async def list(
        self, collection: Collection[Key, Value], *, kept: Mapping[Key, Value] = MappingProxyType({})
    ) -> Listing[Key, Value]:
        """All objects of a collection, read in pages; `kept` are the values that the caller has already."""
        return await list_all(self._transport, collection, kept)

    async def watch(
        self,
        collection: Collection[Key, Value],
        *,
        version: str,
        seconds: int,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent[Value]]:
        """Changes after a version, for at most `seconds`; use it with `contextlib.aclosing`.

        `opened` is called when the server accepts the watch. The server may send nothing until something changes.
        """
        query = {
            **collection.query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        what = f"watch {collection.what}"
        async with aclosing(self._transport.lines(collection.path, what=what, query=query, opened=opened)) as lines:
            async for line in lines:
                yield await read_any_line(line, collection)

    async def each(
        self,
        kind: ObjectKind[Any, Value],
        namespace: str | None = None,
        *,
        what: str,
        query: Mapping[str, str] = _NO_QUERY,
    ) -> AsyncGenerator[Value]:
        """One object after the other, with one page in memory; `what` completes `list ...`. Without a namespace all."""
        async for page in pages(self._transport, kind.path(namespace), what, query):
            for raw in page.items or ():
                yield kind.read(raw)

    async def get(self, kind: ObjectKind[Any, Value], ref: Ref, *, what: str = "") -> Value:
        """Raises KubeNotFoundError also if the name belongs to another object now."""
        path = kind.path(ref.namespace or None, ref.name)
        found = kind.read(await self._transport.request("GET", path, what=what or f"get {kind.noun} {ref}"))
        if ref.uid and kind.uid(found) != ref.uid:
            raise _taken_over(KubeNotFoundError, kind, ref, 404)
        return found

    async def text(
        self, kind: ObjectKind[Any, Any], ref: Ref, *part: str, what: str, query: Mapping[str, str] = _NO_QUERY
    ) -> str:
        """A subresource that is text: a log, or what is behind the API server's proxy."""
        path = kind.path(ref.namespace or None, ref.name, *part)
        return (await self._transport.request("GET", path, what=what, query=query)).decode(errors="replace")

    async def version(self) -> str:
        """The API server's, such as v1.36.0."""
        body = await self._transport.request("GET", "/version", what="get /version")
        return decode(_Version, body, what="the API server's version").git_version

    async def create(
        self,
        kind: ObjectKind[Any, Value],
        namespace: str,
        document: Mapping[str, object],
        *,
        what: str,
        query: Mapping[str, str] = _NO_QUERY,
    ) -> Value:
        """Raises KubeConflictError if the name exists."""
        body = msgspec.json.encode({"apiVersion": kind.version, "kind": kind.name, **document})
        path = kind.path(namespace or None)
        return kind.read(await self._transport.request("POST", path, what=what, body=body, query=query))

    async def patch(
        self,
        kind: ObjectKind[Any, Value],
        ref: Ref,
        change: Mapping[str, object],
        *,
        what: str,
        part: tuple[str, ...] = (),
        content_type: str = MERGE,
    ) -> Value:
        """`part`: of a subresource. Raises KubeConflictError if the object has another UID, or another version than
        the change names."""
        path, body = kind.path(ref.namespace or None, ref.name, *part), msgspec.json.encode(_of_uid(change, ref.uid))
        try:
            answer = await self._transport.request("PATCH", path, what=what, body=body, content_type=content_type)
        except KubeError as error:
            # The API server answers 422 (seen on 1.36) to a patch with another UID, not 409.
            if error.code == _INVALID and "metadata.uid: " in error.message:  # with the colon it is no name
                raise _taken_over(KubeConflictError, kind, ref, 409) from None
            raise
        return kind.read(answer)

    async def delete(self, kind: ObjectKind[Any, Value], ref: Ref, *, grace_seconds: int | None = None) -> None:
        """Raises KubeConflictError if the name belongs to another object now."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if ref.uid:
            options["preconditions"] = {"uid": ref.uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path, body = kind.path(ref.namespace or None, ref.name), msgspec.json.encode(options)
        await self._transport.request("DELETE", path, what=f"delete {kind.noun} {ref}", body=body)

    async def may(self, verb: str, resource: str, *, below: str = "", name: str = "", namespace: str = "") -> bool:
        """Whether RBAC lets the caller do this; every user may ask. `below` is a subresource."""
        attributes = {"verb": verb, "resource": resource, "subresource": below, "name": name, "namespace": namespace}
        spec = {"resourceAttributes": attributes}
        return await self.create(_OWN_ACCESS, "", {"spec": spec}, what="create selfsubjectaccessreviews")

    async def owners(self, namespace: str) -> Owners:
        """For what goes when the caller's account goes.

        Empty where the caller is no service account of this namespace, or the API server does not say who he is.
        """
        try:
            account = await self.create(_WHO_AM_I, "", {}, what="create selfsubjectreviews")
        except VcudaError:
            return []
        of_namespace = f"system:serviceaccount:{namespace}:"
        if not account.uid or not account.username.startswith(of_namespace):
            return []
        name = account.username.removeprefix(of_namespace)
        return [{"apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": account.uid}]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _of_uid(change: Mapping[str, object], uid: str) -> Mapping[str, object]:
    meta = change.get("metadata", {})
    assert isinstance(meta, Mapping)
    return {**change, "metadata": {**meta, "uid": uid}} if uid else change


def _taken_over(error: type[KubeError], kind: ObjectKind[Any, Any], ref: Ref, code: int) -> KubeError:
    return error(f"{kind.noun} {ref} with UID {ref.uid} is gone; another {kind.noun} has its name", code=code)


Texts = Mapping[str, str | None]
"""Labels or annotations to set; None removes one."""


class NodeMetadata(msgspec.Struct, frozen=True):
    """What the agent may change of a node's metadata; in a change None removes one."""

    labels: Texts
    annotations: Texts


def _node(found: Object) -> NodeMetadata:
    return NodeMetadata(found.metadata.labels or {}, found.metadata.annotations or {})


_NODES = ObjectKind("v1", "nodes", "Node", "node", Object, _node)


class KubeClient(ObjectClient):
    """The only way of the agent to the API server."""

    def __init__(self, transport: Transport, *, names: ResourceNames = ResourceNames()) -> None:
        super().__init__(transport)
        self._pods = pod_kind(names)

    async def get_pod(self, pod: PodRef) -> Pod:
        return await self.get(self._pods, pod)

    async def patch_pod_annotations(self, pod: PodRef, annotations: Texts) -> Pod:
        change = {"metadata": {"annotations": dict(annotations)}}
        return await self.patch(self._pods, pod, change, what=f"annotate pod {pod}")

    async def delete_pod(self, pod: PodRef, *, grace_seconds: int | None = None) -> None:
        await self.delete(self._pods, pod, grace_seconds=grace_seconds)

    async def get_node(self, name: str) -> NodeMetadata:
        return await self.get(_NODES, ObjectRef("", name))

    async def patch_node(self, name: str, new: NodeMetadata) -> NodeMetadata:
        change = {"metadata": {"labels": dict(new.labels), "annotations": dict(new.annotations)}}
        return await self.patch(_NODES, ObjectRef("", name), change, what=f"label node {name}")

    async def get_claim(self, claim: ClaimRef) -> Claim:
        return await self.get(CLAIMS, claim)

    async def show_devices(self, claim: ClaimRef, driver: str, shown: Sequence[DeviceStatus]) -> None:
        """Replaces what the driver says in `status.devices`; what others say stays.

        Raises KubeConflictError if the claim changed meanwhile, KubeNotFoundError if it is gone.
        """
        found = await self.get(STATED_CLAIMS, claim)
        change = with_devices(found, driver, shown)
        if change is not None:
            what = f"show the devices of claim {claim}"
            await self.patch(STATED_CLAIMS, claim, change, what=what, part=("status",))

    async def create_slice(self, node: ClusterNode, spec: Mapping[str, object]) -> NodeSlice:
        """Owned by the node, so that it goes with it."""
        return await self.create(SLICES, "", owned_slice(node, spec), what="create a ResourceSlice")

    async def replace_slice(self, old: NodeSlice, spec: Mapping[str, object]) -> NodeSlice:
        """Raises KubeConflictError if it has changed since it was read, KubeNotFoundError if it is gone."""
        change = {"metadata": {"name": old.name, "resourceVersion": old.version}, "spec": spec}
        return await self.patch(SLICES, ObjectRef("", old.name, old.uid), change, what="change a ResourceSlice")

    async def delete_slice(self, old: NodeSlice) -> None:
        await self.delete(SLICES, ObjectRef("", old.name, old.uid))
