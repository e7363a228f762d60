"""Certificates in files that another tool renews, such as cert-manager in a mounted Secret: used when they change.

In: paths. Out: calls of `show` or `trust`. The files are compared by content, because a mounted Secret changes by a
link two directories up. If content cannot be used, the content before stays in use.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from deviceplugin.cluster.certificates.keypair import KeyPair, read_pair
from deviceplugin.errors import ConfigError, VcudaError

log = structlog.get_logger("vcuda.certificates")


class CertificateFiles:
    """`load` at start, then `check` at intervals. `use` raises if it cannot use the content."""

    def __init__(self, *paths: Path, named: str, use: Callable[[tuple[bytes, ...]], None]) -> None:
        self._paths = paths
        self._named = named
        self._use = use
        self._used: tuple[bytes, ...] | None = None

    def load(self) -> None:
        """ConfigError if they cannot be used."""
        self._take(self._read())

    async def check(self) -> None:
        """ConfigError if they cannot be used; what was used before stays."""
        self._take(await asyncio.to_thread(self._read))  # a dead mount must not stop the loop

    def _take(self, content: tuple[bytes, ...]) -> None:
        if content == self._used:
            return
        try:
            self._use(content)
        except VcudaError as error:
            raise ConfigError(f"{self._named} cannot be used: {error.message}") from None
        self._used = content  # only now: what could not be used is tried again

    def _read(self) -> tuple[bytes, ...]:
        found = []
        for path in self._paths:
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        return tuple(found)


def server_files(chain: Path, key: Path, *, show: Callable[[KeyPair], None]) -> CertificateFiles:
    """The serving certificate and its key."""

    def use(content: tuple[bytes, ...]) -> None:
        pair = read_pair(*content)
        show(pair)
        log.info("certificate_served", until=str(pair.certificate.not_valid_after_utc))

    return CertificateFiles(chain, key, named=f"{chain} and {key}", use=use)


def client_ca(path: Path, *, trust: Callable[[bytes], None]) -> CertificateFiles:
    """The CA of client certificates."""

    def use(content: tuple[bytes, ...]) -> None:
        trust(*content)
        log.info("client_ca_loaded", path=str(path))

    return CertificateFiles(path, named=f"--client-ca-file: {path}", use=use)
