"""Pods from an API server: list and watch of this node's pods, statuses and final deletions back.

In: an address. Out: updates in the order of resource versions, one pod each, or a whole Set after a list; the node
object with capacity and allocatable; mirror pods for static ones. Facts kept: mirror pods are never run; a watch that
ends or is too old (410) is begun again with a list; kubelet goes on by itself while the API server is away.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from sandbox.kubelet.apiclient import ApiAddress, ApiClient, ApiRefusalError
from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.source import Kind, Sink, Update

RETRY_S = 0.2
GONE = 410
NOT_FOUND = 404
MIRROR = "kubernetes.io/config.mirror"
VERSION = "v1.36.2"
_TROUBLE = (aiohttp.ClientError, ApiRefusalError, OSError, TimeoutError)


class ApiSource:
    """The third source of pods; `name` is what kubelet writes into config.source."""

    name = "api"

    def __init__(self, options: KubeletOptions, address: ApiAddress) -> None:
        self._options = options
        self._address = address

    async def run(self, sink: Sink) -> None:
        selector = {"fieldSelector": f"spec.nodeName={self._options.node_name}"}
        async with ApiClient(self._address) as client:
            while True:
                try:
                    version = await self._list(client, sink, selector)
                    await self._watch(client, sink, {**selector, "resourceVersion": version})
                except _TROUBLE:
                    await asyncio.sleep(RETRY_S)

    async def report(self, pod: Json, status: Json) -> None:
        path = f"{_path(pod)}/status"
        while not await self._tried("PATCH", path, {"status": status}):
            await asyncio.sleep(RETRY_S)

    async def finish(self, pod: Json) -> None:
        options: Json = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        while not await self._tried("DELETE", _path(pod), options):
            await asyncio.sleep(RETRY_S)

    async def mirror(self, pod: Json) -> None:
        """Shows a static pod at the API server, under a UID that the API server chooses."""
        metadata = pod["metadata"]
        annotations = {**metadata["annotations"], MIRROR: metadata["uid"], "kubernetes.io/config.source": "file"}
        body: Json = {
            "metadata": {key: value for key, value in metadata.items() if key != "uid"} | {"annotations": annotations},
            "spec": {**pod["spec"], "nodeName": self._options.node_name},
        }
        while not await self._tried("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods", body):
            await asyncio.sleep(RETRY_S)

    async def report_node(self, devices: Mapping[str, tuple[int, int]], *, kubelet_port: int) -> None:
        """Writes the node's status, making the node first where it is missing; `devices`: capacity, allocatable."""
        cpu = {"cpu": str(self._options.cpu_cores), "memory": "256Gi", "pods": "250"}
        status: Json = {
            "capacity": cpu | {name: str(counts[0]) for name, counts in devices.items()},
            "allocatable": cpu | {name: str(counts[1]) for name, counts in devices.items()},
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": self._options.node_name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "nodeInfo": {"kubeletVersion": VERSION},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        }
        path = f"/api/v1/nodes/{self._options.node_name}"
        try:
            async with ApiClient(self._address) as client:
                try:
                    await client.call("PATCH", f"{path}/status", {"status": status})
                except ApiRefusalError as error:
                    if error.code != NOT_FOUND:
                        raise
                    metadata = {"name": self._options.node_name}
                    await client.call("POST", "/api/v1/nodes", {"metadata": metadata, "status": status})
                    await client.call("PATCH", f"{path}/status", {"status": status})
        except _TROUBLE:
            return  # the next round of the node's status tries again

    async def _list(self, client: ApiClient, sink: Sink, query: Mapping[str, str]) -> str:
        answer = await client.call("GET", "/api/v1/pods", None, **query)
        pods = tuple(pod for pod in answer["items"] if not _is_mirror(pod))
        sink.put_nowait(Update(self.name, Kind.SET, pods))
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, client: ApiClient, sink: Sink, query: Mapping[str, str]) -> None:
        kinds = {"ADDED": Kind.ADD, "MODIFIED": Kind.CHANGE, "DELETED": Kind.GONE}
        async for event in client.watch("/api/v1/pods", allowWatchBookmarks="true", **query):
            if event["type"] == "ERROR":
                raise ApiRefusalError(int(event["object"].get("code", GONE)), str(event["object"]))
            kind = kinds.get(event["type"])
            if kind is not None and not _is_mirror(event["object"]):
                sink.put_nowait(Update(self.name, kind, (event["object"],)))

    async def _tried(self, method: str, path: str, body: Json) -> bool:
        """Whether there is nothing more to do: it worked, or the object is not what it was."""
        try:
            async with ApiClient(self._address) as client:
                await client.call(method, path, body)
        except ApiRefusalError as error:
            return error.code in (NOT_FOUND, 409)
        except _TROUBLE:
            return False
        return True


def _path(pod: Json) -> str:
    metadata: dict[str, Any] = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _is_mirror(pod: Json) -> bool:
    return MIRROR in (pod["metadata"].get("annotations") or {})
