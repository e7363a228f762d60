"""The listener for a scheduler in the same pod: HTTP/1.1 without TLS on 127.0.0.1, and nothing but its verbs.

In: requests of kube-scheduler or of Volcano's scheduler. Out: their answers. kube-scheduler asks filter one pod after
the other and waits for each answer, and Go's client makes a new connection for nearly every Bind: what a request and a
connection cost here is paid for every pod, and aiohttp's server takes more than twice as much (docs/measurements.md).
That server stays where strangers can ask. Here the callers are known, and bounded only as a whole.
"""

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from deviceplugin.cluster.http.answers import Answers
from deviceplugin.cluster.http.verb_connection import VerbConnection
from deviceplugin.cluster.http.verbs import Verb
from deviceplugin.connections import ClosedBecause, within_descriptors

_BACKLOG = 256
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class LoopbackLimits:
    """`most` connections; seconds for a body to arrive, before a first request, and between requests."""

    most: int = 512
    body: float = 10.0
    silent: float = 15.0
    idle: float = 120.0  # longer than the 90 s after which Go's clients close an idle connection
    sweep: float = 2.0


USUAL = LoopbackLimits()


class LoopbackListener:
    """From `start` to `stop`. `open` are its connections, the one that was used longest ago first.

    While `stopping`, each ends with its next answer. `on_closed` is called for each that is closed from here.
    """

    def __init__(
        self,
        verbs: tuple[Verb, ...],
        answers: Answers,
        limits: LoopbackLimits = USUAL,
        on_closed: Callable[[ClosedBecause], None] = lambda _: None,
    ) -> None:
        self.verbs = {f"/{verb.name}".encode(): verb for verb in verbs}
        self.answers = answers
        self.open: dict[VerbConnection, None] = {}
        self.held = Counter[tuple[str, ...]]()
        self.stopping = False
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._on_closed = on_closed
        self._limits = limits
        self._most = within_descriptors(limits.most)
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: VerbConnection(self), sock=listening, backlog=_AT_ONCE)
        listening.listen(_BACKLOG)  # asyncio accepts as many at once as its backlog says, before anything else
        self._sweeping = loop.create_task(self._sweep(), name="idle connections on loopback")

    async def stop(self, *, within: float) -> None:
        """Ends idle connections at once, the others after their answers, or when the time is over."""
        if self._server is None or self._sweeping is None:
            return
        self.stopping = True
        self._server.close()
        self._sweeping.cancel()
        for each in tuple(self.open):
            each.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._none_open.wait()
        for each in tuple(self.open):
            each.abort()

    def opened(self, connection: VerbConnection) -> None:
        self.open[connection] = None
        self._none_open.clear()
        if len(self.open) > self._most:
            last = next((each for each in self.open if not each.is_busy), next(iter(self.open)))
            del self.open[last]  # now: several may come before it has ended
            self._on_closed(ClosedBecause.DISPLACED)
            last.abort()

    def used(self, connection: VerbConnection) -> None:
        if connection in self.open:
            del self.open[connection]
            self.open[connection] = None

    def closed(self, connection: VerbConnection) -> None:
        self.open.pop(connection, None)
        if not self.open:
            self._none_open.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep)
            now = time.monotonic()
            for each in tuple(self.open):
                self._check(each, now - each.since)

    def _check(self, connection: VerbConnection, seconds: float) -> None:
        limits = self._limits
        if connection.is_receiving:
            if seconds >= limits.body:
                connection.refuse_slow(limits.body)
        elif not connection.is_busy and seconds >= (limits.idle if connection.served else limits.silent):
            if not connection.served:
                self._on_closed(ClosedBecause.SILENT)
            connection.close_if_idle()
