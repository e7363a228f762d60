"""Whom the API server believes: the caBundles of our webhooks, and for how long a coming authority has been in them.

In: the keyring that shall be believed. Out: the bundles written where they differ, and whether the coming authority may
sign. Its time counts from when all bundles had it, by a clock that only goes forward; who leads anew waits anew.
"""

import datetime as dt
from collections.abc import Callable
from typing import Protocol

import structlog
from cryptography import x509

from deviceplugin.cluster.certificates.keyring import Keyring, split

log = structlog.get_logger("vcuda.certificates")


class TrustStore(Protocol):
    """The caBundles by which the API server knows us."""

    async def read(self) -> tuple[bytes, ...] | None:
        """One for each webhook; None where there is no configuration."""

    async def write(self, bundle: bytes) -> None: ...


class Trusted:
    """`store` None: somebody else keeps the bundles, and time is all that is waited for."""

    def __init__(
        self,
        store: TrustStore | None,
        *,
        settle: float,
        now: Callable[[], dt.datetime],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._settle = settle
        self._now = now
        self._clock = clock
        self._since: tuple[bytes, float] | None = None
        self._is_missing = False

    async def make(self, keyring: Keyring, *, keep_others: bool) -> None:
        wanted = set(keyring.authorities)
        if self._store is not None:
            bundles = await self._store.read()
            if bundles is None and not self._is_missing:
                log.warning("there is no webhook configuration whose caBundle could be set")
            self._is_missing = bundles is None
            found = [set(split(bundle)) for bundle in bundles or ()]
            if keep_others:
                wanted = wanted.union(*([each for each in one if self._is_good(each)] for one in found))
            if any(one != wanted for one in found):
                self._since = None
                await self._store.write(b"".join(sorted(wanted)))
                log.info("the webhooks' caBundle was set", authorities=len(wanted))
        coming = keyring.coming.chain if keyring.coming else b""
        if coming and (self._since is None or self._since[0] != coming):
            self._since = (coming, self._clock())

    def _is_good(self, pem: bytes) -> bool:
        try:
            return x509.load_pem_x509_certificate(pem).not_valid_after_utc > self._now()
        except ValueError:
            return False

    def has_settled(self, coming: bytes) -> bool:
        since = self._since
        return since is not None and since[0] == coming and self._clock() - since[1] >= self._settle
