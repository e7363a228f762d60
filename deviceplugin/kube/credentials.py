"""Where the API server is and how to prove who we are: kubeconfig or the pod's service account.

In: the path of a kubeconfig, or none. Out: `Access`, one immutable snapshot for `transport`; `ConfigError` in one
sentence. The `kubernetes` package reads all of it (exec plugins, OIDC, token files, certificates); it is imported on
first use and in a thread, because that takes half a second and registration with kubelet must not wait for it.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from deviceplugin.errors import ConfigError
from deviceplugin.kube.words import one_line

log = structlog.get_logger("vcuda.kube")
Given = TypeVar("Given")
Result = TypeVar("Result")
_HEADER = "BearerToken"  # under this key the package keeps the whole Authorization header, Basic too
_HEADER_SECONDS = 30.0  # projected tokens rotate at 80 % of their life, so half a minute late is early


@dataclass(frozen=True, slots=True)
class Access:
    """One way to the API server. `tls` is None for plain HTTP, `authorization` empty for an anonymous client.

    `authority` and `client_certificate` (certificate and key) are files: kubelet is asked with the same credentials.
    """

    server: str
    authorization: str = ""
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    authority: Path | None = None
    client_certificate: tuple[str, str | None] | None = None


class Credentials:
    """Holds the loaded configuration and refreshes what expires.

    Blocking work has a thread of its own: an exec plugin that hangs must not use up the threads of the others.
    """

    def __init__(self, kubeconfig: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "credentials")
        self._configuration: Any = None
        self._access: Access | None = None
        self._fresh_until = 0.0

    async def access(self) -> Access:
        """The present way in, with a header that has not expired."""
        if self._access is None or self._clock() >= self._fresh_until:
            async with self._lock:
                if self._access is None:
                    await self._load()
                elif self._clock() >= self._fresh_until:
                    await self._refresh_header(self._access)
        assert self._access is not None
        return self._access

    async def renew(self, refused: Access) -> Access:
        """Reads everything again after the server refused `refused`; once for all who were refused together."""
        async with self._lock:
            if self._access is refused:
                try:
                    await self._load()
                except ConfigError as error:  # half-written, perhaps: what was refused now may be accepted later
                    log.warning("credentials could not be read again", cause=error.message)
        assert self._access is not None
        return self._access

    async def _in_thread(self, work: Callable[[Given], Result], given: Given) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, given)

    async def _load(self) -> None:
        self._configuration, self._access = await self._in_thread(load, self._kubeconfig)
        self._fresh_until = self._clock() + _HEADER_SECONDS

    async def _refresh_header(self, access: Access) -> None:
        self._fresh_until = self._clock() + _HEADER_SECONDS
        try:
            header = await self._in_thread(_authorization, self._configuration)
        except Exception as error:  # the package's hook reads files and runs plugins; the old header may still do
            log.warning("credentials could not be refreshed", cause=one_line(str(error)))
            return
        if header != access.authorization:
            self._access = replace(access, authorization=header)


def load(kubeconfig: Path | None) -> tuple[Any, Access]:
    """Blocking. The package's configuration and our view of it; ConfigError says what to do."""
    configuration = _from_file(kubeconfig) if kubeconfig else _from_cluster()
    try:
        return configuration, _access(configuration)
    except (OSError, ssl.SSLError, ValueError) as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account"
        raise ConfigError(f"the certificates of {where} cannot be used: {one_line(str(error))}") from None


def _from_file(kubeconfig: Path) -> Any:  # noqa: ANN401 - the package's generated Configuration
    try:
        kubeconfig.read_bytes()
    except OSError as error:
        raise ConfigError(f"kubeconfig {kubeconfig} cannot be read: {error.strerror}; check --kubeconfig") from None
    from kubernetes import client, config

    configuration = client.Configuration()
    configuration.host = ""
    try:
        config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration, persist_config=False)
    except Exception as error:  # its reader lets TypeError, AttributeError and yaml's errors through
        raise ConfigError(
            f"kubeconfig {kubeconfig} cannot be used: {one_line(str(error)) or type(error).__name__}; "
            "check it with kubectl --kubeconfig"
        ) from None
    if not str(configuration.host).startswith(("http://", "https://")):
        raise ConfigError(f"kubeconfig {kubeconfig} names no server of the form https://HOST:PORT")
    if not configuration.api_key and not configuration.cert_file:
        # An exec plugin that failed is only logged by the package; the 401 that follows would not say why.
        log.warning("no usable credentials in kubeconfig, asking as an anonymous client", kubeconfig=str(kubeconfig))
    return configuration


def _from_cluster() -> Any:  # noqa: ANN401
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise ConfigError(
            "no kubeconfig was given and this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set); "
            "pass --kubeconfig FILE"
        )
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError(
            f"the pod's service account cannot be used: {one_line(str(error))}; "
            "set automountServiceAccountToken or pass --kubeconfig FILE"
        ) from None
    return configuration


def _access(configuration: Any) -> Access:  # noqa: ANN401
    server = str(configuration.host).rstrip("/")
    return Access(
        server=server,
        authorization=_authorization(configuration),
        tls=_tls(configuration) if server.startswith("https://") else None,
        tls_server_name=configuration.tls_server_name or None,
        proxy=_proxy(configuration),
        authority=Path(configuration.ssl_ca_cert) if configuration.ssl_ca_cert else None,
        client_certificate=(configuration.cert_file, configuration.key_file) if configuration.cert_file else None,
    )


def _authorization(configuration: Any) -> str:  # noqa: ANN401
    """The header; the package's hook runs inside, which may read a file or run an exec plugin."""
    header = str(configuration.get_api_key_with_prefix(_HEADER) or "").strip()
    if not (header.isascii() and header.isprintable()):
        raise ConfigError("the token for the API server holds characters that no HTTP header may hold; check its file")
    return header


def _tls(configuration: Any) -> ssl.SSLContext:  # noqa: ANN401
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    # Python 3.13 demands extensions that the private authorities of many clusters do not write.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy(configuration: Any) -> str | None:  # noqa: ANN401
    from kubernetes.client.rest import is_socks_proxy_url, should_bypass_proxies

    proxy = configuration.proxy
    if not proxy or should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return None
    if is_socks_proxy_url(proxy):
        raise ConfigError(f"the proxy {one_line(proxy)} to the API server is a SOCKS proxy; use an HTTP proxy")
    return str(proxy)
