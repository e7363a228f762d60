"""Keeps CA, serving certificate and caBundle right: every replica serves what the Secret holds, the leader renews it.

In: the API server, the names of Secret and webhook configuration, rules, a clock. Out: calls of `show`. The caBundle
is written before the Secret, so clients trust a CA before anything that it signed is served. A crash between the two
is repaired by the next check of any leader. If several replicas write at once, one Secret wins, by its version, and the
others serve what it holds. A failure is logged and tried again; what is served meanwhile is valid for a third of its
life.
"""

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from deviceplugin.cluster.certificates.issued import Issued, Rules, from_data, issue, renewed, to_data
from deviceplugin.cluster.certificates.keypair import KeyPair, is_valid, read_chain, split
from deviceplugin.errors import KubeConflictError, KubeNotFoundError, ParseError, VcudaError
from deviceplugin.kube.cluster_client import Secret

log = structlog.get_logger("vcuda.certificates")
_LABELS = {"app.kubernetes.io/name": "vcuda-scheduler"}
_KEPT = {"helm.sh/resource-policy": "keep"}
"""Helm had made the Secret that somebody deleted, and would delete the one that takes its place at the next upgrade."""
_SOON_S = 2.0


class Api(Protocol):
    """The part of the API server that holds Secret and caBundle; as `ClusterClient`."""

    async def get_secret(self, namespace: str, name: str) -> Secret: ...
    async def create_secret(self, secret: Secret) -> Secret: ...
    async def update_secret(self, secret: Secret, data: Mapping[str, bytes | None]) -> Secret: ...
    async def get_ca_bundles(self, configuration: str) -> tuple[bytes, ...]: ...
    async def set_ca_bundle(self, configuration: str, bundle: bytes) -> None: ...


@dataclass(slots=True)
class Rotation:
    """`run` until it is cancelled. `ready` is set when a certificate of the Secret is served.

    `configuration` is the webhook configuration whose caBundle this writes; empty: another tool writes it, such as
    Helm, which knows no CA but the one in the Secret, so that one signs until it expires.
    """

    api: Api
    namespace: str
    secret: str
    configuration: str
    rules: Rules
    show: Callable[[KeyPair], None]
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    issued: Issued | None = field(default=None, init=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self, leads: Callable[[], bool], *, period: float) -> None:
        logged = ""
        while True:
            try:
                await self.check(leads=leads())
                logged = ""
            except VcudaError as error:
                if error.message != logged:
                    log.warning("certificate_check_failed", error=error.message)
                logged = error.message
            await asyncio.sleep(period if self.ready.is_set() else min(period, _SOON_S))

    async def check(self, *, leads: bool) -> None:
        """KubeError where the API server refuses; what is in the Secret is served all the same."""
        secret = await self._read()
        found = self._issued_in(secret)
        try:
            if leads:
                found = await self._renew(found, secret)
        except KubeConflictError:
            log.info("certificates_written_by_another_replica")
        finally:
            if found is not None:
                self._serve(found)

    async def _read(self) -> Secret | None:
        try:
            return await self.api.get_secret(self.namespace, self.secret)
        except KubeNotFoundError:
            return None

    def _issued_in(self, secret: Secret | None) -> Issued | None:
        if secret is None:
            return None
        try:
            return from_data(secret.data)
        except ParseError as error:
            log.warning("certificate_secret_unusable", secret=f"{self.namespace}/{self.secret}", error=error.message)
            return None

    async def _renew(self, found: Issued | None, secret: Secret | None) -> Issued:
        now = self.now()
        bundles = await self._bundles()
        # What this replica serves is in no usable Secret any more; it is written again, and no client notices.
        kept = self._usable(found) or self._usable(self.issued)
        is_replaced = False
        if kept is None:
            lost = {each for bundle in bundles for each in split(bundle)}
            is_replaced = bool(lost) if self.configuration else secret is not None
            trusted = (each for each in lost if is_valid(read_chain(each)[0], now))
            kept = issue(self.rules, now, trusted=sorted(trusted))
        kept = renewed(kept, self.rules, now, keeps_ca=not self.configuration)
        await self._trust(kept, bundles)
        await self._save(kept, secret)
        if is_replaced:
            self._report_replaced()
        return kept

    def _usable(self, issued: Issued | None) -> Issued | None:
        """None after a pause longer than the CA's life, or if a clock was far ahead when the CA was made."""
        if issued is None or is_valid(issued.ca.certificate, self.now()):
            return issued
        log.warning("ca_not_valid", error="the CA is not valid at this time; a new one replaces it")
        return None

    def _report_replaced(self) -> None:
        """The webhook's clients know the new CA by its caBundle; kube-scheduler read a file at its start."""
        upgrade = "" if self.configuration else "run helm upgrade, which writes its ca.crt into the caBundle, and "
        log.warning(
            "ca_replaced",
            error=f"Secret {self.namespace}/{self.secret} holds no valid CA any more, so a new one replaces it; "
            f"{upgrade}restart each kube-scheduler that calls the extender over TLS, because it trusts the old one "
            "until then",
            command=f"kubectl -n {self.namespace} rollout restart deployment/vcuda-scheduler",
        )

    async def _bundles(self) -> tuple[bytes, ...]:
        if not self.configuration:
            return ()
        try:
            return await self.api.get_ca_bundles(self.configuration)
        except KubeNotFoundError:
            return ()  # it may be created later

    async def _trust(self, issued: Issued, bundles: tuple[bytes, ...]) -> None:
        if any(set(split(bundle)) != set(issued.cas) for bundle in bundles):
            await self.api.set_ca_bundle(self.configuration, b"".join(issued.cas))
            log.info("ca_bundle_written", cas=len(issued.cas))

    async def _save(self, issued: Issued, secret: Secret | None) -> None:
        data = to_data(issued)
        if secret is None:
            await self.api.create_secret(Secret(self.namespace, self.secret, data, _LABELS, annotations=_KEPT))
        elif any(secret.data.get(key) != content for key, content in data.items()):
            surplus: dict[str, bytes | None] = dict.fromkeys(secret.data.keys() - data.keys())
            await self.api.update_secret(secret, {**surplus, **data})

    def _serve(self, issued: Issued) -> None:
        if self.issued is None or self.issued.server != issued.server:
            self.show(issued.server)  # if that fails, the next check tries it again
            log.info("certificate_served", until=str(issued.server.certificate.not_valid_after_utc))
        self.issued = issued
        self.ready.set()
