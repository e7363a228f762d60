"""Where the serving certificate comes from, and whether there is one yet.

In: settings, a client. Out: `Certificates`: the listener's TLS, something to run, what is missing, when they expire.
Until there is a certificate that clients accept, a temporary one is served, so that probes can ask; the replica is not
ready. What a check cannot do is logged once, and the next check tries it again.

Certificates in files that another tool renews, such as cert-manager in a mounted Secret: used when they change.

In: paths. Out: calls of `show` or `trust`. The files are compared by content, because a mounted Secret changes by a
link two directories up. If content cannot be used, the content before stays in use.
"""

import asyncio
import datetime as dt
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from deviceplugin.cluster.certificates.issuer import CHECK_S, Issuer
from deviceplugin.cluster.certificates.keypair import KeyPair, ServerTls, make_ca, make_certificate, read_pair
from deviceplugin.config.scheduler import SchedulerSettings
from deviceplugin.errors import ConfigError, VcudaError
from deviceplugin.kube.cluster_client import ClusterClient

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
        self._peers: tuple[bytes, ssl.SSLContext] | None = None
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

    def peers(self) -> ssl.SSLContext:
        """For a client of another replica: its certificate is of the same CA, or the same where files are given."""
        ca = None if self._issuer is None else self._issuer.ca
        chain = (self.tls.shown if ca is None else ca).chain
        if self._peers is None or self._peers[0] != chain:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=chain.decode())
            self._peers = chain, context
        return self._peers[1]

    def missing(self) -> tuple[str, ...]:
        return () if self.ready.is_set() else ("it has no certificate",)

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
