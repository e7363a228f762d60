"""Reads the body of a request within limits: its size, its time, and the size of all bodies together.

In: a request. Out: its bytes, or an `HttpError` with a status and one sentence. A slow or huge client costs this
process a bounded amount of memory and delays no other client. A body that arrived together with its headers, as
kube-scheduler's do, is in memory already: it is returned at once and does not count against the total.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from deviceplugin.cluster.http.verbs import HttpError

_WITHIN_S = 10.0
_LIMIT = 8 << 20
_MOST_TOGETHER = 128 << 20


class Bodies:
    """Reads bodies; `held` bytes are in memory now."""

    def __init__(self, *, within: float = _WITHIN_S, most_together: int = _MOST_TOGETHER) -> None:
        self._within = within
        self._most = most_together
        self.held = 0

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        if self.held + size > self._most:
            raise HttpError(503, "busy", "too many large requests at the same time; try again")
        self.held += size
        try:
            yield
        finally:
            self.held -= size

    async def read(self, request: web.BaseRequest) -> bytes:
        """Raises an HttpError with status 400, 408, 413 or 503."""
        declared = request.content_length
        _check_size(declared or 0)
        try:
            if request.content.is_eof():
                body = request.content.read_nowait()
                _check_size(len(body))
                return body
            with self._room(declared if declared is not None else _LIMIT):
                async with asyncio.timeout(self._within):
                    # Some clients wait for this status before they send a large body.
                    if request.version == HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
                        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    return await _all(request)
        except TimeoutError:
            raise HttpError(408, "slow", f"the body did not arrive within {self._within:g}s; send it at once") from None
        except (ConnectionError, web.RequestPayloadError, HttpProcessingError):
            raise HttpError(400, "disconnected", "the body ended before it was complete; send it again") from None


async def _all(request: web.BaseRequest) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        _check_size(len(body))
    return bytes(body)


def _check_size(size: int) -> None:
    if size > _LIMIT:
        sentence = f"the body is larger than {_LIMIT >> 20} MiB; send names instead of whole nodes"
        raise HttpError(413, "too_large", sentence)
