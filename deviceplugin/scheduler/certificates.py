"""Which of the two ways of getting certificates is taken, and how far it has come.

In: settings, a client, the listener's TLS. Out: `Certificates`: something to run, what is missing, days left. Until
there is a real certificate a throw-away one is shown, so that probes can ask; nobody trusts it, and we are not ready.
"""

import asyncio
import datetime as dt
from collections.abc import Callable

from deviceplugin.cluster.certificates.files import CertificateFiles, client_authority, server_files
from deviceplugin.cluster.certificates.keeper import Keeper
from deviceplugin.cluster.certificates.keyring import Rules
from deviceplugin.cluster.certificates.making import make_authority, make_certificate
from deviceplugin.cluster.certificates.tls import ServerTls
from deviceplugin.config.scheduler import Election, SchedulerSettings
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.scheduler.stores import ClusterSecret, ClusterTrust

_THROW_AWAY = dt.timedelta(days=1)


class Certificates:
    """`tls.context` is the listener's."""

    def __init__(self, settings: SchedulerSettings, client: ClusterClient) -> None:
        chosen = settings.certificates
        now = dt.datetime.now(dt.UTC)
        names = names_of(settings)
        first = make_certificate(names, make_authority(now, _THROW_AWAY), now, _THROW_AWAY)
        self.tls = ServerTls(first)
        self._callers: CertificateFiles | None = None
        if settings.callers.ca_file is not None:
            self._callers = client_authority(settings.callers.ca_file, trust=self.tls.trust)
            self._callers.look()
        self._period = chosen.check_period
        self._any_replica = settings.leader.election is Election.KUBE_SCHEDULER
        self.ready = asyncio.Event()
        self._files: CertificateFiles | None = None
        self._keeper: Keeper | None = None
        if chosen.cert_file is not None and chosen.key_file is not None:
            self._files = server_files(chosen.cert_file, chosen.key_file, show=self.tls.show)
            return
        configuration = settings.webhook.configuration
        self._keeper = Keeper(
            ClusterSecret(client, settings.cluster.namespace, chosen.secret),
            ClusterTrust(client, configuration) if configuration else None,
            rules=Rules(names, dt.timedelta(seconds=chosen.life), dt.timedelta(seconds=chosen.ca_life)),
            settle=60.0,
            show=self.tls.show,
            ready=self.ready,
        )

    async def run(self, leads: Callable[[], bool]) -> None:
        """ConfigError where files are given that cannot be used at the start."""
        if self._files is not None:
            self._files.look()
            self.ready.set()
        async with asyncio.TaskGroup() as group:
            for files in (self._files, self._callers):
                if files is not None:
                    group.create_task(files.run(period=self._period))
            if self._keeper is not None:
                # kube-scheduler starts after us, so with its Lease none leads yet; the Secret's version decides.
                group.create_task(self._keeper.run(lambda: self._any_replica or leads(), period=self._period))

    def missing(self) -> tuple[str, ...]:
        return () if self.ready.is_set() else ("there is no certificate yet",)

    def days_left(self) -> dict[str, float]:
        now = dt.datetime.now(dt.UTC)
        ends = {"server": self.tls.shown.certificate.not_valid_after_utc}
        if self._keeper is not None and self._keeper.keyring is not None:
            ends["authority"] = self._keeper.keyring.authority.certificate.not_valid_after_utc
        return {name: (end - now) / dt.timedelta(days=1) for name, end in ends.items()}


def names_of(settings: SchedulerSettings) -> tuple[str, ...]:
    """Under which clients may know us: the service from near and far, and loopback for kube-scheduler in our pod."""
    service, namespace = settings.certificates.service, settings.cluster.namespace
    near = (
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
        f"{service}.{namespace}",
        service,
    )
    return tuple(dict.fromkeys((*near, "localhost", "127.0.0.1", "::1", *settings.certificates.names)))
