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

from sandbox.cluster.cluster import Cluster
from sandbox.cluster.network import API_ADDRESS
from sandbox.cluster.processes import run

_PORT = 443
_CHUNK = 1 << 16
_TURNS = 5


@contextlib.contextmanager
def api_server_for_pods(cluster: Cluster) -> Iterator[None]:
    target = urlsplit(cluster.control_plane.server)
    address = [f"{API_ADDRESS}/32", "dev", cluster.layout.bridge]
    run(["ip", "address", "add", *address], doing="giving the bridge the address of Service kubernetes")
    loop = asyncio.new_event_loop()
    forwarder = _Forwarder(target.hostname or "", target.port or _PORT)
    thread = threading.Thread(target=loop.run_forever, name="Service kubernetes", daemon=True)
    try:
        loop.run_until_complete(forwarder.start())
        thread.start()
        yield
    finally:
        if thread.is_alive():
            asyncio.run_coroutine_threadsafe(forwarder.stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
        loop.close()
        run(["ip", "address", "delete", *address], doing="taking the address away again")


class _Forwarder:
    """Connections to one server; `stop` ends them all."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: dict[asyncio.StreamWriter, asyncio.Event] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._forward, API_ADDRESS, _PORT)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(_TURNS):  # those that were accepted just now begin
            await asyncio.sleep(0)
        while ended := list(self._open.values()):
            for writer in self._open:
                writer.transport.abort()
            await asyncio.gather(*(each.wait() for each in ended))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side has ended it."""
        self._open[writer] = over = asyncio.Event()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            both = (_pump(reader, far_writer), _pump(far_reader, writer))
            await asyncio.gather(*both)
        except OSError:
            pass  # the API server is away: so is the connection
        finally:
            writer.transport.abort()
            del self._open[writer]
            over.set()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The end of one direction is the end of the connection: nobody here speaks half of it."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.transport.abort()
