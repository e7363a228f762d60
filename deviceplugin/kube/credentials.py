"""The address of the API server and the credentials for it, kept up to date.

In: the path of a kubeconfig, or None in a pod. Out: `Access`, an immutable snapshot for `transport`; `ConfigError` in
one sentence. `kubeconfig_process` reads the files in a separate process. A header that expires is read again long
before, in the background. If it expires earlier, the server answers 401 and `renew` reads it again.
"""

import asyncio
import dataclasses
import hashlib
import os
import shutil
import ssl
import tempfile
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog
from msgspec.structs import replace

from deviceplugin.errors import ConfigError, one_line
from deviceplugin.kube.kubeconfig_process import Facts, Part, read_apart, source_of

log = structlog.get_logger("vcuda.kube")
# The shortest projected token is valid for ten minutes and replaced after eight.
_HEADER_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server. `tls` is None for plain HTTP, `authorization` is empty for an anonymous client.

    `authority` (the CA) and `client_certificate` (certificate and key) are files: kubelet accepts the same credentials.
    """

    server: str
    authorization: str = ""
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    authority: Path | None = None
    client_certificate: tuple[Path, Path | None] | None = None


class Credentials:
    """Caches credentials and refreshes them; `read` is `kubeconfig_process.read_apart`, or `read` in tests.

    Blocking work runs in a separate thread: an exec plugin that hangs must not block other threads of the pool.
    """

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[Path | None], Facts] = read_apart,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._read = read
        self._keep = PrivateFiles()
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "credentials")
        self._known: tuple[Facts, Access] | None = None
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
        return self._known[1]

    async def renew(self, refused: Access) -> Access:
        """Reads everything again after the server refused `refused`.

        Once for all callers that were refused together.
        """
        async with self._lock:
            assert self._known is not None
            if self._known[1] is refused:
                await self._load_if_possible(full=True)
            return self._known[1]

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
        facts = self._known[0]
        self._fresh_until = self._clock() + _HEADER_SECONDS if facts.expires else float("inf")
        if facts.is_anonymous and (before is None or not before[0].is_anonymous):
            # The package only logs a failed exec plugin; the 401 that follows would not say why.
            log.warning(
                "credentials_missing", path=str(self._kubeconfig), error="requests are sent as an anonymous client"
            )

    def _load_blocking(self, before: tuple[Facts, Access] | None) -> tuple[Facts, Access]:
        """Blocking. If only the header differs, connections stay open; certificates are opened again after a 401."""
        facts = self._read(self._kubeconfig)
        if before is not None and replace(before[0], authorization=facts.authorization) == facts:
            is_same = before[0] == facts
            return before if is_same else (facts, dataclasses.replace(before[1], authorization=facts.authorization))
        return facts, access_of(facts, self._keep, where=source_of(self._kubeconfig))


class PrivateFiles:
    """Certificates and keys of a kubeconfig as files for OpenSSL; deleted with this object or at exit."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    def path(self, part: Part) -> Path:
        if part.path:
            return Path(part.path)
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="vcuda-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        path = self._directory / hashlib.sha256(part.data).hexdigest()
        if not path.exists():
            fresh = path.with_suffix(".new")
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(part.data)
            fresh.replace(path)
        return path


def access_of(facts: Facts, keep: PrivateFiles, *, where: str) -> Access:
    """Blocking; raises ConfigError if a certificate cannot be used."""
    try:
        authority = keep.path(facts.authority) if facts.authority else None
        pair = (
            (keep.path(facts.certificate), keep.path(facts.key) if facts.key else None) if facts.certificate else None
        )
        return Access(
            server=facts.server,
            authorization=facts.authorization,
            tls=_tls(facts, authority, pair) if facts.server.startswith("https://") else None,
            tls_server_name=facts.tls_server_name,
            proxy=facts.proxy,
            authority=authority,
            client_certificate=pair,
        )
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the certificates of {where} cannot be used: {one_line(str(error))}") from None


def _tls(facts: Facts, authority: Path | None, pair: tuple[Path, Path | None] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority)
    # Python 3.13 requires extensions that the CAs of many clusters do not write.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if pair is not None:
        context.load_cert_chain(*pair)
    if not facts.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
