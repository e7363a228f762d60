"""A keep-alive connection, with TLS or without, that sends HTTP/1.1 as Go's client does, with little Python code.

In: paths and bodies. Out: status, body, and seconds from the first byte sent to the last byte received. Not here:
retries. Invariant: one request at a time.
"""

import asyncio
import gzip
import ssl
import time
from dataclasses import dataclass
from typing import Any

import msgspec

LIMIT = 1 << 24
Json = Any


class HttpError(Exception):
    """The answer is not HTTP, or an error."""


@dataclass(slots=True)
class Connection:
    """Use `await Connection.open(...)`, then `post` and `get` any number of times."""

    host: str
    port: int
    trust: ssl.SSLContext | None
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int, trust: ssl.SSLContext | None, *, host: str = "127.0.0.1") -> "Connection":
        reader, writer = await asyncio.open_connection(host, port, ssl=trust, limit=LIMIT)
        return cls(host, port, trust, reader, writer)

    async def post(self, path: str, body: bytes) -> tuple[bytes, float]:
        """The body of an answer with status 200 or 201; other answers raise HttpError."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nUser-Agent: Go-http-client/1.1\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        began = time.perf_counter()
        self.writer.write(head.encode() + body)
        status, answer = await self._answer()
        took = time.perf_counter() - began
        if status not in (200, 201):
            raise HttpError(f"POST {path}: {status} {answer[:300].decode(errors='replace')}")
        return answer, took

    async def get(self, path: str) -> bytes:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n\r\n".encode())
        status, answer = await self._answer()
        if status != 200:
            raise HttpError(f"GET {path}: {status} {answer[:300].decode(errors='replace')}")
        return answer

    async def post_json(self, path: str, body: bytes) -> tuple[Json, float]:
        answer, took = await self.post(path, body)
        return msgspec.json.decode(answer), took

    async def close(self) -> None:
        self.writer.close()

    async def _answer(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await self.reader.readexactly(int(fields["content-length"]))
        if fields.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return int(head[0].split()[1]), body
