"""Certificates that somebody else keeps in files, such as cert-manager's in a mounted Secret: shown when they change.

In: two paths. Out: calls of `show`. The files are compared by content, because a mounted Secret changes by a link two
directories up. What cannot be used is reported once and what was shown stays.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from deviceplugin.cluster.certificates.pair import Pair, read_pair
from deviceplugin.errors import ConfigError, ParseError, VcudaError

log = structlog.get_logger("vcuda.certificates")


class CertificateFiles:
    """`look` at start, then `run` until it is cancelled."""

    def __init__(self, chain: Path, key: Path, *, show: Callable[[Pair], None]) -> None:
        self._paths = (chain, key)
        self._show = show
        self._seen: tuple[bytes, bytes] | None = None

    def look(self) -> None:
        """ConfigError where they cannot be used."""
        self._take(self._read())

    def _take(self, content: tuple[bytes, bytes]) -> None:
        if content == self._seen:
            return
        try:
            pair = read_pair(*content)
        except ParseError as error:
            chain, key = self._paths
            raise ConfigError(f"{chain} and {key} cannot be used: {error.message}") from None
        self._show(pair)
        self._seen = content  # only now: what could not be shown is tried again
        log.info("a certificate is shown", until=str(pair.certificate.not_valid_after_utc))

    async def run(self, *, period: float) -> None:
        said = ""
        while True:
            await asyncio.sleep(period)
            try:
                self._take(await asyncio.to_thread(self._read))  # a dead mount must not stop the loop
                said = ""
            except VcudaError as error:
                if error.message != said:
                    log.warning("the certificate stays as it was", cause=error.message)
                said = error.message

    def _read(self) -> tuple[bytes, bytes]:
        found = []
        for path in self._paths:
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        return found[0], found[1]
