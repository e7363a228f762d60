"""The few requests that kubelet makes to an API server.

In: a URL or a kubeconfig. Out: pods of the node by list and watch, statuses, final deletions, the node object.
Refusals are `ApiRefusalError` with the HTTP status. Not here: when to ask.
"""

import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from sandbox.kubelet.options import Json

MERGE = {"Content-Type": "application/merge-patch+json"}


class ApiRefusalError(Exception):
    """The API server answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the API server answered {code}: {text[:200]}")
        self.code = code


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """Where it is and how to be let in."""

    url: str
    token: str = ""
    tls: ssl.SSLContext | None = None


def from_kubeconfig(path: Path) -> ApiAddress:
    """Reads the current context: server, authority, and a token or a client certificate."""
    config: Json = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster: Json = _named(config["clusters"], context["cluster"])["cluster"]
    user: Json = _named(config["users"], context["user"]).get("user") or {}
    token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else "")
    return ApiAddress(cluster["server"], token, _tls(cluster, user))


class ApiClient:
    """One HTTP session."""

    def __init__(self, address: ApiAddress) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        tls = aiohttp.TCPConnector(ssl=self._address.tls or True)
        self._session = aiohttp.ClientSession(self._address.url, headers=headers, connector=tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, body: Json | None = None, **query: str) -> Json:
        """One request; a patch is a merge patch."""
        headers = MERGE if method == "PATCH" else None
        timeout = aiohttp.ClientTimeout(total=10)
        async with self._open().request(
            method, path, json=body, params=query, headers=headers, timeout=timeout
        ) as response:
            text = await response.text()
            if response.status >= 300:
                raise ApiRefusalError(response.status, text)
            answer: Json = json.loads(text)
            return answer

    async def watch(self, path: str, **query: str) -> AsyncIterator[Json]:
        """Events until the server ends the stream."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._open().get(path, params={"watch": "1", **query}, timeout=timeout) as response:
            if response.status >= 300:
                raise ApiRefusalError(response.status, await response.text())
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        return self._session


def _named(items: list[Json], name: str) -> Json:
    return next(item for item in items if item["name"] == name)


def _tls(cluster: Json, user: Json) -> ssl.SSLContext | None:
    if not cluster["server"].startswith("https"):
        return None
    context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{certificate}\n{key}\n")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(section: Json, key: str) -> str | None:
    inline: Any = section.get(f"{key}-data")
    if inline:
        return base64.b64decode(inline).decode()
    return Path(section[key]).read_text() if key in section else None
