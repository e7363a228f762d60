"""Fetches kubelet's own list of pods over HTTPS: `GET https://<node>:10250/pods`.

In: the endpoint and credentials (those of the API server are valid here too). Out: pods, or a KubeletError in one
sentence. Kubelet asks the API server whether the agent may (`nodes/pods`, before 1.33 `nodes/proxy`) and keeps the
answer, so a call takes about 3 ms. Kubelet's certificate is checked, for the node's name, against `--kubelet-ca-file`,
its own self-signed certificate in `<root>/pki/kubelet.crt`, or the cluster's CA: another server on that port would get
the agent's token. The connection is kept open; a kubelet that restarted costs one more try.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from deviceplugin.errors import ConfigError, KubeletError, ParseError
from deviceplugin.kube.credentials import Access, show_certificate, trusted
from deviceplugin.kube.pods import PodListReader
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames


class KubeletPods:
    """One kept connection; `fetch` may be called at any time, also in parallel. `observe` gets each list."""

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
    ) -> None:
        self._url = url
        self._access = access
        self._node = node
        self._reader = PodListReader(names)
        self._own_ca_files = own_ca_files
        self._insecure = insecure
        self._observe = observe
        self._session: aiohttp.ClientSession | None = None
        self._context: tuple[Access, ssl.SSLContext] | None = None

    async def fetch(self) -> tuple[Pod, ...]:
        """All pods that kubelet knows, static ones included."""
        try:
            access = await self._access()
        except ConfigError as error:
            raise KubeletError(f"kubelet cannot be asked for its pods: {error.message}") from None
        body = await self._get(access)
        try:
            pods = self._reader.read(body)
        except ParseError as error:
            raise KubeletError(f"kubelet's list of pods cannot be read: {error.message}") from None
        self._observe(pods)
        return pods

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
            text = str(error) or type(error).__name__
            raise KubeletError(f"kubelet at {self._url} cannot be asked: {text}") from None

    async def _request(self, access: Access) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4, keepalive_timeout=60))
        context = await self._tls(access) if self._url.startswith("https:") else True
        async with self._session.get(
            self._url, headers=access.headers, ssl=context, server_hostname=None if context is True else self._node
        ) as response:
            body = await response.read()
            if response.status != 200:
                raise KubeletError(_refusal(self._url, response.status))
            return body

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


def _refusal(url: str, status: int) -> str:
    if status == 401:
        return (
            f"kubelet at {url} does not know this agent's token (401); it asks the API server about tokens, so check "
            "that one is reachable, and then authentication.webhook in kubelet's configuration"
        )
    if status == 403:
        return f"kubelet at {url} refuses this agent (403); allow `get` on nodes/pods (before 1.33: nodes/proxy)"
    return f"kubelet at {url} answered {status}"
