"""Pods from an API server: list and watch of this node's pods, statuses and final deletions back.

In: a URL or a kubeconfig. Out: updates in the order of resource versions, one pod each, or a whole Set after a list;
the node object with capacity and allocatable; mirror pods for static ones. Refusals are `ApiRefusalError` with the HTTP
status. Facts kept: mirror pods are never run; a watch that ends or is too old (410) starts again with a list; kubelet
goes on while the API server is away.
"""

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.source import Sink, Update, UpdateKind

RETRY_S = 0.2
GONE = 410
NOT_FOUND = 404
MIRROR = "kubernetes.io/config.mirror"
VERSION = "v1.36.2"

MERGE = {"Content-Type": "application/merge-patch+json"}


class ApiRefusalError(Exception):
    """The API server answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the API server answered {code}: {text[:200]}")
        self.code = code


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """Where it is and how to be let in."""

    url: str
    token: str = ""
    tls: ssl.SSLContext | None = None


def from_kubeconfig(path: Path) -> ApiAddress:
    """Reads the current context: server, CA, and a token or a client certificate."""
    config: Json = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster: Json = _named(config["clusters"], context["cluster"])["cluster"]
    user: Json = _named(config["users"], context["user"]).get("user") or {}
    token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else "")
    return ApiAddress(cluster["server"], token, _tls(cluster, user))


class ApiClient:
    """One HTTP session."""

    def __init__(self, address: ApiAddress) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        tls = aiohttp.TCPConnector(ssl=self._address.tls or True)
        self._session = aiohttp.ClientSession(self._address.url, headers=headers, connector=tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, body: Json | None = None, **query: str) -> Json:
        """One request; a patch is a merge patch."""
        headers = MERGE if method == "PATCH" else None
        timeout = aiohttp.ClientTimeout(total=10)
        async with self._open().request(
            method, path, json=body, params=query, headers=headers, timeout=timeout
        ) as response:
            text = await response.text()
            if response.status >= 300:
                raise ApiRefusalError(response.status, text)
            answer: Json = json.loads(text)
            return answer

    async def watch(self, path: str, **query: str) -> AsyncIterator[Json]:
        """Events until the server ends the stream."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._open().get(path, params={"watch": "1", **query}, timeout=timeout) as response:
            if response.status >= 300:
                raise ApiRefusalError(response.status, await response.text())
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        return self._session


def _named(items: list[Json], name: str) -> Json:
    return next(item for item in items if item["name"] == name)


def _tls(cluster: Json, user: Json) -> ssl.SSLContext | None:
    if not cluster["server"].startswith("https"):
        return None
    context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{certificate}\n{key}\n")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(section: Json, key: str) -> str | None:
    inline: Any = section.get(f"{key}-data")
    if inline:
        return base64.b64decode(inline).decode()
    return Path(section[key]).read_text() if key in section else None


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
        node = {"apiVersion": "v1", "kind": "Node", "name": self._options.node_name, "uid": "n", "controller": True}
        told = {"annotations": annotations, "ownerReferences": [node]}
        body: Json = {
            "metadata": {key: value for key, value in metadata.items() if key != "uid"} | told,
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
        sink.put_nowait(Update(self.name, UpdateKind.SET, pods))
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, client: ApiClient, sink: Sink, query: Mapping[str, str]) -> None:
        kinds = {"ADDED": UpdateKind.ADD, "MODIFIED": UpdateKind.CHANGE, "DELETED": UpdateKind.GONE}
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
