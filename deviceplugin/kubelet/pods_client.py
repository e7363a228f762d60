"""Fetches kubelet's own list of pods over HTTPS: `GET https://<node>:10250/pods`.

In: the endpoint and credentials (those of the API server are valid here too). Out: pods, or a KubeletError in one
sentence. Kubelet asks the API server whether the agent may (`nodes/pods`, before 1.33 `nodes/proxy`) and keeps the
answer, so a call takes about 3 ms. Kubelet's certificate is checked, for the node's name, against `--kubelet-ca-file`,
its own self-signed certificate in `<root>/pki/kubelet.crt`, or the cluster's CA: another server on that port would get
the agent's token. The connection is kept open; a kubelet that restarted costs one more try.

Everybody who may create pods on the node writes into this list, with or without a GPU. So it is read within a bound,
by one request at a time for all who wait, and a large one is parsed in a thread. Beyond the bound it counts as no
answer, and for some seconds kubelet is not asked again: each source of identity behind this one is cheaper then.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from deviceplugin.errors import ConfigError, KubeletError, ParseError
from deviceplugin.kube.credentials import Access, show_certificate, trusted
from deviceplugin.kube.pods import PodListReader
from deviceplugin.kube.transport import read_within
from deviceplugin.latest import InTurn
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

MOST_BODY = 8 << 20
"""32 KiB for each of 250 pods, the most that GKE and OpenShift put on a node. An ordinary pod has about 10 KiB."""

_AGAIN_S = 10.0  # after a list beyond the bound
_SILENT_S = 30.0  # a request for which somebody waits longer than all limits of those who ask
_AT_ONCE = 128 << 10  # parsed on the loop


class KubeletPods:
    """One kept connection; `fetch` may be called at any time, also in parallel. `observe` gets each list.

    `on_too_large` is called for each list beyond the bound.
    """

    def __init__(
        self,
        url: str,
        *,
        access: Callable[[], Awaitable[Access]],
        node: str,
        names: ResourceNames,
        own_ca_files: tuple[Path, ...] = (),
        insecure: bool = False,
        observe: Callable[[Sequence[Pod]], None] = lambda _: None,
        on_too_large: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._access = access
        self._node = node
        self._reader = PodListReader(names)
        self._own_ca_files = own_ca_files
        self._insecure = insecure
        self._observe = observe
        self._on_too_large = on_too_large
        self._lists = InTurn(self._fetch)
        self._parsing: asyncio.Future[tuple[Pod, ...]] | None = None
        self._asks_again_at = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._context: tuple[Access, ssl.SSLContext] | None = None

    async def fetch(self) -> tuple[Pod, ...]:
        """All pods that kubelet knows, static ones included, of a list that was asked for after this call."""
        return await self._lists.get()

    async def _fetch(self) -> tuple[Pod, ...]:
        if time.monotonic() < self._asks_again_at:
            raise _too_large()
        try:
            access = await self._access()
        except ConfigError as error:
            raise KubeletError(f"kubelet cannot be asked for its pods: {error.message}") from None
        body = await self._get(access)
        try:
            pods = await self._parse(body)
        except ParseError as error:
            raise KubeletError(f"kubelet's list of pods cannot be read: {error.message}") from None
        self._observe(pods)
        return pods

    async def _parse(self, body: bytes) -> tuple[Pod, ...]:
        """A thread that has begun goes on though nobody waits any more, and then it is waited for."""
        if len(body) <= _AT_ONCE:
            return self._reader.read(body)
        if self._parsing is not None:
            await asyncio.wait([self._parsing])
        self._parsing = asyncio.get_running_loop().run_in_executor(None, self._reader.read, body)
        return await asyncio.shield(self._parsing)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _get(self, access: Access) -> bytes:
        try:
            with contextlib.suppress(aiohttp.ServerDisconnectedError):  # kubelet restarted: one more try
                return await self._request(access)
            return await self._request(access)
        except (aiohttp.ClientError, OSError) as error:
            text = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise KubeletError(f"kubelet at {self._url} cannot be asked: {text}") from None

    async def _request(self, access: Access) -> bytes:
        if self._session is None:
            limits = aiohttp.ClientTimeout(total=_SILENT_S)
            connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, timeout=limits)
        context = await self._tls(access) if self._url.startswith("https:") else True
        async with self._session.get(
            self._url, headers=access.headers, ssl=context, server_hostname=None if context is True else self._node
        ) as response:
            if response.status != 200:
                raise KubeletError(_refusal(self._url, response.status))
            body = await read_within(response, MOST_BODY)
            if body is None:
                response.close()  # what is left of it is not read
                raise self._give_up()
            return body

    def _give_up(self) -> KubeletError:
        self._asks_again_at = time.monotonic() + _AGAIN_S
        self._on_too_large()
        return _too_large()

    async def _tls(self, access: Access) -> ssl.SSLContext:
        if self._context is None or self._context[0] is not access:
            context = await asyncio.to_thread(self._make_context, access)
            self._context = (access, context)
        return self._context[1]

    def _make_context(self, access: Access) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        for ca_file in self._own_ca_files:
            if ca_file.is_file():
                context.load_verify_locations(ca_file)
        if access.facts.ca:
            context.load_verify_locations(cadata=trusted(access.facts.ca))
        show_certificate(context, access.facts.certificate, access.facts.key)
        return context


def _too_large() -> KubeletError:
    return KubeletError(
        f"kubelet's list of pods is larger than {MOST_BODY >> 20} MiB, so another source says which container asks; "
        "look for pods of this node that have very much text, such as environment values"
    )


def _refusal(url: str, status: int) -> str:
    if status == 401:
        return (
            f"kubelet at {url} does not know this agent's token (401); it asks the API server about tokens, so check "
            "that one is reachable, and then authentication.webhook in kubelet's configuration"
        )
    if status == 403:
        return f"kubelet at {url} refuses this agent (403); allow `get` on nodes/pods (before 1.33: nodes/proxy)"
    return f"kubelet at {url} answered {status}"
