"""What clients get in a handshake, as a client sees it, and what happens to a pair that cannot be shown."""

import asyncio
import datetime as dt
import ssl
import tempfile

import pytest

from deviceplugin.cluster.certificates.keypair import KeyPair, make_ca, make_certificate
from deviceplugin.cluster.certificates.tls import ServerTls
from deviceplugin.errors import ConfigError

DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.UTC)
CA = make_ca(NOW, 30 * DAY)
NAME = "vcuda-scheduler.gpu.svc"


def certificate() -> KeyPair:
    return make_certificate([NAME], CA, NOW, DAY)


async def shown_to_a_client(tls: ServerTls, trusted: bytes = CA.chain) -> bytes:
    """The certificate, after a handshake in which the client checked it."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context)
    client = ssl.create_default_context(cadata=trusted.decode())
    try:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=NAME)
        seen: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return seen
    finally:
        server.close()


def _der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.chain.decode().partition("-----END")[0] + "-----END CERTIFICATE-----\n")


async def test_the_next_handshake_gets_what_was_shown_last() -> None:
    first, second = certificate(), certificate()
    tls = ServerTls(first)
    assert await shown_to_a_client(tls) == _der(first)
    tls.show(second)
    assert await shown_to_a_client(tls) == _der(second)


async def test_a_pair_that_cannot_be_shown_changes_nothing() -> None:
    first, second = certificate(), certificate()
    tls = ServerTls(first)
    for bad in (KeyPair(second.chain, first.key), KeyPair(b"nonsense", second.key)):
        with pytest.raises(ConfigError, match="cannot be served"):
            tls.show(bad)
        assert tls.shown == first
        assert await shown_to_a_client(tls) == _der(first)


async def test_no_file_is_written_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod's file system is read-only, and has no /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")
    pair = certificate()
    assert await shown_to_a_client(ServerTls(pair)) == _der(pair)
