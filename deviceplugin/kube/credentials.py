"""The address of the API server and the credentials for it, kept up to date.

In: the path of a kubeconfig, several that are merged, or None in a pod. Out: `Access`, an immutable snapshot for
`transport`; `ConfigError` in one sentence. `kubeconfig_process` reads the files in a separate process. A header that
expires is read again long before, in the background. If it expires earlier, the server answers 401 and `renew` reads
it again.
"""

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from msgspec.structs import replace

from deviceplugin.errors import ConfigError, one_line
from deviceplugin.kube.kubeconfig_process import Facts, Source, read_apart, source_of

log = structlog.get_logger("vcuda.kube")
# The shortest projected token is valid for ten minutes and replaced after eight.
_HEADER_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server; `tls` is aiohttp's `ssl`. Kubelet accepts the same credentials."""

    facts: Facts
    tls: ssl.SSLContext | bool = True

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Several may have one name: the groups that are impersonated."""
        authorization = [("Authorization", self.facts.authorization)] if self.facts.authorization else []
        return [*authorization, *self.facts.headers]


class Credentials:
    """Caches credentials and refreshes them; `read` is `kubeconfig_process.read_apart`, or `read` in tests.

    Blocking work runs in a separate thread: an exec plugin that hangs must not block other threads of the pool.
    """

    def __init__(
        self,
        kubeconfig: Source,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[Source], Facts] = read_apart,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._read = read
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
        facts = self._read(self._kubeconfig)
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
