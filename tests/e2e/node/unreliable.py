"""A way to kubelet that fails for random calls: both exact identity sources of the agent, on TCP and on a unix socket.

In: kubelet's two addresses and a seed. Out: the flags with which an agent takes this way, and how many calls it failed.
Not here: TLS and HTTP/2, which pass as they are. Invariant: what is not failed or delayed arrives whole and in order.
"""

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from sandbox.cluster.cluster import Cluster

FAILED, LATE = 0.15, 0.3
"""Shares of what the agent sends: the connection ends, or it arrives up to LONGEST_S later."""
LONGEST_S = 1.0
_CHUNK = 1 << 16
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Connect = Callable[[], Awaitable[_Streams]]


class UnreliableKubelet:
    """`flags` for the agent; `faults` counts the connections that were ended and the messages that were late."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._random = random.Random(seed)
        self.flags: tuple[str, ...] = ()
        self.faults = 0

    async def serve(self, started: Callable[[], None], ended: asyncio.Event) -> None:
        """Kubelet's root, as the agent sees it, is a folder in which only the PodResources socket is another one."""
        url, root = urlsplit(self._cluster.kubelet.url), self._cluster.layout.kubelet
        resources = root / "pod-resources/kubelet.sock"
        (self._folder / "pod-resources").mkdir(parents=True)
        for each in ("plugins_registry", "pki"):
            (self._folder / each).symlink_to(root / each)
        by_name = await asyncio.start_unix_server(
            self._relay(lambda: asyncio.open_unix_connection(resources)), self._folder / "pod-resources/kubelet.sock"
        )
        with_uids = await asyncio.start_server(
            self._relay(lambda: asyncio.open_connection(url.hostname, url.port)), url.hostname, 0
        )
        port = with_uids.sockets[0].getsockname()[1]
        self.flags = (
            f"--kubelet-root={self._folder}",
            f"--kubelet-pods-endpoint=https://{url.hostname}:{port}/pods",
        )
        started()
        async with by_name, with_uids:
            await ended.wait()

    def _relay(self, connect: _Connect) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError), contextlib.closing(writer.transport):
                far_reader, far_writer = await connect()
                with contextlib.closing(far_writer.transport):
                    ways = (self._pump(reader, far_writer), _copy(far_reader, writer))
                    tasks = [asyncio.create_task(each) for each in ways]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

        return relay

    async def _pump(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        """From the agent to kubelet; every read is about one call."""
        while chunk := await reader.read(_CHUNK):
            chance = self._random.random()
            self.faults += chance < FAILED + LATE
            if chance < FAILED:
                return
            if chance < FAILED + LATE:
                await asyncio.sleep(self._random.uniform(0, LONGEST_S))
            far.write(chunk)
            await far.drain()


@contextmanager
def unreliable_kubelet(cluster: Cluster, folder: Path, seed: int) -> Iterator[UnreliableKubelet]:
    relay, started, ended = UnreliableKubelet(cluster, folder, seed), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        thread = threading.Thread(target=runner.run, args=[relay.serve(started.set, ended)], name="unreliable kubelet")
        thread.start()
        try:
            assert started.wait(60)
            yield relay
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
