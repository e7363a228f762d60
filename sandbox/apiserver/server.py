"""The stand-in API server: a loopback listener over the store.

In: nothing or a port, a token, certificates. Out: a URL, a kubeconfig, the store for direct access, faults on demand.
Invariant: when `stop` has returned, no task, socket or watcher of the server is left.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from sandbox.apiserver.faults import Faults
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.apiserver.routes import Api
from sandbox.apiserver.store import Store

_LAST = 10  # pods and events


class ApiServer:
    """`async with ApiServer() as server`, or `start` and `stop`.

    `store` creates, binds, patches and deletes directly; `faults` scripts what goes wrong; `requests` is every
    request so far as (method, path with query).
    """

    def __init__(
        self,
        *,
        port: int = 0,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        bookmark_seconds: float = 60.0,
    ) -> None:
        self.store = Store()
        self._api = Api(self.store, token=token, bookmark_seconds=bookmark_seconds)
        self._port = port
        self.tls = tls
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def faults(self) -> Faults:
        return self._api.faults

    @property
    def requests(self) -> list[tuple[str, str]]:
        return self._api.requests

    @property
    def open_watches(self) -> int:
        return self._api.open_watches

    @property
    def token(self) -> str:
        return self._api.token

    @token.setter
    def token(self, token: str) -> None:
        self._api.token = token

    async def start(self) -> None:
        """Listens; a port of 0 is chosen now and kept over `stop` and `start`."""
        runner = web.AppRunner(
            self._api.application(), handler_cancellation=True, shutdown_timeout=0.05, access_log=None
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self.tls, reuse_address=True)
        await site.start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Closes the listener and every connection; the store stays for the next `start`."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @asynccontextmanager
    async def refuse(self) -> AsyncIterator[None]:
        """Connections are refused inside this context."""
        await self.stop()
        try:
            yield
        finally:
            await self.start()

    def compact(self) -> None:
        """Forgets history: open page tokens and watches from old versions get 410."""
        self.store.compact()
        self._api.pages.forget()

    async def drop_watches(self) -> None:
        """Breaks every open connection, as a restarted load balancer does."""
        await self.stop()
        await self.start()

    def kubeconfig(self, path: Path, *, ca: bytes = b"") -> Path:
        """Writes a kubeconfig for this server (and its token, where one is set)."""
        return write_kubeconfig(path, self.url, token=self.token, ca=ca)

    async def until(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Waits until the condition holds, looking again at each change of the store; else says what is there."""
        changed = asyncio.Event()
        stop = self.store.on_change(changed.set)
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise TimeoutError(f"after {seconds:g} s; {self._there()}") from None
        finally:
            stop()

    def _there(self) -> str:
        """The pods with their states, and the last events."""
        pods = [
            f"{each['metadata'].get('namespace')}/{each['metadata']['name']}: "
            + " ".join(str(each.get("status", {}).get(key, "")) for key in ("phase", "reason", "message")).strip()
            for each in self.store.objects("pods")
        ]
        said = [f"{each.get('reason')}: {each.get('message')}" for each in self.store.objects("events")[-_LAST:]]
        return f"pods: {'; '.join(pods[:_LAST]) or 'none'}; events: {'; '.join(said) or 'none'}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
