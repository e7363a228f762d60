"""HTTP to the API server: bytes in, bytes out, and every failure one of our errors.

In: a method, a path, a body. Out: the body of a good answer, or `KubeError` with a sentence; lines of a watch. A token
that is refused and an authority that does not vouch for the server are read again, and the request is repeated once.
Invariant: nothing here waits without a limit. Not here: what paths and bodies mean (`client`), and when to try again
(`reflector`, `events`, `node`), but for a server that says when.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp

from deviceplugin.errors import KubeConflictError, KubeError, KubeGoneError, KubeNotFoundError, ParseError
from deviceplugin.kube.credentials import Access, Credentials
from deviceplugin.kube.structs import StatusObject, decode
from deviceplugin.kube.words import one_line

_BY_CODE: dict[int, type[KubeError]] = {404: KubeNotFoundError, 409: KubeConflictError, 410: KubeGoneError}
_HINTS = {
    401: "; its credentials are missing or have expired",
    403: "; grant it in the ClusterRole of its service account",
}
CONNECTIONS = 8
JSON = "application/json"
TOO_LARGE = 413
_BUSY = 429
_MOST_BODY = 64 << 20
_MOST_LINE = 8 << 20  # etcd stores objects up to 1.5 MiB
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `silence` ends a watch that says nothing, not even a bookmark: it may be a half-open connection."""

    connect: float = 3.0
    request: float = 10.0
    silence: float = 120.0


DEFAULT_TIMEOUTS = Timeouts()


class Transport:
    """One pool of at most so many connections, each watch one of them. `close` it at the end."""

    def __init__(
        self, credentials: Credentials, *, timeouts: Timeouts = DEFAULT_TIMEOUTS, connections: int = CONNECTIONS
    ) -> None:
        self._credentials = credentials
        self._timeouts = timeouts
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    async def open(
        cls,
        kubeconfig: Path | None,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        credentials: Credentials | None = None,
        connections: int = CONNECTIONS,
    ) -> Self:
        """Loads the credentials (ConfigError where that fails); sends nothing yet."""
        credentials = credentials or Credentials(kubeconfig)
        await credentials.access()
        return cls(credentials, timeouts=timeouts, connections=connections)

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
        """The body of a 2xx answer; `what` completes `the API server refused to ...`.

        A server that has too much to do (429) is asked again after as long as it says, within the time of one request.
        """
        headers = {"Content-Type": content_type} if body is not None else {}
        try:
            async with asyncio.timeout(self._timeouts.request) as limit:
                while True:
                    async with self._send(method, path, query=query, body=body, headers=headers) as response:
                        answer = await _read(response)
                    pause = _pause(response)
                    if pause is None or asyncio.get_running_loop().time() + pause >= (limit.when() or 0.0):
                        break
                    await asyncio.sleep(pause)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise silence(error, what=what) from None
        if response.status >= 300:
            raise refusal(response.status, answer, what=what)
        return answer

    async def lines(
        self, path: str, *, what: str, query: Mapping[str, str], opened: Callable[[], None]
    ) -> AsyncGenerator[bytes]:
        """The lines of a watch until the server ends it or is silent for too long; use with `contextlib.aclosing`.

        Silence is no error: where nothing changes a server may send no bookmarks either (seen on 1.36).
        """
        try:
            async with self._send("GET", path, query=query, streaming=True) as response:
                if response.status >= 300:
                    async with asyncio.timeout(self._timeouts.request):
                        raise refusal(response.status, await _read(response), what=what)
                opened()
                with suppress(aiohttp.SocketTimeoutError):
                    async for line in _split(response):
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise silence(error, what=what) from None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        streaming: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        access = await self._credentials.access()
        for attempt in (1, 2):
            try:
                response = await self._open(access, method, path, query, body, headers or {}, streaming)
            except aiohttp.ClientConnectorCertificateError:
                if attempt == 2:
                    raise
                access = await self._credentials.renew(access)  # the cluster's authority may be another one by now
                continue
            if response.status == 401 and attempt == 1:
                response.release()
                access = await self._credentials.renew(access)
                continue
            try:
                yield response
            finally:
                response.close() if streaming else response.release()
            return

    async def _open(
        self,
        access: Access,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        streaming: bool,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_CHUNK,
            )
        own = {"Accept": "application/json", "User-Agent": "vcuda"}
        if access.authorization:
            own["Authorization"] = access.authorization
        reading = self._timeouts.silence if streaming else self._timeouts.request
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect, sock_read=reading)
        # Headers come at once; only the lines of a watch may take long.
        async with asyncio.timeout(self._timeouts.request):
            return await self._session.request(
                method,
                access.server + path,
                params=query,
                data=body,
                headers={**own, **headers},
                ssl=access.tls if access.tls is not None else True,
                server_hostname=access.tls_server_name,
                proxy=access.proxy,
                allow_redirects=False,
                timeout=limits,
            )


def refusal(code: int, body: bytes, *, what: str) -> KubeError:
    """An error answer, or the Status inside a watch, as one of our errors."""
    try:
        status = decode(StatusObject, body, what="the refusal")
        said = status.message or status.reason or ""
    except ParseError:
        said = body[:2000].decode(errors="replace")
    kind = _BY_CODE.get(code, KubeError)
    return kind(f"the API server refused to {what} ({code}{_HINTS.get(code, '')}): {one_line(said)}", code=code)


def silence(error: Exception, *, what: str) -> KubeError:
    """No answer, or none that could be read to its end."""
    return KubeError(f"the API server could not be asked to {what}: {_cause(error)}")


def _cause(error: Exception) -> str:
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
    """How long a busy server wants to be left alone, and by chance up to half longer; None where it says nothing."""
    said = response.headers.get("Retry-After", "")
    if response.status != _BUSY or not said.isascii() or not said.isdecimal() or len(said) > 4:
        return None
    return max(1, int(said)) * (1 + random.random() / 2)  # noqa: S311 - so that nodes do not come back in step


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_BODY:
            raise KubeError(f"the API server's answer is larger than {_MOST_BODY >> 20} MiB", code=TOO_LARGE)
    return bytes(body)


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
