"""Another certificate is shown while clients are connected: by name, without one, and when it is renewed."""

import asyncio
import datetime as dt
import ssl
import tempfile

import aiohttp
import pytest

from deviceplugin.cluster.certificates.keypair import KeyPair, make_ca, make_certificate
from deviceplugin.cluster.http.server import SchedulerServer
from deviceplugin.errors import ConfigError
from tests.cluster.certificates import scene as certificates
from tests.cluster.http.scene import DAY, NAMES, Scene, StandIn, serving, trusting


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


async def test_a_renewal_under_load_fails_no_request() -> None:
    """By the replica's clock the first certificate is made two months ago; all are valid by the clients' clock."""
    async with certificates.cluster() as cluster:
        cluster.now = dt.datetime.now(dt.UTC) - 61 * DAY
        issuer = cluster.replica()
        await issuer.check()
        server = SchedulerServer(StandIn(), context=issuer.tls.context, version="1")
        await server.start("127.0.0.1", 0)
        shown = [issuer.tls.shown]
        try:
            for days in (0, 61):
                cluster.now += days * DAY
                clients = [asyncio.create_task(_ask(server.port, trusting(cluster.bundles[0]))) for _ in range(6)]
                await issuer.check()
                shown.append(issuer.tls.shown)
                await asyncio.gather(*clients)
        finally:
            await server.stop()
    assert shown[0] == shown[1] != shown[2]


async def _ask(port: int, context: ssl.SSLContext) -> None:
    """Each request over its own connection."""
    for name in (NAMES[0], None) * 10:
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"https://127.0.0.1:{port}/webhook", data=b"{}", server_hostname=name) as answer,
        ):
            assert answer.status == 200
