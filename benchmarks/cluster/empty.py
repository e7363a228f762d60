"""The least that an extender can be: HTTP as bare as it goes, one field read of a request, nothing chosen or kept.

In: a port; for binds a kubeconfig. Out: a process on 127.0.0.1, until it is ended. `/filter` answers the first name and
`/bind` posts one bare Binding; Volcano's verbs get a fixed yes, and `prioritize` no scores, so that the caller takes
the first node. It knows no errors: the program that measures checks the outcome.

    python -m benchmarks.cluster.empty PORT [KUBECONFIG]
"""

import asyncio
import base64
import ssl
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import yaml

from benchmarks.command import announce
from sandbox.http_connection import Connection

FIXED = {
    "/volcano/predicate": b'{"status":"","code":0}',
    "/volcano/prioritize": b'{"nodeScore":{},"errorMessage":""}',
    "/volcano/allocate": b'{"errorMessage":""}',
    "/volcano/deallocate": b'{"errorMessage":""}',
}
_CONNECTIONS = 128  # as many as vcuda scheduler has
_LENGTH = b"\r\nContent-Length: "


class _Args(msgspec.Struct, rename="pascal"):
    node_names: list[str]


class _Bind(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


class ApiServer:
    """Connections that stay open, each with one request at a time."""

    def __init__(self, kubeconfig: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._url = urlsplit(cluster["server"])
        self._trust = _trust(cluster, user) if self._url.scheme == "https" else None
        self._free: asyncio.Queue[Connection | None] = asyncio.Queue()
        for _ in range(_CONNECTIONS):
            self._free.put_nowait(None)

    async def bind(self, order: _Bind) -> None:
        meta = {"name": order.pod_name, "namespace": order.pod_namespace, "uid": order.pod_uid}
        target = {"apiVersion": "v1", "kind": "Node", "name": order.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        path = f"/api/v1/namespaces/{order.pod_namespace}/pods/{order.pod_name}/binding"
        connection = await self._free.get()
        if connection is None:
            host, port = self._url.hostname or "", self._url.port or 443
            connection = await Connection.open(port, self._trust, host=host)
        await connection.post(path, msgspec.json.encode(body))
        self._free.put_nowait(connection)


class _Door(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, api: ApiServer | None) -> None:
        self._api = api
        self._read = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(b"\r\n\r\n") + 4
        at = self._read.find(_LENGTH) + len(_LENGTH)
        if end < 4 or len(self._read) < end + int(self._read[at : self._read.index(b"\r", at)]):
            return
        path, body = self._read.split(b" ", 2)[1].decode(), bytes(self._read[end:])
        self._read.clear()
        if path == "/bind" and self._api is not None:
            self._binding = asyncio.get_running_loop().create_task(self._bind(self._api, body))
        elif path == "/filter":
            first = msgspec.json.decode(body, type=_Args).node_names[:1]
            self._answer(msgspec.json.encode({"NodeNames": first}))
        else:
            self._answer(FIXED[path])

    async def _bind(self, api: ApiServer, body: bytes) -> None:
        await api.bind(msgspec.json.decode(body, type=_Bind))
        self._answer(b'{"Error":""}')

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)


def _trust(cluster: Mapping[str, str], user: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as `client_tls`, whose module takes half a second to import
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "crt"), Path(folder, "key")
        pair[0].write_bytes(base64.b64decode(user["client-certificate-data"]))
        pair[1].write_bytes(base64.b64decode(user["client-key-data"]))
        context.load_cert_chain(*pair)
    return context


async def serve(port: int, kubeconfig: Path | None) -> None:
    api = None if kubeconfig is None else ApiServer(kubeconfig)
    await asyncio.get_running_loop().create_server(lambda: _Door(api), "127.0.0.1", port, backlog=256)
    announce("ready")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
