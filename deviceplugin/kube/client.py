"""The requests to the API server that the agent needs.

In: references, annotations, events. Out: pods and nodes as values; `KubeError` and its subclasses (404, 409, 410);
`ParseError` if an answer cannot be read. A UID in a reference is a precondition: a later pod of the same name is never
touched. Not here: retries and caches.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self

import msgspec

from deviceplugin.errors import KubeConflictError, KubeError, KubeNotFoundError
from deviceplugin.kube.collection import (
    Collection,
    Key,
    Listing,
    Value,
    WatchEvent,
    list_all,
    read_any_line,
)
from deviceplugin.kube.pods import decode_pod
from deviceplugin.kube.resource_claims import get_claim, show_devices
from deviceplugin.kube.resource_slices import NodeSlice, create_slice, delete_slice, replace_slice
from deviceplugin.kube.structs import Object, decode
from deviceplugin.kube.transport import MERGE, Transport, core_path
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.claims import Claim, ClaimRef, DeviceStatus
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

_INVALID = 422

Texts = Mapping[str, str | None]
"""Labels or annotations to set; None removes one."""


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """What the agent may change of a node's metadata."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class KubeClient:
    """The only way to the API server. Use it with `async with`, or call `close` at the end."""

    def __init__(self, transport: Transport, *, names: ResourceNames = ResourceNames()) -> None:
        self._transport = transport
        self._names = names

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

    async def get_pod(self, pod: PodRef) -> Pod:
        """Raises KubeNotFoundError also if the name belongs to another pod now."""
        found = decode_pod(
            await self._transport.request("GET", pod_path(pod), what=f"get pod {pod}"), names=self._names
        )
        if pod.uid and pod.uid not in (found.ref.uid, found.api_uid):
            raise _taken_over(KubeNotFoundError, pod, 404)
        return found

    async def patch_pod_annotations(self, pod: PodRef, annotations: Texts) -> Pod:
        """Raises KubeConflictError if the pod has another UID."""
        meta: dict[str, object] = {"annotations": dict(annotations)}
        if pod.uid:
            meta["uid"] = pod.uid
        try:
            body = await self._patch(pod_path(pod), {"metadata": meta}, what=f"annotate pod {pod}")
        except KubeError as error:
            # The API server answers 422 (seen on 1.36) to a patch with another UID, not 409.
            if error.code == _INVALID and "metadata.uid: " in error.message:  # with the colon it is no name
                raise _taken_over(KubeConflictError, pod, 409) from None
            raise
        return decode_pod(body, names=self._names)

    async def delete_pod(self, pod: PodRef, *, grace_seconds: int | None = None) -> None:
        """Raises KubeConflictError if the name belongs to another pod now."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if pod.uid:
            options["preconditions"] = {"uid": pod.uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        body = msgspec.json.encode(options)
        await self._transport.request("DELETE", pod_path(pod), what=f"delete pod {pod}", body=body)

    async def get_node(self, name: str) -> NodeMetadata:
        return _node(await self._transport.request("GET", core_path("nodes", name), what=f"get node {name}"))

    async def patch_node(self, name: str, *, labels: Texts, annotations: Texts) -> NodeMetadata:
        change = {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}
        return _node(await self._patch(core_path("nodes", name), change, what=f"label node {name}"))

    async def get_claim(self, claim: ClaimRef) -> Claim:
        """Raises KubeNotFoundError also if the name belongs to another claim now."""
        return await get_claim(self._transport, claim)

    async def show_devices(self, claim: ClaimRef, driver: str, shown: Sequence[DeviceStatus]) -> None:
        await show_devices(self._transport, claim, driver, shown)

    async def create_slice(self, node: ClusterNode, spec: Mapping[str, object]) -> NodeSlice:
        return await create_slice(self._transport, node, spec)

    async def replace_slice(self, old: NodeSlice, spec: Mapping[str, object]) -> NodeSlice:
        """Raises KubeConflictError if it has changed since it was read."""
        return await replace_slice(self._transport, old, spec)

    async def delete_slice(self, old: NodeSlice) -> None:
        await delete_slice(self._transport, old)

    async def create_event(self, namespace: str, event: Mapping[str, object]) -> None:
        path = core_path("namespaces", namespace, "events")
        await self._transport.request("POST", path, what="create an event", body=msgspec.json.encode(event))

    async def patch_event(self, namespace: str, name: str, change: Mapping[str, object]) -> None:
        await self._patch(core_path("namespaces", namespace, "events", name), change, what="count an event")

    async def _patch(self, path: str, change: Mapping[str, object], *, what: str) -> bytes:
        body = msgspec.json.encode(change)
        return await self._transport.request("PATCH", path, what=what, body=body, content_type=MERGE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _taken_over(kind: type[KubeError], pod: PodRef, code: int) -> KubeError:
    return kind(f"pod {pod} with UID {pod.uid} is gone; another pod has its name", code=code)


def pod_path(pod: PodRef) -> str:
    return core_path("namespaces", pod.namespace, "pods", pod.name)


def _node(body: bytes) -> NodeMetadata:
    meta = decode(Object, body, what="the node").metadata
    return NodeMetadata(meta.labels or {}, meta.annotations or {})
