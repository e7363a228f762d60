"""The TLS side of the listener: shows one certificate until it is told to show another.

In: pairs. Out: an `ssl.SSLContext` that lives as long as the listener. Handshakes begun before `show` end with the old
certificate, later ones get the new one, connections stay. A pair that OpenSSL refuses changes nothing.
"""

import os
import ssl
import tempfile
from pathlib import Path

from deviceplugin.cluster.certificates.pair import Pair
from deviceplugin.errors import ConfigError


class ServerTls:
    """`shown` is what clients get now."""

    def __init__(self, first: Pair) -> None:
        self.context = _context()
        self.shown = first
        self.show(first)

    def show(self, pair: Pair) -> None:
        """From the next handshake on; ConfigError where OpenSSL cannot use it."""
        with tempfile.TemporaryDirectory(prefix="vcuda-") as directory:
            chain, key = _written(Path(directory), "chain", pair.chain), _written(Path(directory), "key", pair.key)
            try:
                _context().load_cert_chain(chain, key)  # a context that refuses halfway must not be the one in use
            except (ssl.SSLError, OSError) as error:
                raise ConfigError(f"the certificate cannot be shown to clients: {error}") from None
            self.context.load_cert_chain(chain, key)
        self.shown = pair


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _written(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    return path
