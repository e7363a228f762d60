"""The TLS side of the listener: shows one certificate until it is told to show another, and believes one authority.

In: pairs, and the authority whose certificates clients may show. Out: an `ssl.SSLContext` that lives as long as the
listener. OpenSSL forgets no authority that it was told of, so each change makes a context that is wholly new: a
handshake begun before ends with the old one, later ones get the new one, connections stay, and no session of the old
one is taken up again. What OpenSSL refuses changes nothing. No client has to show a certificate, for API server and
probes have none; one that is shown has to be good. OpenSSL reads files only; these lie in memory, because the pod's
file system is read-only and a key belongs on no disk.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from deviceplugin.cluster.certificates.pair import Pair
from deviceplugin.errors import ConfigError


class _Listeners(ssl.SSLContext):
    """What a listener keeps. asyncio has it make the TLS of every connection, which `current` does."""

    current: ssl.SSLContext

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class ServerTls:
    """`shown` is what clients get now."""

    def __init__(self, first: Pair) -> None:
        self._listeners = _Listeners(ssl.PROTOCOL_TLS_SERVER)
        self._clients: bytes | None = None
        self.shown = first
        self.show(first)

    @property
    def context(self) -> ssl.SSLContext:
        return self._listeners

    def show(self, pair: Pair) -> None:
        """From the next handshake on; ConfigError where OpenSSL cannot use it."""
        self._listeners.current = _context(pair, self._clients)
        self.shown = pair

    def trust(self, clients: bytes) -> None:
        """Who signed what clients show, from the next handshake on; ConfigError where there is no authority in it."""
        self._listeners.current = _context(self.shown, clients)
        self._clients = clients


def _context(pair: Pair, clients: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        with _in_memory("chain", pair.chain) as chain, _in_memory("key", pair.key) as key:
            context.load_cert_chain(chain, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"the certificate cannot be shown to clients: {error}") from None
    if clients is not None:
        _believe(context, clients)
    return context


def _believe(context: ssl.SSLContext, clients: bytes) -> None:
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        with _in_memory("clients", clients) as path:
            context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError("it holds no certificate in PEM") from None


@contextmanager
def _in_memory(name: str, content: bytes) -> Iterator[str]:
    """A path at which it can be read, again and again, while the block lasts."""
    with os.fdopen(os.memfd_create(f"vcuda-{name}", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
