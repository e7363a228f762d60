"""The TLS side of the listener: serves one certificate, verifies client certificates by one CA, and changes both live.

In: key pairs, and the CA of client certificates. Out: an `ssl.SSLContext` that lives as long as the listener. OpenSSL
cannot remove a CA from a context, so each change makes a new context: a handshake that has begun ends with the old
one, later ones use the new one, connections stay, and no session of the old one is resumed. If OpenSSL refuses a
change, nothing changes. A client certificate is optional, for API server and probes have none; one that is presented
must be valid.
"""

import ssl
from typing import Any

from deviceplugin.cluster.certificates.keypair import KeyPair
from deviceplugin.errors import ConfigError
from deviceplugin.kube.credentials import show_certificate


class _Listeners(ssl.SSLContext):
    """The context that the listener keeps; asyncio calls `wrap_bio` for every connection, and `current` answers."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **how: Any) -> ssl.SSLObject:  # noqa: ANN401 - as SSLContext
        return self.current.wrap_bio(*args, **how)


class ServerTls:
    """`shown` is the certificate that clients get now."""

    def __init__(self, first: KeyPair) -> None:
        self._listeners = _Listeners(ssl.PROTOCOL_TLS_SERVER)
        self._clients: bytes | None = None
        self.shown = first
        self.show(first)

    @property
    def context(self) -> ssl.SSLContext:
        return self._listeners

    def show(self, pair: KeyPair) -> None:
        """From the next handshake on; ConfigError if OpenSSL cannot use it."""
        self._listeners.current = _context(pair, self._clients)
        self.shown = pair

    def trust(self, clients: bytes) -> None:
        """The CA of client certificates, from the next handshake on; ConfigError if it holds no certificate."""
        self._listeners.current = _context(self.shown, clients)
        self._clients = clients


def _context(pair: KeyPair, clients: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        show_certificate(context, pair.chain, pair.key)
    except OSError as error:
        raise ConfigError(f"the certificate cannot be served: {error}") from None
    if clients is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=clients.decode("ascii", errors="ignore"))
        except (ssl.SSLError, ValueError):
            raise ConfigError("it holds no certificate in PEM") from None
    return context
