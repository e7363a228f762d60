"""The TLS side of the listener: shows one certificate until it is told to show another.

In: pairs, and whose certificates clients may show. Out: an `ssl.SSLContext` that lives as long as the listener.
Handshakes begun before `show` end with the old certificate, later ones get the new one, connections stay. A pair that
OpenSSL refuses changes nothing. No client has to show a certificate, for API server and probes have none; one that is
shown has to be good. OpenSSL reads files only; these lie in memory, because the pod's file system is read-only and a
key belongs on no disk.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deviceplugin.cluster.certificates.pair import Pair
from deviceplugin.errors import ConfigError


class ServerTls:
    """`shown` is what clients get now."""

    def __init__(self, first: Pair, *, clients: Path | None = None) -> None:
        self.context = _context()
        if clients is not None:
            self._trust(clients)
        self.shown = first
        self.show(first)

    def _trust(self, clients: Path) -> None:
        self.context.verify_mode = ssl.CERT_OPTIONAL
        try:
            self.context.load_verify_locations(clients)
        except (ssl.SSLError, OSError) as error:
            said = "it holds no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigError(f"--client-ca-file: {clients} cannot be used: {said}") from None

    def show(self, pair: Pair) -> None:
        """From the next handshake on; ConfigError where OpenSSL cannot use it."""
        try:
            with _in_memory("chain", pair.chain) as chain, _in_memory("key", pair.key) as key:
                _context().load_cert_chain(chain, key)  # a context that refuses halfway must not be the one in use
                self.context.load_cert_chain(chain, key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"the certificate cannot be shown to clients: {error}") from None
        self.shown = pair


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextmanager
def _in_memory(name: str, content: bytes) -> Iterator[str]:
    """A path at which it can be read, again and again, while the block lasts."""
    with os.fdopen(os.memfd_create(f"vcuda-{name}", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
