"""HTTP to the API server: bytes in, bytes out; every failure is a KubeError.

In: a method, a path, a body. Out: the body of a successful answer, or `KubeError` with a sentence; any answer as it is,
for what stands behind the API server's proxy; the lines of a watch. If the server refuses the token, or the CA does not
match, the credentials are read again and the request is repeated once. Invariant: every wait has a limit, unless its
caller wants none. Not here: the meaning of paths and bodies (`client`), and retries (`reflector`, `events`,
`node_publisher`), except if the server says when to retry.

A token bucket on a monotonic clock: how many requests are sent per second.

In: `take` before each request. Out: it returns at once, or later if there were too many requests; first come, first
served. A debt is a point in time, so no task refills the bucket. If a waiter is cancelled, its token is lost.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import aiohttp
import msgspec
from yarl import URL

from deviceplugin.errors import KubeError, ParseError, one_line
from deviceplugin.kube.api_errors import TOO_LARGE, refusal
from deviceplugin.kube.credentials import Access, Credentials, GivenAccess, Headers

CONNECTIONS = 8
JSON = "application/json"
MERGE = "application/merge-patch+json"
_BUSY = 429
MOST_BODY = 64 << 20
_MOST_LINE = 8 << 20  # etcd stores objects up to 1.5 MiB
_CHUNK = 1 << 16
# TLS makes a new connection cost 3 ms of CPU, and Binds come in bursts. Balancers close idle connections after 60 s.
_IDLE_SECONDS = 45.0


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds. `silence` ends a watch without any line, even a bookmark: the connection may be half open.

    A request that needs a new login may take `login` longer, because a plugin may wait for a user.
    """

    connect: float | None = 3.0
    request: float | None = 10.0
    silence: float = 120.0
    login: float = 0.0


DEFAULT_TIMEOUTS = Timeouts()


def silence(error: Exception, what: str) -> KubeError:
    """No answer, or none that could be read to its end."""
    return KubeError(f"the API server could not be asked to {what}: {cause(error)}")


class Transport:
    """A pool of at most `connections` connections; each watch uses one. Call `close` at the end.

    `refused` and `silent` make the sentences of its errors.
    """

    def __init__(
        self,
        credentials: Credentials | GivenAccess,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        connections: int = CONNECTIONS,
        refused: Callable[[int, bytes, str], KubeError] = refusal,
        silent: Callable[[Exception, str], KubeError] = silence,
    ) -> None:
        self._credentials = credentials
        self._refused = refused
        self._silent = silent
        self._timeouts = timeouts
        self._connections = connections
        # A request has a limit as a whole; a watch has a limit for each silence.
        self._once = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect)
        self._watching = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect, sock_read=timeouts.silence)
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """The body of a 2xx answer; `what` completes `the API server refused to ...`."""
        headers = () if body is None else (("Content-Type", content_type),)
        status, answer = await self.answer(method, path, what=what, query=query, body=body, headers=headers)
        if status >= 300:
            raise self._refused(status, answer, what)
        return answer

    async def answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Headers = (),
    ) -> tuple[int, bytes]:
        """Status and body, whatever they are.

        After 429 the request is repeated when the server says, within the time limit of one request.
        """
        send = partial(self._open, method, path, query, self._once, body, headers)
        try:
            async with asyncio.timeout(self._timeouts.request) as limit:
                while True:
                    response = await self._send(send, limit)
                    try:
                        answer = await _read(response)
                    finally:
                        response.release()
                    pause = _pause(response)
                    if pause is None or asyncio.get_running_loop().time() + pause >= (limit.when() or math.inf):
                        return response.status, answer
                    await asyncio.sleep(pause)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._silent(error, what) from None

    async def lines(
        self, path: str, *, what: str, query: Mapping[str, str], opened: Callable[[], None]
    ) -> AsyncGenerator[bytes]:
        """The lines of a watch until the server ends it or is silent for too long; use it with `contextlib.aclosing`.

        Silence is not an error: while nothing changes, a server may send no bookmarks (seen on 1.36).
        """
        try:
            response = await self._send(partial(self._open, "GET", path, query, self._watching, None, ()))
            try:
                if response.status >= 300:
                    async with asyncio.timeout(self._timeouts.request):
                        raise self._refused(response.status, await _read(response), what)
                opened()
                with suppress(aiohttp.SocketTimeoutError):
                    async for line in _split(response):
                        yield line
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._silent(error, what) from None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(
        self, send: Callable[[Access], Awaitable[aiohttp.ClientResponse]], limit: asyncio.Timeout | None = None
    ) -> aiohttp.ClientResponse:
        """An answer whose body has not been read; the caller releases it."""
        access = await self._credentials.access()
        try:
            response = await send(access)
        except aiohttp.ClientConnectorCertificateError:
            pass  # the cluster may have a new CA
        else:
            if response.status != 401:
                return response
            response.release()
        if limit is not None and (until := limit.when()) is not None:
            limit.reschedule(until + self._timeouts.login)
        return await send(await self._credentials.renew(access))

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        limits: aiohttp.ClientTimeout,
        body: bytes | None,
        headers: Headers,
        access: Access,
    ) -> aiohttp.ClientResponse:
        facts = access.facts
        sending = self._opened_session().request(
            method,
            URL(facts.server + path, encoded=True),
            params=query,
            data=body,
            headers=[*access.headers, *headers],
            ssl=access.tls,
            server_hostname=facts.tls_server_name,
            proxy=facts.proxy,
            allow_redirects=False,
            timeout=limits,
        )
        if limits is self._once:
            return await sending
        async with asyncio.timeout(self._timeouts.request):  # only the lines of a watch may take longer
            return await sending

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = opened_session(self._connections)
        return self._session


def opened_session(
    connections: int, *, idle_s: float = _IDLE_SECONDS, longest_s: float | None = None
) -> aiohttp.ClientSession:
    """Connections to servers of a cluster: none leaves a cookie. `longest_s`: of one request."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=idle_s, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept": JSON, "User-Agent": "vcuda"},
        read_bufsize=_CHUNK,
        timeout=aiohttp.ClientTimeout(total=longest_s),
    )


def cause(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {one_line(str(error.certificate_error))}"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection in time"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"{error.host}:{error.port}: {os.strerror(number) if number else one_line(str(error.os_error))}"
    return one_line(str(error)) or type(error).__name__


def _pause(response: aiohttp.ClientResponse) -> float | None:
    """The Retry-After of a busy server, randomly up to half longer; None if there is none."""
    if response.status != _BUSY:
        return None
    said = response.headers.get("Retry-After", "")
    if not said.isascii() or not said.isdecimal() or len(said) > 4:
        return None
    return max(1, int(said)) * (1 + random.random() / 2)  # noqa: S311 - so that nodes do not retry in step


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = await read_within(response, MOST_BODY)
    if body is None:
        raise KubeError(f"the API server's answer is larger than {MOST_BODY >> 20} MiB", code=TOO_LARGE)
    return body


async def read_within(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body; None if it has more than `most` bytes, of which no more is read."""
    if (response.content_length or 0) > most:
        return None
    parts, size = [], 0
    while part := await response.content.readany():
        parts.append(part)
        size += len(part)
        if size > most:
            return None
    return b"".join(parts)


async def _split(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > _MOST_LINE:
            raise ParseError(f"a line of the watch is longer than {_MOST_LINE >> 20} MiB")
    if rest.strip():
        raise aiohttp.ClientPayloadError("the watch ended in the middle of a line")


class TokenBucket:
    """`rate` per second on average, `burst` at once."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = 1.0 / rate
        self._ahead = burst * self._step
        self._clock = clock
        self._next = clock() - self._ahead
        self._turn = asyncio.Lock()  # timers alone would not keep the order on a machine that stops between two of them

    def reserve(self) -> float:
        """Takes a token; returns in how many seconds it may be used."""
        now = self._clock()
        self._next = max(self._next, now - self._ahead) + self._step
        return max(0.0, self._next - now)

    async def take(self) -> None:
        async with self._turn:
            wait = self.reserve()
            if wait > 0:
                await asyncio.sleep(wait)
