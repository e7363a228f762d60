"""Calls a running scheduler, for `vcuda explain`.

In: its URL, or a kubeconfig and the name of its service; a pod. Out: the scheduler's document, or a VcudaError with its
sentence. Through the API server any replica may answer; a replica that does not lead names the leader, and that pod is
called next. This needs only the right to use the API server's proxy. If the scheduler does not know the pod, and the
caller may read it, the error says why.
"""

import ssl
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from deviceplugin.errors import ConfigError, KubeError, VcudaError
from deviceplugin.kube.credentials import Access, Credentials
from deviceplugin.kube.kubeconfig_process import Facts
from deviceplugin.kube.transport import cause

_WITHIN = aiohttp.ClientTimeout(15.0)
_NOT_THE_LEADER = 421


async def _get(access: Access, path: str) -> tuple[int, bytes]:
    """Status and body; VcudaError with one sentence where there is no answer."""
    facts = access.facts
    how: dict[str, Any] = {"ssl": access.tls, "server_hostname": facts.tls_server_name, "proxy": facts.proxy}
    try:
        async with (
            aiohttp.ClientSession(headers=access.headers, timeout=_WITHIN) as session,
            session.get(facts.server + path, allow_redirects=False, **how) as answer,
        ):
            return answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as error:
        at = urlsplit(facts.server).netloc
        raise VcudaError(f"{at} cannot be reached: {cause(error).removeprefix(f'{at}: ')}") from None


async def explain_by_url(url: str, namespace: str, pod: str, *, ca_file: str | None, insecure: bool) -> dict[str, Any]:
    """ConfigError where the URL or the file cannot be used."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError(f"--url: {url[:80]!r} is not an address such as https://10.0.0.7:8443")
    try:
        tls = False if insecure else ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file: {ca_file} cannot be used: {error}") from None
    return _document(*await _get(Access(Facts(url.rstrip("/")), tls), _query(namespace, pod)))


async def explain_by_proxy(
    kubeconfig: Path | None, namespace: str, pod: str, *, scheduler_namespace: str, service: str, port: int
) -> dict[str, Any]:
    """Through the API server that the kubeconfig names."""
    get = partial(_get, await Credentials(kubeconfig).access())
    proxied = f"/api/v1/namespaces/{quote(scheduler_namespace)}/{{}}/proxy{_query(namespace, pod)}"
    status, body = await get(proxied.format(f"services/https:{quote(service, safe='')}:https"))
    leader = _object(body).get("leader") if status == _NOT_THE_LEADER else None
    if leader:
        status, body = await get(proxied.format(f"pods/https:{quote(str(leader), safe='')}:{port}"))
    if status == 404 and "error" in _object(body):  # from the scheduler; without "error" there is no scheduler
        found = await get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}")
        sentence = why_unknown(f"{namespace}/{pod}", found[0], _object(found[1]))
        raise KubeError(sentence or _object(body)["error"], code=status)
    return _document(status, body)


def why_unknown(pod: str, status: int, document: dict[str, Any]) -> str:
    """Why the scheduler does not know a pod, from the API server's answer about it; empty where that does not tell."""
    if status == 404:
        return f"pod {pod} does not exist; a suspended Job, or one without quota, has no pods"
    if status != 200:
        return ""
    try:
        phase = document["status"]["phase"]
        containers = [*document["spec"].get("initContainers", ()), *document["spec"]["containers"]]
        requested = {resource for each in containers for resource in each.get("resources", {}).get("limits", {})}
    except (KeyError, TypeError, AttributeError):
        return ""
    if phase in ("Succeeded", "Failed"):
        return f"pod {pod} has finished ({phase}) and holds nothing"
    if not any("/vcuda-" in resource for resource in requested):
        return f"pod {pod} requests no vcuda resources: no container has limits of vcuda-core or vcuda-memory"
    return ""


def _query(namespace: str, pod: str) -> str:
    return f"/explain?pod={quote(namespace, safe='')}/{quote(pod, safe='')}"


def _document(status: int, body: bytes) -> dict[str, Any]:
    found = _object(body)
    if not found:
        text = body[:300].decode(errors="replace").strip()
        raise KubeError(f"the scheduler cannot be reached ({status}): {text}", code=status)
    if status != 200:
        raise KubeError(str(found.get("error") or found.get("message") or f"HTTP status {status}"), code=status)
    return found


def _object(body: bytes) -> dict[str, Any]:
    """Empty where it is none."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
