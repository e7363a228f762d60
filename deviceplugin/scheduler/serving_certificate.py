"""Where the serving certificate comes from, and whether there is one yet.

In: settings, a client. Out: `Certificates`: the listener's TLS, something to run, what is missing, days left. Until
there is a certificate that clients accept, a temporary one is served, so that probes can ask; the replica is not ready.
"""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator

from deviceplugin.cluster.certificates.files import CertificateFiles, client_ca, server_files
from deviceplugin.cluster.certificates.issued import Rules
from deviceplugin.cluster.certificates.keypair import make_ca, make_certificate
from deviceplugin.cluster.certificates.rotation import Rotation
from deviceplugin.cluster.certificates.tls import ServerTls
from deviceplugin.config.scheduler import CertificateSettings, Election, SchedulerSettings
from deviceplugin.kube.cluster_client import ClusterClient

_TEMPORARY = dt.timedelta(days=1)
_OVERLAP_S = 3600.0
_CHECKS_IN_OVERLAP = 10


class Certificates:
    """`tls.context` is the listener's. ConfigError where files are given that cannot be used."""

    def __init__(self, settings: SchedulerSettings, client: ClusterClient) -> None:
        chosen = settings.certificates
        now = dt.datetime.now(dt.UTC)
        names = names_of(settings)
        self.tls = ServerTls(make_certificate(names, make_ca(now, _TEMPORARY), now, _TEMPORARY))
        self._period = chosen.check_period
        self._any_replica = settings.leader.election is Election.KUBE_SCHEDULER
        self._files: list[CertificateFiles] = []
        self._rotation: Rotation | None = None
        if settings.callers.ca_file is not None:
            self._files.append(client_ca(settings.callers.ca_file, trust=self.tls.trust))
        if chosen.cert_file is not None and chosen.key_file is not None:
            self._files.append(server_files(chosen.cert_file, chosen.key_file, show=self.tls.show))
            self.ready = asyncio.Event()
            self.ready.set()
        else:
            self._rotation = Rotation(
                client,
                namespace=settings.cluster.namespace,
                secret=chosen.secret,
                configuration=settings.webhook.configuration,
                rules=_rules(chosen, names),
                show=self.tls.show,
            )
            self.ready = self._rotation.ready
        for files in self._files:
            files.load()

    async def run(self, leads: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as group:
            for files in self._files:
                group.create_task(files.run(period=self._period))
            if self._rotation is not None:
                # kube-scheduler starts after its extender, so its Lease names no leader yet; any replica may write.
                group.create_task(self._rotation.run(lambda: self._any_replica or leads(), period=self._period))

    def missing(self) -> tuple[str, ...]:
        return () if self.ready.is_set() else ("there is no certificate yet",)

    def expirations(self) -> Iterator[tuple[tuple[str], float]]:
        """Unix time at which each certificate expires, as rows of a metric."""
        yield ("server",), self.tls.shown.certificate.not_valid_after_utc.timestamp()
        if self._rotation is not None and self._rotation.issued is not None:
            yield ("ca",), self._rotation.issued.ca.certificate.not_valid_after_utc.timestamp()


def _rules(chosen: CertificateSettings, names: tuple[str, ...]) -> Rules:
    """Every replica has read the Secret several times before an old CA leaves the caBundle."""
    overlap = max(_OVERLAP_S, _CHECKS_IN_OVERLAP * chosen.check_period)
    return Rules(names, *(dt.timedelta(seconds=each) for each in (chosen.life, chosen.ca_life, overlap)))


def names_of(settings: SchedulerSettings) -> tuple[str, ...]:
    """The names by which clients call the scheduler: the service's, and loopback for kube-scheduler in the same pod."""
    service, namespace = settings.certificates.service, settings.cluster.namespace
    own = (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}", service)
    return tuple(dict.fromkeys((*own, "localhost", "127.0.0.1", "::1", *settings.certificates.names)))
