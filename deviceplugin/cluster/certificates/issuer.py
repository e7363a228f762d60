"""The CA, which is in a Secret and made once, and the serving certificate that a replica makes from it in memory.

In: the API server, the names of Secret and webhook configuration, the names by which clients call, a clock. Out: what
`tls` shows, and the caBundle. Invariant: the Secret decides. The replica that creates it makes the CA, and all read it
at each check, so they sign with the same CA one check after it has changed. No clock replaces a CA: one replica with a
wrong clock would take the webhook from all. The key of a serving certificate never leaves the process.
"""

import asyncio
import datetime as dt
from collections.abc import Callable

import msgspec
import structlog

from deviceplugin.cluster.certificates.keypair import (
    KeyPair,
    ServerTls,
    is_due,
    is_valid,
    make_ca,
    make_certificate,
    read_ca,
)
from deviceplugin.errors import ConfigError, KubeConflictError, KubeNotFoundError, ParseError
from deviceplugin.kube.cluster_client import ClusterClient, Secret

log = structlog.get_logger("vcuda.certificates")
CA_LIFE = dt.timedelta(days=3650)
CA_ENDS_SOON = dt.timedelta(days=365)
CERTIFICATE_LIFE = dt.timedelta(days=90)
CHECK_S = 5.0
"""For so long a replica may serve a certificate that the API server does not trust, after the CA was replaced."""

CHECKS_UNTIL_RESTORED = 60
"""Who replaces the CA deletes the Secret; a replica that wrote it again at once would undo that."""

_LABELS = {"app.kubernetes.io/name": "vcuda-scheduler"}
_KEPT = {"helm.sh/resource-policy": "keep"}
"""Helm had made the Secret that somebody deleted, and would delete the one that takes its place at the next upgrade."""
_RESTORED_IN = f"{CHECKS_UNTIL_RESTORED * CHECK_S / 60:g} minutes"


class Issuer(msgspec.Struct):
    """`check` at intervals. `ready` is set when a certificate of the CA is served.

    `configuration` is the webhook configuration whose caBundle this writes; empty: another tool does, such as Helm.
    """

    client: ClusterClient
    tls: ServerTls
    namespace: str
    secret: str
    configuration: str
    names: tuple[str, ...]
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    ca: KeyPair | None = None
    ready: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _missing: int = 0

    async def check(self) -> None:
        """Raises a VcudaError if Secret or caBundle cannot be used; the certificate is renewed all the same."""
        ca = self.ca
        try:
            ca = self._require_valid(await self._agreed())
            await self._trust(ca)
        except KubeConflictError:
            log.info("ca_written_by_another_replica")
        finally:
            if ca is not None:
                self._serve(ca)

    async def _agreed(self) -> KeyPair:
        try:
            return await self._stored()
        except KubeConflictError:  # another replica was first, and its CA counts
            return await self._stored()

    async def _stored(self) -> KeyPair:
        try:
            secret = await self.client.get_secret(self.namespace, self.secret)
        except KubeNotFoundError:
            return await self._create()
        self._missing = 0
        try:
            return read_ca(secret.data.get("ca.crt", b""), secret.data.get("ca.key", b""))
        except ParseError as error:
            return await self._repair(secret, error.message)

    async def _create(self) -> KeyPair:
        if self.ca is not None:
            self._missing += 1
            if self._missing == 1:
                log.warning(
                    "ca_secret_missing", error=f"Secret {self._where} is gone; it is restored in {_RESTORED_IN}"
                )
            if self._missing < CHECKS_UNTIL_RESTORED:
                return self.ca
        ca = self._kept_or_new()
        await self.client.create_secret(Secret(self.namespace, self.secret, _data(ca), _LABELS, annotations=_KEPT))
        log.info("ca_secret_created", secret=self._where)
        return ca

    async def _repair(self, secret: Secret, problem: str) -> KeyPair:
        """Only what has vcuda's label: keys of somebody else are not overwritten."""
        sentence = f"ca.crt and ca.key of Secret {self._where} cannot be used: {problem}"
        if not _LABELS.items() <= secret.labels.items():
            raise ConfigError(
                f"{sentence}; vcuda has not made it and leaves it as it is: delete it, or give --certificate-secret "
                "another name"
            )
        log.warning("ca_secret_unusable", error=f"{sentence}; it is written again")
        ca = self._kept_or_new()
        await self.client.update_secret(secret, _data(ca))
        return ca

    def _kept_or_new(self) -> KeyPair:
        if self.ca is not None:
            return self.ca
        if not self.configuration:
            self._warn_of_new_ca("run helm upgrade, which writes its ca.crt into the caBundle, and ")
        return make_ca(self.now(), CA_LIFE)

    def _require_valid(self, ca: KeyPair) -> KeyPair:
        """ConfigError where it is not valid by this machine's clock."""
        if not is_valid(ca.certificate, self.now()):
            begin, end = ca.certificate.not_valid_before_utc, ca.certificate.not_valid_after_utc
            raise ConfigError(
                f"the CA of Secret {self._where} is valid from {begin} until {end}, and not now: correct this "
                "machine's clock, or replace the CA (docs/scheduler.md#certificates)"
            )
        return ca

    async def _trust(self, ca: KeyPair) -> None:
        bundles = await self._bundles()
        if all(each == ca.chain for each in bundles):
            return
        await self.client.set_ca_bundle(self.configuration, ca.chain)
        log.info("ca_bundle_written", configuration=self.configuration)
        if any(bundles) and ca != self.ca:
            self._warn_of_new_ca()

    async def _bundles(self) -> tuple[bytes, ...]:
        if not self.configuration:
            return ()
        try:
            return await self.client.get_ca_bundles(self.configuration)
        except KubeNotFoundError:
            return ()  # it may be created later

    def _serve(self, ca: KeyPair) -> None:
        now, end = self.now(), ca.certificate.not_valid_after_utc
        is_current = ca == self.ca and not is_due(self.tls.shown.certificate, now)
        if is_current or not is_valid(ca.certificate, now):
            return
        self.tls.show(make_certificate(self.names, ca, now, CERTIFICATE_LIFE))
        self.ca = ca
        self.ready.set()
        log.info("certificate_served", until=str(self.tls.shown.certificate.not_valid_after_utc))
        if end - now < CA_ENDS_SOON:
            log.warning("ca_ends_soon", error=f"the CA of Secret {self._where} ends at {end}; replace it before")

    def _warn_of_new_ca(self, first: str = "") -> None:
        """The API server trusts the caBundle; kube-scheduler read a file at its start."""
        log.warning(
            "ca_replaced",
            error=f"Secret {self._where} gets a new CA; {first}restart each kube-scheduler that calls the extender "
            "over TLS, because it trusts the old one until then",
            command=f"kubectl -n {self.namespace} rollout restart deployment/vcuda-scheduler",
        )

    @property
    def _where(self) -> str:
        return f"{self.namespace}/{self.secret}"


def _data(ca: KeyPair) -> dict[str, bytes]:
    return {"ca.crt": ca.chain, "ca.key": ca.key}
