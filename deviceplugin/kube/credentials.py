"""The address of the API server and the credentials for it, kept up to date.

In: the path of a kubeconfig, several that are merged, or None in a pod. Out: `Access`, an immutable snapshot for
`transport`; `ConfigError` in one sentence. A header that expires is read again long before, in the background. If it
expires earlier, the server answers 401 and `renew` reads it again.

A service account is two variables and three files that kubelet writes (k8s.io/client-go/rest, InClusterConfig). Of a
kubeconfig all is read here but what a program or an issuer gives (`login`): a pod starts no process and imports no
client package.
"""

import asyncio
import base64
import ipaddress
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec

from deviceplugin.errors import ConfigError, one_line
from deviceplugin.kube.kubeconfig import ChosenContext, Json, Kubeconfigs, Source, choose, source_of, unusable
from deviceplugin.kube.login import LONGEST_S, Login, login
from deviceplugin.log import LazyLogger
from deviceplugin.structs import replace

log = LazyLogger("vcuda.kube")
# The shortest projected token is valid for ten minutes and replaced after eight.
_HEADER_SECONDS = 240.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Headers = tuple[tuple[str, str], ...]


class Facts(msgspec.Struct, frozen=True):
    """How to reach the API server; certificates and keys are PEM. `expires`: the header must be read again in time.

    `namespace`: the one of the context, or of the pod; empty if neither names one. `headers`: what each request has
    beside its authorization, such as whom it impersonates.
    """

    server: str
    authorization: str = ""
    expires: bool = False
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    namespace: str = ""
    headers: Headers = ()

    @property
    def is_anonymous(self) -> bool:
        return not self.authorization and not self.certificate


class Access(msgspec.Struct, frozen=True):
    """How to reach the API server; `tls` is aiohttp's `ssl`. Kubelet accepts the same credentials."""

    facts: Facts
    tls: ssl.SSLContext | bool = True

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Several may have one name: the groups that are impersonated."""
        authorization = [("Authorization", self.facts.authorization)] if self.facts.authorization else []
        return [*authorization, *self.facts.headers]


class GivenAccess:
    """Credentials that are what they are: nothing is read again."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def access(self) -> Access:
        return self._access

    async def renew(self, refused: Access) -> Access:
        return refused


class Credentials:
    """Caches credentials and refreshes them; `login_s` is how long an exec plugin may take, in seconds.

    Blocking work runs in a separate thread: an exec plugin that hangs must not block other threads of the pool.
    """

    def __init__(
        self,
        kubeconfig: Source,
        *,
        clock: Callable[[], float] = time.monotonic,
        login_s: float = LONGEST_S,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._login_s = login_s
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "credentials")
        self._known: Access | None = None
        self._fresh_until = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    async def access(self) -> Access:
        """The current access; only the first call waits."""
        if self._known is None:
            async with self._lock:
                if self._known is None:
                    await self._load(full=True)
        elif self._clock() >= self._fresh_until and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh(), name="credentials")
        assert self._known is not None
        return self._known

    async def renew(self, refused: Access) -> Access:
        """Reads everything again after the server refused `refused`.

        Once for all callers that were refused together.
        """
        async with self._lock:
            assert self._known is not None
            if self._known is refused:
                await self._load_if_possible(full=True)
            return self._known

    async def _refresh(self) -> None:
        async with self._lock:
            await self._load_if_possible(full=False)

    async def _load_if_possible(self, *, full: bool) -> None:
        try:
            await self._load(full=full)
        except ConfigError as error:  # the file may be half written: try again later
            self._fresh_until = self._clock() + _HEADER_SECONDS
            log.warning("credentials_reload_failed", error=error.message)

    async def _load(self, *, full: bool) -> None:
        before = self._known
        base = None if full else before
        self._known = await asyncio.get_running_loop().run_in_executor(self._thread, self._load_blocking, base)
        facts = self._known.facts
        self._fresh_until = self._clock() + _HEADER_SECONDS if facts.expires else float("inf")
        if facts.is_anonymous and (before is None or not before.facts.is_anonymous):
            # The package only logs a failed exec plugin; the 401 that follows would not say why.
            log.warning(
                "credentials_missing", path=str(self._kubeconfig), error="requests are sent as an anonymous client"
            )

    def _load_blocking(self, before: Access | None) -> Access:
        """Blocking. If only the header differs, connections stay open."""
        facts = read(self._kubeconfig, login_s=self._login_s)
        if before is None or replace(before.facts, authorization=facts.authorization) != facts:
            return access_of(facts, where=source_of(self._kubeconfig))
        return before if before.facts == facts else Access(facts, before.tls)


def access_of(facts: Facts, *, where: str) -> Access:
    """Blocking; raises ConfigError if a certificate cannot be used."""
    try:
        return Access(facts, _tls(facts) if facts.server.startswith("https://") else True)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the certificates of {where} cannot be used: {one_line(str(error))}") from None


def trusted(ca: bytes) -> str | None:
    """A CA bundle for `ssl`, which takes PEM without comments in other letters; None for the system's CAs."""
    return ca.decode("ascii", errors="ignore") or None


def show_certificate(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Lets the context show a certificate, if there is one. OpenSSL reads a private key from a file only."""
    if chain:
        with file_of(chain + b"\n" + key) as path:
            context.load_cert_chain(path)


@contextmanager
def file_of(content: bytes) -> Iterator[Path]:
    """In memory, because a key must not be on disk.

    Where the system has no such files (macOS), one in a folder of its own that only this user can read, until it was
    loaded.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:
            file.write(content)
            file.flush()
            yield Path(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.TemporaryDirectory(prefix="vcuda-") as folder:  # with mode 0700
        path = Path(folder) / "certificate.pem"
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield path


def client_tls(*, ca_file: str | None = None, ca: str | None = None) -> ssl.SSLContext:
    """Trusts that CA, or those of the system; raises OSError and SSLError."""
    context = ssl.create_default_context(cafile=ca_file, cadata=ca)
    # Python 3.13 requires extensions that the CAs of many clusters do not write.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _tls(facts: Facts) -> ssl.SSLContext:
    context = client_tls(ca=trusted(facts.ca))
    show_certificate(context, facts.certificate, facts.key)
    if not facts.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def read(kubeconfig: Source, *, login_s: float = LONGEST_S) -> Facts:
    """`login_s`: how long an exec plugin may take, in seconds."""
    asked = Kubeconfigs((kubeconfig,)) if isinstance(kubeconfig, Path) else kubeconfig
    try:
        return _of_context(choose(asked), source_of(asked), login_s) if asked else _of_service_account()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source_of(kubeconfig)} cannot be used: {one_line(str(error))}") from None


def _of_service_account(folder: Path | None = None) -> Facts:
    folder = folder or SERVICE_ACCOUNT
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    if not host:
        raise ConfigError(
            "no kubeconfig was given and this process is not in a pod (KUBERNETES_SERVICE_HOST is not set)",
            advice="pass --kubeconfig FILE",
        )
    try:
        token, ca = (_full(folder / each) for each in ("token", "ca.crt"))
    except OSError as error:
        why = f"{error.filename} cannot be read: {error.strerror}"
        raise ConfigError(
            f"the pod's service account cannot be used: {why}",
            advice="set automountServiceAccountToken or pass --kubeconfig FILE",
        ) from None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    header = _header(f"Bearer {token.decode(errors='replace').strip()}")
    proxy = _proxy({}, server)
    return Facts(server, header, expires=True, ca=ca, namespace=_pods_namespace(folder), proxy=proxy)


def _full(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.strip():
        raise OSError(0, "it is empty", str(path))
    return content


def _pods_namespace(folder: Path) -> str:
    try:
        return (folder / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _of_context(chosen: ChosenContext, source: str, login_s: float) -> Facts:
    cluster, user = chosen.cluster, chosen.user
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("http://", "https://")):
        finding = f"{source} names no server of the form https://HOST:PORT"
        raise ConfigError(finding, advice="set `server` of its cluster")
    given = login(chosen, source=source, longest_s=login_s) if chosen.is_login else _given(chosen, source)
    tls = server.startswith("https://")
    return Facts(
        server,
        _header(given.authorization),
        expires=bool(given.authorization),
        verify=not cluster.get("insecure-skip-tls-verify"),
        tls_server_name=str(cluster["tls-server-name"]) if "tls-server-name" in cluster else None,
        proxy=_proxy(cluster, server),
        ca=_pem(cluster, "certificate-authority", source) if tls else b"",
        certificate=given.certificate or (_pem(user, "client-certificate", source) if tls else b""),
        key=given.key or (_pem(user, "client-key", source) if tls else b""),
        namespace=chosen.namespace,
        headers=chosen.headers,
    )


def _given(chosen: ChosenContext, source: str) -> Login:
    """A token counts before a password."""
    user = chosen.user
    token = _token(user)
    if token:
        return Login(f"Bearer {token}")
    if "username" in user and "password" in user:
        pair = f"{user['username']}:{user['password']}".encode()
        return Login(f"Basic {base64.b64encode(pair).decode()}")
    if chosen.credentials:
        finding = f"{chosen.credentials} of {source} give no credentials"
        raise ConfigError(finding, advice="log in again, or correct them")
    return Login()


def _token(user: Json) -> str:
    if "tokenFile" in user:
        return Path(user["tokenFile"]).read_text(encoding="utf-8").strip()
    return str(user.get("token", ""))


def _header(text: str) -> str:
    header = text.strip()
    if not (header.isascii() and header.isprintable()):
        finding = "the token for the API server contains characters that are not allowed in an HTTP header"
        raise ConfigError(finding, advice="check its file")
    return header


def _pem(entry: Json, key: str, source: str) -> bytes:
    """Of the data, or of the file: only one of them is there."""
    data, path = entry.get(f"{key}-data"), entry.get(key)
    if data is None and path is None:
        return b""
    if not isinstance(data, str | bytes | None):
        raise unusable(source, f"`{key}-data` is no text")
    content = base64.b64decode(data) if data is not None else Path(str(path)).read_bytes()
    if not content:
        raise ValueError("a certificate or a key is empty")
    return content


def _proxy(cluster: Json, server: str) -> str | None:
    """The cluster's, which counts for every server, or that of the environment."""
    proxy = cluster.get("proxy-url") or _environments_proxy(getproxies(), server)
    if not proxy:
        return None
    text = one_line(str(proxy))
    if text.startswith("socks"):
        raise ConfigError(f"the proxy {text} to the API server is a SOCKS proxy", advice="use an HTTP proxy")
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"the proxy {text} to the API server is no http://HOST:PORT", advice="use an HTTP proxy")
    return text


def _environments_proxy(proxies: Mapping[str, str], server: str) -> str | None:
    """By the rules of Go's golang.org/x/net/http/httpproxy, which kubectl follows."""
    url = urlsplit(server)
    host, address = url.hostname or "", url.netloc.lower()
    if any(_matches(each.strip().lower(), host, address) for each in proxies.get("no", "").split(",")):
        return None
    return proxies.get(url.scheme) or proxies.get("all")


def _matches(entry: str, host: str, address: str) -> bool:
    """`entry`: a name with or without a leading dot, an address, a network, each with a port or without."""
    try:
        if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
            return True
    except ValueError:
        pass  # one of them is a name
    name = entry.lstrip(".")
    return entry == "*" or (name != "" and any(f".{each}".endswith(f".{name}") for each in (host, address)))
