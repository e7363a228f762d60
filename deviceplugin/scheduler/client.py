"""Asks a running scheduler, for `vcuda explain`.

In: its URL, or a kubeconfig and the name of its service. Out: documents, or a VcudaError with the scheduler's sentence.
Through the API server's proxy any replica may answer; one that is not the leader names the leader, and its pod is asked
then. Only the right to use the proxy is needed. With the right to read the pod, a pod unknown to the scheduler is
explained better.
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


class _HttpClient:
    """One GET, with errors as one sentence."""

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
            raise VcudaError(f"{_host(url)} did not answer within {_WITHIN_S:g}s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = " ".join(str(error.certificate_error).split())
            raise VcudaError(f"{_host(url)} cannot be reached: {why[:300]}") from None
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            why = os.strerror(number).lower() if number and number > 0 else str(error.os_error)
            raise VcudaError(f"{_host(url)} cannot be reached: {why}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise VcudaError(f"{_host(url)} cannot be reached: {' '.join(str(error).split())[:300]}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _ByUrl:
    def __init__(self, url: str, tls: ssl.SSLContext | bool) -> None:
        self._url = url.rstrip("/")
        self._tls = tls
        self._http = _HttpClient()

    async def explain(self, namespace: str, name: str) -> dict[str, Any]:
        status, body = await self._http.get(f"{self._url}{_path(namespace, name)}", tls=self._tls)
        return _document(status, body)

    async def close(self) -> None:
        await self._http.close()


class _ByProxy:
    def __init__(self, kubeconfig: Path | None, namespace: str, service: str, port: int) -> None:
        self._credentials = Credentials(kubeconfig)
        self._namespace = namespace
        self._service = service
        self._port = port
        self._http = _HttpClient()

    async def explain(self, namespace: str, name: str) -> dict[str, Any]:
        query = _path(namespace, name)
        status, body = await self._get("services", f"https:{self._service}:https", query)
        leader = _leader(body) if status == _ELSEWHERE else ""
        if leader:
            status, body = await self._get("pods", f"https:{leader}:{self._port}", query)
        if status == 404 and "error" in _object(body):  # the scheduler's own answer, not the proxy's
            raise KubeError(await self._unknown(namespace, name) or _object(body)["error"], code=status)
        return _document(status, body)

    async def _unknown(self, namespace: str, name: str) -> str:
        """Why the scheduler does not know the pod; empty where the API server does not allow to read it."""
        status, body = await self._read(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
        return why_unknown(f"{namespace}/{name}", status, _object(body))

    async def _get(self, kind: str, target: str, query: str) -> tuple[int, bytes]:
        target = quote(target, safe=":")
        return await self._read(f"/api/v1/namespaces/{quote(self._namespace)}/{kind}/{target}/proxy{query}")

    async def _read(self, path: str) -> tuple[int, bytes]:
        access = await self._credentials.access()
        tls = access.tls if access.tls is not None else True
        return await self._http.get(
            access.server + path, tls=tls, name=access.tls_server_name, authorization=access.authorization
        )

    async def close(self) -> None:
        await self._http.close()


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
    """From the API server's answer about a pod that the scheduler does not know: one sentence, or an empty string."""
    if status == 404:
        return f"pod {pod} does not exist; a suspended Job, or one without quota, has no pods"
    if status != 200:
        return ""
    try:
        phase = document["status"]["phase"]
        containers = [*document["spec"].get("initContainers", ()), *document["spec"]["containers"]]
        asked = {resource for each in containers for resource in each.get("resources", {}).get("limits", {})}
    except (KeyError, TypeError, AttributeError):
        return ""
    if phase in ("Succeeded", "Failed"):
        return f"pod {pod} has finished ({phase}) and holds nothing"
    if not any("/vcuda-" in resource for resource in asked):
        return f"pod {pod} requests no vcuda resources: no container has limits of vcuda-core or vcuda-memory"
    return ""


def _path(namespace: str, name: str) -> str:
    return f"/explain?pod={quote(namespace, safe='')}/{quote(name, safe='')}"


def _document(status: int, body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        said = body[:300].decode(errors="replace").strip()
        raise KubeError(f"the scheduler cannot be reached ({status}): {said}", code=status) from None
    if status != 200:
        raise KubeError(str(found.get("error") or found.get("message") or f"it answered {status}"), code=status)
    return found


def _leader(body: bytes) -> str:
    return str(_object(body).get("leader") or "")


def _object(body: bytes) -> dict[str, Any]:
    """Empty if the body is not an object."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _host(url: str) -> str:
    return urlsplit(url).netloc
