"""`GET /pods` of kubelet's own HTTPS server, on loopback.

In: requests with a bearer token. Out: the PodList of everything kubelet knows, refused and ended pods included, with
the annotations kubernetes.io/config.seen and config.source; status as the source of the pod last said it, not as
kubelet knows it. Tests change `faults` while it runs: refused, slow, hanging or garbled answers.
"""

import asyncio
import hmac
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from sandbox.kubelet.certificate import self_signed
from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.pause import Pause


@dataclass(slots=True)
class PodsApiFaults:
    """What is wrong with it right now. `status`: 401, 403, 500 ...; `garbled`: half a document."""

    status: int = 0
    delay_s: float = 0.0
    hang: bool = False
    garbled: bool = False


class PodsApi:
    """One life of the server; `url` is known once it has started."""

    def __init__(self, options: KubeletOptions, pause: Pause, *, listing: Callable[[], Iterable[Json]]) -> None:
        self.faults = PodsApiFaults()
        self.requests = 0
        self.port = options.pods_port
        self._options = options
        self._pause = pause
        self._listing = listing
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._options.pods_tls else 'http'}://127.0.0.1:{self.port}/pods"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/pods", self._pods)
        app.router.add_get("/pods/", self._pods)
        app.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls())
        await site.start()
        addresses: list[Any] = self._runner.addresses
        self.port = int(addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _tls(self) -> ssl.SSLContext | None:
        if not self._options.pods_tls:
            return None
        pki = self_signed(self._options.root / "pki", self._options.node_name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.certificate, pki.key)
        return context

    async def _pods(self, request: web.Request) -> web.Response:
        self.requests += 1
        await self._pause.passed()
        if self.faults.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(self.faults.delay_s)
        if self.faults.status:
            return web.Response(status=self.faults.status, text=_refusal(self.faults.status))
        if not self._authorised(request):
            return web.Response(status=401, text="Unauthorized")
        body: Json = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(self._listing())}
        encoded = msgspec.json.encode(body)
        if self.faults.garbled:
            encoded = encoded[: len(encoded) // 2]
        return web.Response(body=encoded, content_type="application/json")

    async def _healthz(self, _request: web.Request) -> web.Response:
        await self._pause.passed()
        return web.Response(text="ok")

    def _authorised(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "")
        return hmac.compare_digest(given, f"Bearer {self._options.token}")


def _refusal(status: int) -> str:
    if status == web.HTTPForbidden.status_code:
        return "Forbidden (user=stand-in, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    return "Unauthorized" if status == web.HTTPUnauthorized.status_code else "stand-in failure"
