"""Certificates that somebody else keeps in files, such as cert-manager's in a mounted Secret: used when they change.

In: paths. Out: calls of `show` or `trust`. The files are compared by content, because a mounted Secret changes by a
link two directories up. What cannot be used is reported once and what was in use stays.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from deviceplugin.cluster.certificates.pair import Pair, read_pair
from deviceplugin.errors import ConfigError, VcudaError

log = structlog.get_logger("vcuda.certificates")


class CertificateFiles:
    """`look` at start, then `run` until it is cancelled. `take` raises where it cannot use what they hold."""

    def __init__(self, *paths: Path, named: str, take: Callable[[tuple[bytes, ...]], None]) -> None:
        self._paths = paths
        self._named = named
        self._use = take
        self._seen: tuple[bytes, ...] | None = None

    def look(self) -> None:
        """ConfigError where they cannot be used."""
        self._take(self._read())

    def _take(self, content: tuple[bytes, ...]) -> None:
        if content == self._seen:
            return
        try:
            self._use(content)
        except VcudaError as error:
            raise ConfigError(f"{self._named} cannot be used: {error.message}") from None
        self._seen = content  # only now: what could not be used is tried again

    async def run(self, *, period: float) -> None:
        said = ""
        while True:
            await asyncio.sleep(period)
            try:
                self._take(await asyncio.to_thread(self._read))  # a dead mount must not stop the loop
                said = ""
            except VcudaError as error:
                if error.message != said:
                    log.warning("what the files held before is kept in use", cause=error.message)
                said = error.message

    def _read(self) -> tuple[bytes, ...]:
        found = []
        for path in self._paths:
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        return tuple(found)


def server_files(chain: Path, key: Path, *, show: Callable[[Pair], None]) -> CertificateFiles:
    """What we show."""

    def take(content: tuple[bytes, ...]) -> None:
        pair = read_pair(*content)
        show(pair)
        log.info("a certificate is shown", until=str(pair.certificate.not_valid_after_utc))

    return CertificateFiles(chain, key, named=f"{chain} and {key}", take=take)


def client_authority(path: Path, *, trust: Callable[[bytes], None]) -> CertificateFiles:
    """Who has to have signed what clients show."""

    def take(content: tuple[bytes, ...]) -> None:
        trust(*content)
        log.info("an authority of clients is believed", file=str(path))

    return CertificateFiles(path, named=f"--client-ca-file: {path}", take=take)
