"""A process of its own that floods one TCP port of this machine in one way, until it is killed.

In: port, `tls` or `plain`, the way, how many connections, paths to ask for, the size of a body. Out: the line "ready"
as soon as every connection was tried once. Half of the connections come from one address, the others from 48, and they
are made again when they are closed. Other processes run first, because a real flood comes from other machines.
"""

import asyncio
import itertools
import os
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

ONE = "127.0.1.1"
MANY = [f"127.0.2.{number}" for number in range(1, 49)]
PAUSE_S = 1.0
HEADERS = 100  # of 8,000 bytes each
REVIEW = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"x","operation":"CREATE",'
    b'"resource":{"group":"","version":"v1","resource":"pods"},"object":{"metadata":{"name":"x"},"spec":{"z":['
)
END = b"[]]}}}}"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Target:
    """What is asked for, in turn."""

    def __init__(self, paths: list[str], size: int) -> None:
        self._paths = itertools.cycle(paths)
        self.size = size

    def get(self) -> bytes:
        return f"GET {next(self._paths)} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

    def post(self, size: int) -> bytes:
        return f"POST {next(self._paths)} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()


Way = Callable[[Streams, Target], Awaitable[None]]


async def silent(streams: Streams, target: Target) -> None:
    """Nothing is said."""


async def half_a_handshake(streams: Streams, target: Target) -> None:
    streams[1].write(hello()[:100])


async def a_handshake_never_ended(streams: Streams, target: Target) -> None:
    streams[1].write(hello())


async def slow_headers(streams: Streams, target: Target) -> None:
    await drip(streams, target.get()[:-2] + b"X-Slow:")


async def large_headers(streams: Streams, target: Target) -> None:
    streams[1].write(target.get()[:-2] + (b"X-Large: " + b"x" * 8000 + b"\r\n") * HEADERS)


async def slow_body(streams: Streams, target: Target) -> None:
    await drip(streams, target.post(target.size))


async def body_never_sent(streams: Streams, target: Target) -> None:
    streams[1].write(target.post(target.size))


async def largest_bodies(streams: Streams, target: Target) -> None:
    while True:
        await post(streams, target, target.size)


async def too_large_bodies(streams: Streams, target: Target) -> None:
    await post(streams, target, target.size + 1)


async def http_two(streams: Streams, target: Target) -> None:
    streams[1].write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))


async def pipelined(streams: Streams, target: Target) -> None:
    """Answers are not read."""
    streams[1].transport.pause_reading()  # type: ignore[attr-defined]  # typeshed: any transport
    while not streams[1].transport.is_closing():
        streams[1].write(target.get() * 100)
        await streams[1].drain()
        await asyncio.sleep(0.01)  # drain() does not wait on a connection that was reset under TLS


async def half_closed(streams: Streams, target: Target) -> None:
    streams[1].write(target.get())
    streams[1].write(target.post(target.size) + b"{")
    if streams[1].can_write_eof():
        streams[1].write_eof()


async def every_page(streams: Streams, target: Target) -> None:
    """Asked for without a pause."""
    reader, writer = streams
    while True:
        writer.write(target.get())
        await answer(reader)


WAYS: dict[str, Way] = {
    each.__name__.replace("_", "-"): each
    for each in (
        silent,
        half_a_handshake,
        a_handshake_never_ended,
        slow_headers,
        large_headers,
        slow_body,
        body_never_sent,
        largest_bodies,
        too_large_bodies,
        http_two,
        pipelined,
        half_closed,
        every_page,
    )
}
BEFORE_TLS = (silent, half_a_handshake, a_handshake_never_ended)


def hello() -> bytes:
    """The first message of a TLS client."""
    said = ssl.MemoryBIO()
    client = client_context().wrap_bio(ssl.MemoryBIO(), said)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def drip(streams: Streams, beginning: bytes) -> None:
    streams[1].write(beginning)
    while not streams[1].transport.is_closing():
        await asyncio.sleep(PAUSE_S)
        streams[1].write(b"x")
        await streams[1].drain()


async def post(streams: Streams, target: Target, size: int) -> None:
    """A review of a pod with many small values."""
    reader, writer = streams
    writer.write(target.post(size))
    writer.write(review_of(size))
    await writer.drain()
    await answer(reader)


def review_of(size: int) -> bytes:
    left = size - len(REVIEW + END)
    return REVIEW + b"[]," * (left // 3) + END.rjust(left % 3 + len(END))


async def answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
    await reader.readexactly(int(length or 0))


async def connect(address: str, port: int, context: ssl.SSLContext | None) -> Streams:
    sock = socket.socket()
    sock.setblocking(False)
    try:
        sock.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=sock, ssl=context, server_hostname="x" if context else None)
    except BaseException:
        sock.close()
        raise


async def again_and_again(
    address: str, port: int, context: ssl.SSLContext | None, way: Way, target: Target, tried: asyncio.Semaphore
) -> None:
    while True:
        with suppress(OSError, EOFError, asyncio.LimitOverrunError):
            try:
                streams = await connect(address, port, context)
            finally:
                tried.release()
            try:
                await way(streams, target)
                while await streams[0].read(1 << 16):
                    pass
            finally:
                streams[1].transport.abort()
        await asyncio.sleep(PAUSE_S)


async def flood(port: int, *, tls: bool, way: Way, count: int, target: Target) -> None:
    context = client_context() if tls and way not in BEFORE_TLS else None
    tried = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            address = ONE if number % 2 else MANY[number // 2 % len(MANY)]
            group.create_task(again_and_again(address, port, context, way, target, tried))
        for _ in range(count):
            await tried.acquire()
        sys.stdout.write("ready\n")
        sys.stdout.flush()


def main(port: str, transport: str, way: str, count: str, paths: str, size: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(5)
    target = Target(paths.split(","), int(size))
    asyncio.run(flood(int(port), tls=transport == "tls", way=WAYS[way], count=int(count), target=target))


if __name__ == "__main__":
    main(*sys.argv[1:])
