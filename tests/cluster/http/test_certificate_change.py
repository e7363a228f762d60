"""Another certificate is shown while clients are connected: by name, without one, and through a rotation of the CA."""

import asyncio
import datetime as dt
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import ge

import aiohttp
import pytest

from deviceplugin.cluster.certificates.issued import Rules
from deviceplugin.cluster.certificates.keypair import KeyPair, make_ca, make_certificate
from deviceplugin.cluster.certificates.rotation import Rotation
from deviceplugin.cluster.certificates.tls import ServerTls
from deviceplugin.cluster.http.server import SchedulerServer
from deviceplugin.errors import ConfigError
from tests.cluster.certificates.api import ApiInMemory
from tests.cluster.http.scene import DAY, NAMES, Scene, StandIn, serving, trusting
from tests.waiting import until


async def served_certificate(scene: Scene, name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, ssl=context, server_hostname=name or "")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(shown, bytes)
    return shown


async def test_another_certificate_is_shown_with_and_without_a_name_and_open_connections_stay() -> None:
    async with serving() as scene:
        reader, writer = await scene.raw()
        names = ("vcuda-scheduler.gpu.svc", None)
        before = [await served_certificate(scene, name) for name in names]
        assert len(set(before)) == 1
        scene.tls.show(make_certificate(NAMES, scene.ca, dt.datetime.now(dt.UTC), DAY))
        after = [await served_certificate(scene, name) for name in names]
        assert len(set(after) - set(before)) == len(set(after)) == 1
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readuntil(b"ok\n")


async def test_a_certificate_that_cannot_be_used_leaves_the_old_one_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is written for one: the pod's file system is read-only, and has no /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")
    async with serving() as scene:
        before = await served_certificate(scene, None)
        other = make_ca(dt.datetime.now(dt.UTC), DAY)
        for broken in (KeyPair(scene.tls.shown.chain, other.key), KeyPair(b"nonsense", other.key)):
            with pytest.raises(ConfigError, match="the certificate cannot be served"):
                scene.tls.show(broken)
            assert await served_certificate(scene, None) == before
        assert (await scene.post("/filter", b"{}"))[0] == 200


CLIENTS = 6


class Rotating:
    """A service whose certificates are renewed by its own clock, with real clients meanwhile."""

    def __init__(self) -> None:
        self.api = ApiInMemory()
        # Ends at the present: every certificate that is made on the way is valid by the clients' clock.
        self.now = dt.datetime.now(dt.UTC) - 88 * DAY
        self.tls = ServerTls(make_ca(dt.datetime.now(dt.UTC), DAY))
        self.rotation = Rotation(
            self.api,
            namespace="gpu",
            secret="s",
            configuration="w",
            rules=Rules(NAMES, 90 * DAY, 100 * DAY),
            show=self.tls.show,
            now=lambda: self.now,
        )
        self.trusted = b""
        self.failures: list[str] = []
        self.requests = [0] * CLIENTS

    async def check(self) -> None:
        """Afterwards every third client trusts only the caBundle from before."""
        self.trusted = self.bundle
        await self.rotation.check(leads=True)

    @property
    def bundle(self) -> bytes:
        assert self.api.bundles is not None
        return self.api.bundles[0]

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        server = SchedulerServer(StandIn(), context=self.tls.context, version="1")
        await server.start("127.0.0.1", 0)
        tasks = [asyncio.create_task(self._ask(server.port, number)) for number in range(CLIENTS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop()

    async def _ask(self, port: int, number: int) -> None:
        """Each request over its own connection."""
        name = NAMES[0] if number % 2 else None
        while True:
            context = trusting(self.bundle if number % 3 else self.trusted)
            try:
                await self._once(port, context, name)
                self.requests[number] += 1
            except (OSError, aiohttp.ClientError) as error:
                self.failures.append(f"{number}: {error!r}")
            await asyncio.sleep(0.005)

    async def _once(self, port: int, context: ssl.SSLContext, name: str | None) -> None:
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"https://127.0.0.1:{port}/webhook", data=b"{}", server_hostname=name) as answer,
        ):
            assert answer.status == 200

    async def serve_some(self) -> None:
        """Until each client has used what was trusted after the last check."""
        goals = [count + 2 for count in self.requests]
        await until(lambda: all(map(ge, self.requests, goals)) or bool(self.failures), within=120)


async def test_certificate_and_ca_rotate_under_load_without_a_failed_request() -> None:
    scene = Rotating()
    await scene.check()
    await scene.check()
    shown = [scene.tls.shown]
    async with scene.under_load():
        for days in (1, 61, 6, 1, 18.6, 0.1):
            scene.now += days * DAY
            await scene.check()
            if scene.tls.shown != shown[-1]:
                shown.append(scene.tls.shown)
            await scene.serve_some()
    assert scene.failures == []
    issuers = [pair.certificate.issuer for pair in shown]
    assert len(issuers) == 3, "one renewed by the same CA, one by the new one"
    assert issuers[0] == issuers[1] != issuers[2]
