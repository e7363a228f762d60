"""The few bytes of HTTP/2 and gRPC that gpu-manager's client sends: one unary call at a time, with a short message.

In: a connection. Out: the message of each call, for `answer`; its answer goes back. gRPC's own server keeps headers
before it counts them, so one sender could take all memory. Here headers are skipped and not decoded: the service has
one method, so nothing that they say is needed. Invariants: nothing is read but in a turn, and then `_PIECE` at most;
between two answers a connection sends at most `MOST_BYTES`, in frames of at most `MOST_FRAME`, and lets itself be
waited for `_CALL_S`; it has `_MOST_ANSWERS`. A sender that does not keep to this, or goes before its call is whole,
gets GarbageError and no answer. What is answered INVALID_ARGUMENT is garbage too.
"""

import asyncio
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import msgspec

from deviceplugin.serve.connections import readable

MOST_FRAME = 8 << 10
MOST_BYTES = 32 << 10
_MOST_MESSAGE = 4 << 10
_LEAST = 256  # small frames and small pieces cost work too
_PIECE = 4 << 10
_MOST_CALLS = 8
_MOST_ANSWERS = 8
_CALL_S = 5.0
_IDLE_S = 2.0  # the client ends after its call; others wait for the place
_ANSWER_S = 30.0
_LAST_S = 0.1  # a peer that writes to a closed connection does not read what was sent before
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED = 0x4, 0x8
_OUR_SETTINGS = struct.pack(">HIHI", 0x3, _MOST_CALLS, 0x6, MOST_FRAME)  # concurrent streams; bytes of a header list
_STATUS_200 = b"\x88"  # both names are in HPACK's static table
_CONTENT_TYPE = b"\x0f\x10\x10application/grpc"
_UNSAFE = re.compile(rb"[^ -$&-~]")
STATUS = {
    "OK": 0, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14,
}  # fmt: skip


class GarbageError(Exception):
    """What the client of gpu-manager never sends; the text says what."""


class SilentError(GarbageError):
    """Nothing more came; that costs nobody anything but the place."""


class HungUpError(GarbageError):
    """The other side went before its call was whole. A client does so once, when it is killed."""


class _EndedError(Exception):
    """Nothing more will come."""


class CallResult(msgspec.Struct, frozen=True):
    """The name of a gRPC status; a message where it is not OK, and then nothing else."""

    status: str = "OK"
    message: str = ""


Answer = Callable[[bytes], Awaitable[CallResult]]
Turn = Callable[[], Awaitable[None]]


class Calls(msgspec.Struct):
    """One connection, which does not block. `run` until the other side ends it, or nothing comes for a while."""

    connection: socket.socket
    turn: Turn
    answer: Answer
    _came: bytearray = msgspec.field(default_factory=bytearray)
    _answers: bytearray = msgspec.field(default_factory=bytearray)
    _taken: int = 0
    _left_s: float = _CALL_S
    _open: dict[int, bytearray] = msgspec.field(default_factory=dict)
    _newest: int = 0
    _in_headers: int = 0

    async def run(self) -> None:
        """Raises GarbageError."""
        try:
            if await self._read(len(_PREFACE)) != _PREFACE:
                raise GarbageError("what came is not HTTP/2")
            self._write(_SETTINGS, 0, _OUR_SETTINGS)
            stream = 0
            for _ in range(_MOST_ANSWERS):
                stream = await self._next_call()
                await self._respond(stream, bytes(self._open.pop(stream)))
                self._taken, self._left_s = sum(map(len, self._open.values())), _IDLE_S
            await self._go(stream)
        except TimeoutError:
            if self._is_in_call:
                raise SilentError("no whole call came in time") from None
            await self._go(self._newest)
        except (_EndedError, ConnectionError):
            if self._is_in_call:
                raise HungUpError("it ended before a call was whole") from None

    @property
    def _is_in_call(self) -> bool:
        """Also before the first one."""
        return bool(self._newest == 0 or self._open or self._in_headers or self._came)

    async def _next_call(self) -> int:
        """The stream of the next one that is whole."""
        while True:
            head = await self._read(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if length > MOST_FRAME:
                raise GarbageError(f"a frame has {length} bytes")
            payload = await self._read(length)
            if kind == _GOAWAY:
                raise _EndedError
            if self._in_headers and (kind, stream) != (_CONTINUATION, self._in_headers):
                raise GarbageError("headers were broken off")
            if self._took(kind, flags, stream, payload):
                return stream

    def _took(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Whether the call of that stream is whole now."""
        if kind == _SETTINGS and not flags & _ACK:
            self._write(_SETTINGS, _ACK)
        elif kind == _PING and not flags & _ACK:
            self._write(_PING, _ACK, payload[:8].ljust(8, b"\0"))
        elif kind == _RESET:
            self._open.pop(stream, None)
        elif kind in (_HEADERS, _CONTINUATION):
            self._took_headers(kind, flags, stream)
            return bool(kind == _HEADERS and flags & _END_STREAM)
        elif kind == _DATA and stream in self._open:
            self._open[stream] += _unpadded(flags, payload)
            if len(self._open[stream]) > _MOST_MESSAGE + 5:
                raise GarbageError(f"a message has more than {_MOST_MESSAGE} bytes")
            return bool(flags & _END_STREAM)
        return False

    def _took_headers(self, kind: int, flags: int, stream: int) -> None:
        if kind == _HEADERS:
            if stream <= self._newest or stream % 2 == 0 or len(self._open) >= _MOST_CALLS:
                raise GarbageError("a call has the number of another one, or there are too many at once")
            self._newest = stream
            self._open[stream] = bytearray()
        elif not self._in_headers:
            raise GarbageError("headers go on that did not begin")
        self._in_headers = 0 if flags & _END_HEADERS else stream

    async def _respond(self, stream: int, data: bytes) -> None:
        if len(data) < 5 or data[0] != 0 or int.from_bytes(data[1:5], "big") != len(data) - 5:
            raise GarbageError("a call has no message, or a compressed one")
        try:
            async with asyncio.timeout(_ANSWER_S):
                result = await self.answer(data[5:])
        except TimeoutError:
            result = CallResult("DEADLINE_EXCEEDED", "the node has too many registrations; try again")
        only = _STATUS_200 + _CONTENT_TYPE
        if result.status == "OK":
            self._write(_HEADERS, _END_HEADERS, only, stream=stream)
            self._write(_DATA, 0, bytes(5), stream=stream)
            only = b""
        self._write(_HEADERS, _END_HEADERS | _END_STREAM, only + _trailers(result), stream=stream)
        self._write(_WINDOW, 0, struct.pack(">I", len(data)))
        self._send()
        if result.status == "INVALID_ARGUMENT":
            await self._go(stream)
            raise GarbageError(result.message)

    async def _go(self, last: int) -> None:
        """So that a client with calls after the `last` one makes them on a new connection."""
        self._write(_GOAWAY, 0, struct.pack(">II", last, 0))
        self._send()
        await asyncio.sleep(_LAST_S)

    async def _read(self, count: int) -> bytes:
        self._count(count)
        while len(self._came) < count:
            await self._receive()
        found = bytes(self._came[:count])
        del self._came[:count]
        return found

    async def _receive(self) -> None:
        """Raises TimeoutError, after `_left_s` in which nothing came; to wait for the turn takes none of that."""
        self._send()
        self._count(0)
        began = time.monotonic()
        async with asyncio.timeout(self._left_s):
            await readable(self.connection)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))
        await self.turn()
        piece = self.connection.recv(_PIECE)
        if not piece:
            raise _EndedError
        self._came += piece

    def _count(self, size: int) -> None:
        self._taken += max(size, _LEAST)
        if self._taken > MOST_BYTES:
            raise GarbageError(f"more than {MOST_BYTES} bytes came for one call")

    def _write(self, kind: int, flags: int, payload: bytes = b"", *, stream: int = 0) -> None:
        """Sent before the next wait."""
        self._answers += len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def _send(self) -> None:
        if not self._answers:
            return
        try:
            sent = self.connection.send(self._answers)
        except BlockingIOError:
            sent = 0
        if sent < len(self._answers):
            raise GarbageError("it does not read what it is sent")
        self._answers.clear()


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise GarbageError("a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def _trailers(result: CallResult) -> bytes:
    found = _header(b"grpc-status", str(STATUS.get(result.status, STATUS["INTERNAL"])).encode())
    if result.message:
        text = _UNSAFE.sub(lambda each: b"%%%02X" % each[0][0], result.message.encode())
        found += _header(b"grpc-message", text[:1000])
    return found


def _header(name: bytes, value: bytes) -> bytes:
    """HPACK: a literal that is not indexed, with a new name."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)])
    rest, found = len(text) - 127, b"\x7f"
    while rest >= 128:
        found += bytes([rest % 128 + 128])
        rest //= 128
    return found + bytes([rest])
