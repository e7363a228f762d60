"""The few bytes of HTTP/2 and gRPC that gpu-manager's client sends: one unary call at a time, with a short message.

In: a connection. Out: the message of each call, for `answer`; its answer goes back. gRPC's own server keeps headers
before it counts them, so one sender could take all memory. Here headers are skipped and not decoded: the service has
one method, so nothing that they say is needed. Invariants: a connection holds at most `MOST_BYTES` between two answers,
in frames of at most `MOST_FRAME`, and lasts `_CALL_S` for each call; a sender that keeps to none of this gets
GarbageError, and no answer.
"""

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

MOST_FRAME = 8 << 10
MOST_BYTES = 32 << 10
_MOST_MESSAGE = 4 << 10
_LEAST = 64  # small pieces cost work too
_MOST_CALLS = 8
_CALL_S = 5.0
_IDLE_S = 15.0
_ANSWER_S = 15.0
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


@dataclass(frozen=True, slots=True)
class CallResult:
    """The name of a gRPC status; a message where it is not OK, and then nothing else."""

    status: str = "OK"
    message: str = ""


Answer = Callable[[bytes], Awaitable[CallResult]]


class Writer(Protocol):
    """`asyncio.StreamWriter`, as far as it is used."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


@dataclass(slots=True)
class Calls:
    """One connection. `run` until the other side ends it, or nothing comes for `_IDLE_S`."""

    reader: asyncio.StreamReader
    writer: Writer
    answer: Answer
    _taken: int = 0
    _open: dict[int, bytearray] = field(default_factory=dict)
    _newest: int = 0
    _in_headers: int = 0

    async def run(self) -> None:
        """Raises GarbageError."""
        try:
            async with asyncio.timeout(_CALL_S):
                if await self._read(len(_PREFACE)) != _PREFACE:
                    raise GarbageError("what came is not HTTP/2")
                self.writer.write(_frame(_SETTINGS, 0, 0, _OUR_SETTINGS))
                stream = await self._next_call()
            while stream:
                await self._respond(stream, bytes(self._open.pop(stream)))
                self._taken = sum(map(len, self._open.values()))
                async with asyncio.timeout(_IDLE_S):
                    stream = await self._next_call()
        except TimeoutError:
            if self._newest == 0 or self._open or self._in_headers:
                raise SilentError(f"no whole call came within {_CALL_S:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def _next_call(self) -> int:
        """The stream of the next one that is whole; 0: the other side says that none will come."""
        while True:
            head = await self._read(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if length > MOST_FRAME:
                raise GarbageError(f"a frame has {length} bytes")
            payload = await self._read(length)
            if kind == _GOAWAY:
                return 0
            if self._in_headers and (kind, stream) != (_CONTINUATION, self._in_headers):
                raise GarbageError("headers were broken off")
            if self._took(kind, flags, stream, payload):
                return stream
            await self.writer.drain()

    def _took(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Whether the call of that stream is whole now."""
        if kind == _SETTINGS and not flags & _ACK:
            self.writer.write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self.writer.write(_frame(_PING, _ACK, 0, payload[:8].ljust(8, b"\0")))
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
        async with asyncio.timeout(_ANSWER_S):
            result = await self.answer(data[5:])
            if result.status == "OK":
                self.writer.write(_frame(_HEADERS, _END_HEADERS, stream, _STATUS_200 + _CONTENT_TYPE))
                self.writer.write(_frame(_DATA, 0, stream, bytes(5)))
                self.writer.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _trailers(result)))
            else:
                only = _STATUS_200 + _CONTENT_TYPE + _trailers(result)
                self.writer.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, only))
            self.writer.write(_frame(_WINDOW, 0, 0, struct.pack(">I", len(data))))
            await self.writer.drain()

    async def _read(self, count: int) -> bytes:
        self._taken += max(count, _LEAST)
        if self._taken > MOST_BYTES:
            raise GarbageError(f"more than {MOST_BYTES} bytes came for one call")
        return await self.reader.readexactly(count)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


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
