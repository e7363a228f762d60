"""The API server at the address of Service kubernetes, where programs in pods look for it.

In: the cluster's network and API server. Out: while the context lasts, TCP to that address and port 443 arrives there.
It does for one Service what kube-proxy does for all, without rules in the machine's firewall. Not here: other Services,
which the API server reaches by their pods' addresses.
Invariant: the address goes with the context, and with the bridge.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.network import API_ADDRESS
from tests.e2e.cluster.processes import run

_PORT = 443
_CHUNK = 1 << 16


@contextlib.contextmanager
def api_server_for_pods(cluster: Cluster) -> Iterator[None]:
    address = [f"{API_ADDRESS}/32", "dev", cluster.layout.bridge]
    run(["ip", "address", "add", *address], doing="giving the bridge the address of Service kubernetes")
    loop = asyncio.new_event_loop()
    try:
        target = urlsplit(cluster.control_plane.server)
        server = loop.run_until_complete(
            asyncio.start_server(
                lambda reader, writer: _forward(reader, writer, target.hostname, target.port), API_ADDRESS, _PORT
            )
        )
        thread = threading.Thread(target=loop.run_forever, name="Service kubernetes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
    finally:
        loop.close()
        run(["ip", "address", "delete", *address], doing="taking the address away again")


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str | None, port: int | None
) -> None:
    """One connection, until both sides have ended it."""
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:  # the API server is away: so is the connection
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
    finally:
        for each in (writer, far_writer):
            each.transport.abort()


async def _end(server: asyncio.Server) -> None:
    server.close()
    connections = asyncio.all_tasks() - {asyncio.current_task()}
    for each in connections:
        each.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
