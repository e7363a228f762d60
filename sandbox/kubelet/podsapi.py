"""`GET /pods` of kubelet's own HTTPS server, on loopback, with the certificate that kubelet signs itself.

In: requests with a bearer token. Out: the PodList of everything kubelet knows, refused and ended pods included, with
the annotations kubernetes.io/config.seen and config.source; status as the source of the pod last said it, not as
kubelet knows it. The user changes `faults` while it runs: refused, slow, hanging or garbled answers. The certificate is
made once for each directory; no CA signs it, so clients pin it or do not verify it.
"""

import asyncio
import hmac
import ipaddress
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.waiting import Pause


@dataclass(slots=True)
class PodsApiFaults:
    """What is wrong with it right now. `status`: 401, 403, 500 ...; `garbled`: half a document.

    `others`: more pods, as JSON between commas. `chunked`: an answer that does not say its length beforehand.
    """

    status: int = 0
    delay_s: float = 0.0
    hang: bool = False
    garbled: bool = False
    others: bytes = b""
    chunked: bool = False


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
        items = [*self._listing(), *([msgspec.Raw(self.faults.others)] if self.faults.others else ())]
        encoded = msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
        if self.faults.garbled:
            encoded = encoded[: len(encoded) // 2]
        response = web.Response(body=encoded, content_type="application/json")
        if self.faults.chunked:
            response.enable_chunked_encoding()
        return response

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


@dataclass(frozen=True, slots=True)
class ServingPair:
    """PEM files."""

    certificate: Path
    key: Path


def self_signed(directory: Path, node_name: str) -> ServingPair:
    pair = ServingPair(directory / "kubelet.crt", directory / "kubelet.key")
    if pair.certificate.exists() and pair.key.exists():
        return pair
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{node_name}@stand-in")])
    alternatives = [
        x509.DNSName(node_name),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    start = datetime.now(UTC) - timedelta(minutes=5)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(key, hashes.SHA256())
    )
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    pair.key.chmod(0o600)
    return pair
