"""Keeps authority, certificate and caBundle right: every replica shows what the Secret holds, the leader renews it.

In: the Secret and the webhooks that trust us, as protocols; rules; a clock. Out: calls of `show`. The order is what
counts: an authority is in the caBundle, and stays there for `settle` seconds, before anything that it signed is in the
Secret, and a former one leaves the caBundle when it is over. A crash between two steps is taken up by the next round
of whoever leads then. Whatever fails is tried again; what is shown meanwhile is good for a third of its life.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from deviceplugin.cluster.certificates.keyring import (
    Keyring,
    Rules,
    can_sign,
    from_data,
    kept_up,
    new_keyring,
    promoted,
    to_data,
)
from deviceplugin.cluster.certificates.pair import Pair
from deviceplugin.cluster.certificates.trust import Trusted, TrustStore
from deviceplugin.errors import KubeConflictError, ParseError, VcudaError

log = structlog.get_logger("vcuda.certificates")
_SOON_S = 2.0


@dataclass(frozen=True, slots=True)
class Stored:
    """The Secret at one version."""

    data: Mapping[str, bytes]
    version: str


class SecretStore(Protocol):
    """One Secret of the cluster."""

    async def read(self) -> Stored | None: ...
    async def create(self, data: Mapping[str, bytes]) -> None:
        """KubeConflictError where it is there."""

    async def replace(self, data: Mapping[str, bytes], *, version: str) -> None:
        """KubeConflictError where it has another version."""


class Keeper:
    """`run` until it is cancelled. `ready` is set when a certificate of the Secret is shown."""

    def __init__(
        self,
        secret: SecretStore,
        trust: TrustStore | None,
        *,
        rules: Rules,
        settle: float,
        show: Callable[[Pair], None],
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        clock: Callable[[], float] = time.monotonic,
        ready: asyncio.Event | None = None,
    ) -> None:
        self._secret = secret
        self._rules = rules
        self._show = show
        self._now = now
        self._trusted = Trusted(trust, settle=settle, now=now, clock=clock)
        self.keyring: Keyring | None = None
        self.ready = ready or asyncio.Event()

    async def run(self, leads: Callable[[], bool], *, period: float) -> None:
        said = ""
        while True:
            try:
                await self.round(leads=leads())
                said = ""
            except VcudaError as error:
                if error.message != said:
                    log.warning("the certificates could not be looked after", cause=error.message)
                said = error.message
            await asyncio.sleep(period if self.ready.is_set() else min(period, _SOON_S))

    async def round(self, *, leads: bool) -> None:
        """One look; KubeError where the API server refuses, and nothing is lost then."""
        stored = await self._secret.read()
        found = self._read(stored)
        try:
            keyring = await self._lead(found, stored) if leads else found
        except KubeConflictError:
            log.info("another replica wrote the certificates meanwhile")
            return
        if keyring is not None:
            self._take(keyring)

    def _read(self, stored: Stored | None) -> Keyring | None:
        if stored is None:
            return None
        try:
            return from_data(stored.data)
        except ParseError as error:
            log.warning("the Secret with the certificates is broken", cause=error.message)
            return None

    async def _lead(self, found: Keyring | None, stored: Stored | None) -> Keyring:
        version = stored.version if stored else ""
        keyring = self._of_use(found)
        is_lost = keyring is None
        if keyring is None:
            keyring = self._of_use(self.keyring) or new_keyring(self._rules, self._now())
            # Others may still show what an authority signed that we do not know, so it stays trusted.
            await self._trusted.make(keyring, keep_others=True)
            version = await self._save(keyring, version)
        kept = kept_up(keyring, self._rules, self._now())
        if kept is not keyring:
            version = await self._save(kept, version)
        await self._trusted.make(kept, keep_others=is_lost)
        if kept.coming is not None and self._trusted.has_settled(kept.coming.chain):
            kept = promoted(kept, self._rules, self._now())
            await self._save(kept, version)
            log.info("a new authority signs our certificates")
        return kept

    def _of_use(self, keyring: Keyring | None) -> Keyring | None:
        """None where its authority is over: nothing that it signs would be believed, so all begins anew."""
        if keyring is None or can_sign(keyring, self._now()):
            return keyring
        log.warning("the authority of our certificates is not valid at this time, so there will be a new one")
        return None

    async def _save(self, keyring: Keyring, version: str) -> str:
        """Returns the version that is there then."""
        data = to_data(keyring)
        if version:
            await self._secret.replace(data, version=version)
        else:
            await self._secret.create(data)
        stored = await self._secret.read()
        if stored is None or _written(stored.data) != _written(data):
            raise KubeConflictError("the Secret with the certificates changed meanwhile", code=409)
        return stored.version

    def _take(self, keyring: Keyring) -> None:
        if self.keyring is None or self.keyring.server != keyring.server:
            self._show(keyring.server)  # where that fails it is shown at the next look, so nothing is remembered yet
            log.info("a certificate is shown", until=str(keyring.server.certificate.not_valid_after_utc))
        self.keyring = keyring
        self.ready.set()


def _written(data: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: content for key, content in data.items() if content}
