"""Bodies of requests and answers within limits: their size, their time, and the size of all of a verb together.

In: a request and its verb, later the answer. Out: the bytes of the request, or an `HttpError` with a status and one
sentence; the answer on its way. A client that sends or reads slowly, or much, costs this process a bounded amount of
memory and delays no other client.

Only bytes that have arrived count, because a declared length costs its sender nothing. Each verb has its own room, and
one peer gets a part of it, so uploads to one verb or from one peer do not close another. The beginning of a body needs
no room: a connection buffers that much in any case, and nearly all bodies are shorter. So they always pass.

A body that waits for its turn takes room of another kind, in which a namespace has a part: the API server is one peer,
and the pods of one tenant close it to no other. More than that part takes longer than the API server waits.

An answer to an unknown caller takes room too until its reader has it: the patch of a large pod is as large as the pod.
It is written piece by piece, because asyncio's TLS takes a buffer of any size and calls it written.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from deviceplugin.cluster.http.verbs import GONE, HttpError, Verb

_WITHIN_S = 10.0
_READ_WITHIN_S = 10.0
_PEERS = 4  # this many may use all of the room of a verb, each for one body of the largest size
_WAITING = 32  # bodies of the largest size; one peer may have half of them, and one namespace of it a sixteenth
_FREE = 64 << 10
_PIECE = 64 << 10
JSON = {"Content-Type": "application/json"}


class Bodies:
    """Reads and writes bodies; `held` are the bytes in memory now, by verb and by peer of a verb."""

    def __init__(
        self,
        *,
        within: float = _WITHIN_S,
        read_within: float = _READ_WITHIN_S,
        room: int | None = None,
        free: int = _FREE,
    ) -> None:
        self._within = within
        self._read_within = read_within
        self._most = room  # None: by the verb
        self._free = free
        self.held: Counter[tuple[str, ...]] = Counter()

    async def read(self, request: web.BaseRequest, verb: Verb) -> bytes:
        """Raises an HttpError with status 400, 408, 413 or 503."""
        check_size(request.content_length or 0, verb)
        try:
            if request.content.is_eof():
                body = request.content.read_nowait()
                check_size(len(body), verb)
                return body
            async with asyncio.timeout(self._within):
                # Some clients wait for this status before they send a large body.
                if request.version == HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return await self._all(request, verb)
        except TimeoutError:
            raise slow(self._within) from None
        except (ConnectionError, web.RequestPayloadError, HttpProcessingError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and request.protocol.connected:
                raise  # else it is aiohttp's word for a client that left before we looked for its body
            error.__traceback__ = None  # its frames hold the body, and the request holds the error: a cycle
            raise cut() from None

    async def answer(self, request: web.BaseRequest, verb: Verb, body: bytes) -> web.StreamResponse:
        """A short one is left to the server to send. Raises an HttpError; the client gets 503, or nothing more."""
        if verb.is_restricted or len(body) <= self._free:
            return web.Response(body=body, headers=JSON)
        response = web.StreamResponse(headers=JSON)
        response.content_length = len(body)
        with self._room(verb, request.remote or "") as room:
            room.grow(len(body) - self._free)
            try:
                async with asyncio.timeout(self._read_within):
                    await response.prepare(request)
                    for at in range(0, len(body), _PIECE):
                        await response.write(body[at : at + _PIECE])
                    await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                raise HttpError(408, "slow", f"the answer was not read within {self._read_within:g}s") from None
            except ConnectionError:
                raise HttpError(400, GONE, "the connection ended before the answer was read") from None
        return response

    @contextmanager
    def waits(self, request: web.BaseRequest, verb: Verb, namespace: str, size: int) -> Iterator[None]:
        """Until it was answered. Raises an HttpError with status 503."""
        peer, waits = request.remote or "", f"waits for {verb.name}"
        limits: dict[tuple[str, ...], int] = {
            (waits,): _WAITING * verb.largest,
            (waits, peer): _WAITING // 2 * verb.largest,
            (waits, peer, namespace): _WAITING // 16 * verb.largest,
        }
        with self._within_limits(limits) as room:
            room.grow(size - self._free)
            yield

    async def _all(self, request: web.BaseRequest, verb: Verb) -> bytes:
        body = bytearray()
        with self._room(verb, request.remote or "") as room:
            async for chunk in request.content.iter_any():
                body += chunk
                check_size(len(body), verb)
                room.grow(len(body) - self._free)
            return bytes(body)

    @contextmanager
    def _room(self, verb: Verb, peer: str) -> Iterator["BodyRoom"]:
        most = most_of(verb) if self._most is None else self._most
        with self._within_limits({(verb.name,): most, (verb.name, peer): most // _PEERS}) as room:
            yield room

    @contextmanager
    def _within_limits(self, limits: dict[tuple[str, ...], int]) -> Iterator["BodyRoom"]:
        room = BodyRoom(self.held, limits)
        try:
            yield room
        finally:
            room.leave()


@dataclass(slots=True)
class BodyRoom:
    """What one body takes of each of its `limits`, as bytes in `held`."""

    held: Counter[tuple[str, ...]]
    limits: dict[tuple[str, ...], int]
    taken: int = 0

    def grow(self, size: int) -> None:
        more = size - self.taken
        if more <= 0:
            return
        if any(self.held[each] + more > limit for each, limit in self.limits.items()):
            raise HttpError(503, "busy", "too many large requests at the same time; try again")
        self._add(more)

    def leave(self) -> None:
        self._add(-self.taken)
        for each in self.limits:
            if not self.held[each]:
                del self.held[each]

    def _add(self, size: int) -> None:
        self.taken += size
        for each in self.limits:
            self.held[each] += size


def most_of(verb: Verb) -> int:
    """Bytes of all bodies of the verb together."""
    return _PEERS * verb.largest


def slow(within: float) -> HttpError:
    return HttpError(408, "slow", f"the body did not arrive within {within:g}s; send it at once")


def cut() -> HttpError:
    return HttpError(400, GONE, "the body ended before it was complete; send it again")


def check_size(size: int, verb: Verb) -> None:
    if size > verb.largest:
        raise HttpError(413, "too_large", f"the body is larger than {verb.largest >> 20} MiB; {verb.instead}")
