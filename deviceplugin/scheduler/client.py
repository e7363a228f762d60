"""Asks a running scheduler, as `vcuda explain` does.

In: its URL, or a kubeconfig and the name of its service. Out: documents, or one of our errors with the scheduler's own
sentence. Through the API server any replica may answer; one that does not lead names the one that does, whose pod is
asked then. No right is needed but that of the API server's proxy; of a pod that the scheduler does not know, whoever
may read it is told more.
"""

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from deviceplugin.errors import ConfigError, KubeError, VcudaError
from deviceplugin.kube.credentials import Credentials

_WITHIN_S = 15.0
_ELSEWHERE = 421


class Scheduler(Protocol):
    """`close` at the end."""

    async def explain(self, namespace: str, name: str) -> dict[str, Any]: ...
    async def close(self) -> None: ...


class _Door:
    """One GET, and what it means."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get(
        self, url: str, *, tls: ssl.SSLContext | bool, name: str | None = None, authorization: str = ""
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        headers = {"Authorization": authorization} if authorization else {}
        try:
            async with (
                asyncio.timeout(_WITHIN_S),
                self._session.get(url, ssl=tls, server_hostname=name, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status, await answer.read()
        except TimeoutError:
            raise VcudaError(f"{_host(url)} gave no answer within {_WITHIN_S:g}s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = " ".join(str(error.certificate_error).split())
            raise VcudaError(f"{_host(url)} cannot be asked: {why[:300]}") from None
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            why = os.strerror(number).lower() if number and number > 0 else str(error.os_error)
            raise VcudaError(f"{_host(url)} cannot be asked: {why}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise VcudaError(f"{_host(url)} cannot be asked: {' '.join(str(error).split())[:300]}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _ByUrl:
    def __init__(self, url: str, tls: ssl.SSLContext | bool) -> None:
        self._url = url.rstrip("/")
        self._tls = tls
        self._door = _Door()

    async def explain(self, namespace: str, name: str) -> dict[str, Any]:
        status, body = await self._door.get(f"{self._url}{_path(namespace, name)}", tls=self._tls)
        return _document(status, body)

    async def close(self) -> None:
        await self._door.close()


class _ByProxy:
    def __init__(self, kubeconfig: Path | None, namespace: str, service: str, port: int) -> None:
        self._credentials = Credentials(kubeconfig)
        self._namespace = namespace
        self._service = service
        self._port = port
        self._door = _Door()

    async def explain(self, namespace: str, name: str) -> dict[str, Any]:
        query = _path(namespace, name)
        status, body = await self._get("services", f"https:{self._service}:https", query)
        leader = _leader(body) if status == _ELSEWHERE else ""
        if leader:
            status, body = await self._get("pods", f"https:{leader}:{self._port}", query)
        if status == 404 and "error" in _object(body):  # the scheduler's own word, not that there is none
            raise KubeError(await self._unknown(namespace, name) or _object(body)["error"], code=status)
        return _document(status, body)

    async def _unknown(self, namespace: str, name: str) -> str:
        """Why the scheduler does not know the pod; empty where the API server does not let us see."""
        status, body = await self._read(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
        return why_unknown(f"{namespace}/{name}", status, _object(body))

    async def _get(self, kind: str, target: str, query: str) -> tuple[int, bytes]:
        target = quote(target, safe=":")
        return await self._read(f"/api/v1/namespaces/{quote(self._namespace)}/{kind}/{target}/proxy{query}")

    async def _read(self, path: str) -> tuple[int, bytes]:
        access = await self._credentials.access()
        tls = access.tls if access.tls is not None else True
        return await self._door.get(
            access.server + path, tls=tls, name=access.tls_server_name, authorization=access.authorization
        )

    async def close(self) -> None:
        await self._door.close()


def by_url(url: str, *, ca_file: Path | None, insecure: bool) -> Scheduler:
    """ConfigError where the URL or the file cannot be used."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError(f"--url: {url[:80]!r} is not an address such as https://10.0.0.7:8443")
    if insecure:
        return _ByUrl(url, False)
    try:
        return _ByUrl(url, ssl.create_default_context(cafile=ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file: {ca_file} cannot be used: {error}") from None


def by_proxy(kubeconfig: Path | None, *, namespace: str, service: str, port: int) -> Scheduler:
    return _ByProxy(kubeconfig, namespace, service, port)


def why_unknown(pod: str, status: int, document: dict[str, Any]) -> str:
    """In: the API server's answer about a pod that the scheduler does not know. Out: one sentence, empty for none."""
    if status == 404:
        return f"there is no pod {pod}; of a suspended Job, or where a quota is used up, none is made"
    if status != 200:
        return ""
    try:
        phase = document["status"]["phase"]
        containers = [*document["spec"].get("initContainers", ()), *document["spec"]["containers"]]
        asked = {resource for each in containers for resource in each.get("resources", {}).get("limits", {})}
    except (KeyError, TypeError, AttributeError):
        return ""
    if phase in ("Succeeded", "Failed"):
        return f"pod {pod} has ended ({phase}) and holds nothing any more"
    if not any("/vcuda-" in resource for resource in asked):
        return f"pod {pod} asks for no GPU of vcuda: no container has limits of vcuda-core and vcuda-memory"
    return ""


def _path(namespace: str, name: str) -> str:
    return f"/explain?pod={quote(namespace, safe='')}/{quote(name, safe='')}"


def _document(status: int, body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        said = body[:300].decode(errors="replace").strip()
        raise KubeError(f"the scheduler could not be asked ({status}): {said}", code=status) from None
    if status != 200:
        raise KubeError(str(found.get("error") or found.get("message") or f"it answered {status}"), code=status)
    return found


def _leader(body: bytes) -> str:
    return str(_object(body).get("leader") or "")


def _object(body: bytes) -> dict[str, Any]:
    """Empty where it is none."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _host(url: str) -> str:
    return urlsplit(url).netloc
