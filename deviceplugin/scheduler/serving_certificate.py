"""Where the serving certificate comes from, and whether there is one yet.

In: settings, a client. Out: `Certificates`: the listener's TLS, something to run, what is missing, when they expire.
Until there is a certificate that clients accept, a temporary one is served, so that probes can ask; the replica is not
ready. What a check cannot do is logged once, and the next check tries it again.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Iterator

import structlog

from deviceplugin.cluster.certificates.files import CertificateFiles, client_ca, server_files
from deviceplugin.cluster.certificates.issuer import CHECK_S, Issuer
from deviceplugin.cluster.certificates.keypair import make_ca, make_certificate
from deviceplugin.cluster.certificates.tls import ServerTls
from deviceplugin.config.scheduler import SchedulerSettings
from deviceplugin.errors import VcudaError
from deviceplugin.kube.cluster_client import ClusterClient

log = structlog.get_logger("vcuda.certificates")
_TEMPORARY = dt.timedelta(days=1)


class Certificates:
    """`tls.context` is the listener's. ConfigError if files are given that cannot be used."""

    def __init__(self, settings: SchedulerSettings, client: ClusterClient) -> None:
        chosen = settings.certificates
        now = dt.datetime.now(dt.UTC)
        names = names_of(settings)
        self.tls = ServerTls(make_certificate(names, make_ca(now, _TEMPORARY), now, _TEMPORARY))
        self._files: list[CertificateFiles] = []
        self._issuer: Issuer | None = None
        if settings.callers.ca_file is not None:
            self._files.append(client_ca(settings.callers.ca_file, trust=self.tls.trust))
        if chosen.cert_file is not None and chosen.key_file is not None:
            self._files.append(server_files(chosen.cert_file, chosen.key_file, show=self.tls.show))
            self.ready = asyncio.Event()
            self.ready.set()
        else:
            namespace, configuration = settings.cluster.namespace, settings.webhook.configuration
            self._issuer = Issuer(client, self.tls, namespace, chosen.secret, configuration, names)
            self.ready = self._issuer.ready
        for files in self._files:
            files.load()

    async def run(self) -> None:
        checks = [*self._files, *(() if self._issuer is None else (self._issuer,))]
        async with asyncio.TaskGroup() as group:
            for each in checks:
                group.create_task(repeat(each.check, CHECK_S))

    def missing(self) -> tuple[str, ...]:
        return () if self.ready.is_set() else ("there is no certificate yet",)

    def expirations(self) -> Iterator[tuple[tuple[str], float]]:
        """Unix time at which each certificate expires, as rows of a metric."""
        yield ("server",), self.tls.shown.certificate.not_valid_after_utc.timestamp()
        if self._issuer is not None and self._issuer.ca is not None:
            yield ("ca",), self._issuer.ca.certificate.not_valid_after_utc.timestamp()


async def repeat(check: Callable[[], Awaitable[None]], period: float) -> None:
    """Until it is cancelled."""
    logged = ""
    while True:
        try:
            await check()
            logged = ""
        except VcudaError as error:
            if error.message != logged:
                log.warning("certificate_check_failed", error=error.message)
            logged = error.message
        await asyncio.sleep(period)


def names_of(settings: SchedulerSettings) -> tuple[str, ...]:
    """The names by which clients call the scheduler: the service's, and loopback for kube-scheduler in the same pod."""
    service, namespace = settings.certificates.service, settings.cluster.namespace
    own = (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}", service)
    return (*own, "localhost", "127.0.0.1", "::1")
