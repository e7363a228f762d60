"""Asks a running scheduler, for the commands of operators.

In: a `Connection`, and a path of the scheduler. Out: status and body; if the scheduler cannot be asked, a VcudaError of
one sentence that says why and ends with the way out. Through the API server any replica may answer; if only the leader
can, it is asked next. The token that the options name, or else a short-lived one of the service account `vcuda-view`,
shows that the caller may read about pods; it is in memory only.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from deviceplugin.cli.connection import Connection
from deviceplugin.errors import ConfigError, KubeError, VcudaError, one_line
from deviceplugin.kube.api_errors import lacks_right
from deviceplugin.kube.credentials import Access, Credentials, Facts, client_tls
from deviceplugin.kube.kubeconfig import source_of
from deviceplugin.kube.structs import StatusObject
from deviceplugin.kube.transport import cause

_ANONYMOUS = 'User "system:anonymous"'
_NO_PATH = ("no such path", "no such view")


def unreachable(server: str, error: Exception) -> VcudaError:
    """`server` is HOST:PORT."""
    text = cause(error).removeprefix(f"{server}: ")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        certificate = error.certificate_error
        why = certificate.verify_message if isinstance(certificate, ssl.SSLCertVerificationError) else text
        text = (
            f"its certificate is not trusted ({one_line(why)}); with --url give --ca-file FILE or --insecure, else "
            "correct certificate-authority of the kubeconfig"
        )
    elif isinstance(error, aiohttp.ClientConnectorSSLError):
        text = f"it does not speak TLS as expected ({_tls_reason(error.os_error)}); check address and port"
    elif isinstance(error, TimeoutError):
        text = f"{text}; check the address, or give a longer --request-timeout"
    return VcudaError(f"{server} cannot be reached: {text}")


def _tls_reason(error: OSError) -> str:
    """OpenSSL's own words, without the place in its source."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return reason.replace("_", " ").lower() or one_line(str(error))


def api_refusal(status: int, body: bytes, connection: Connection, source: str) -> KubeError:
    """An answer of the API server in the place of the scheduler's, or of a scheduler without the path."""
    said = one_line(_message(body))
    where = f"{connection.service} in namespace {connection.scheduler_namespace}"
    if said.startswith(_NO_PATH):
        text = "the scheduler is older than this command; upgrade the chart, or use the scheduler's version of vcuda"
    elif status == 401 or (status == 403 and _ANONYMOUS in said):
        text = f"the API server does not accept the credentials of {source} ({status}): {said}; log in again"
    elif lacks_right(status, said):
        text = f"{said}; an administrator gives you the right with the chart's value operators.subjects"
    elif status == 404:
        text = f"no scheduler found: there is no service {where}; install the chart, or give --scheduler-namespace NS"
    elif status in (502, 503, 504):
        text = (
            f"no replica of the scheduler answers for service {where} ({status}: {said}); look at "
            f"kubectl -n {connection.scheduler_namespace} get pods -l app.kubernetes.io/name=vcuda-scheduler"
        )
    else:
        text = f"the scheduler cannot be asked ({status}): {said}"
    return KubeError(text, code=status)


def scheduler_refusal(status: int, body: bytes) -> KubeError:
    """What the scheduler said; of another server whatever it said."""
    said = one_line(_message(body))
    if said.startswith(_NO_PATH):
        said = "the scheduler is older than this command; upgrade it, or use its version of vcuda"
    return KubeError(said or f"HTTP status {status}", code=status)


def _message(body: bytes) -> str:
    try:
        found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return body[:2000].decode(errors="replace")
    if isinstance(found.get("error"), str):
        return str(found["error"])
    try:
        status = msgspec.convert(found, StatusObject)
    except msgspec.ValidationError:
        return ""
    return status.message or status.reason or ""


_NOT_THE_LEADER = 421
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_WAYS_TO_A_RIGHT = (
    "you may not create one of service account vcuda-view; an administrator gives you that right with the chart's "
    "value operators.subjects"
)
_MOST_BODY = 64 << 20
_VIEW_ACCOUNT = "vcuda-view"
_AUDIENCE = "vcuda"
_TOKEN_SECONDS = 600
_TOKEN_HEADER = "X-Vcuda-Token"  # noqa: S105 - the name of a header; the API server's proxy removes Authorization
Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """Empty where it is none."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.DecodeError:
            return {}


class SchedulerClient(Protocol):
    """`namespace` is the one that commands take where none is given."""

    @property
    def namespace(self) -> str: ...
    async def get(self, path: str, query: Query) -> Answer:
        """Asks the scheduler; the leader, where another replica cannot answer."""

    async def get_api(self, path: str, query: Query, *, accept: str = "application/json") -> Answer | None:
        """Asks the API server with the caller's own rights; None where it is not used."""

    async def post_api(self, path: str, query: Query, document: object) -> Answer | None:
        """Sends the API server a document as JSON; None where it is not used."""


@asynccontextmanager
async def opened(connection: Connection, *, login_s: float = 60.0) -> AsyncIterator[SchedulerClient]:
    """The client that the options name; `login_s`: how long an exec plugin of the kubeconfig may take."""
    timeout = aiohttp.ClientTimeout(total=connection.request_timeout or None)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=jar, headers={"User-Agent": "vcuda"}) as session:
        if connection.url:
            yield _Direct(session, connection, connection.url)
        else:
            credentials = Credentials(connection.kubeconfigs(), login_s=login_s)
            yield _Proxied(session, connection, credentials, await credentials.access())


async def _call(
    session: aiohttp.ClientSession,
    access: Access,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Answer:
    """VcudaError with one sentence where there is no answer."""
    facts = access.facts
    how: dict[str, Any] = {"ssl": access.tls, "server_hostname": facts.tls_server_name, "proxy": facts.proxy}
    url = URL(facts.server + path, encoded=True)
    sent = [*access.headers, *(headers or {}).items()]
    try:
        async with session.request(method, url, data=body, headers=sent, allow_redirects=False, **how) as answer:
            return Answer(answer.status, await _read(answer))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise unreachable(urlsplit(facts.server).netloc, error) from None


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > _MOST_BODY:
            raise VcudaError(f"the answer is larger than {_MOST_BODY >> 20} MiB; this is not a scheduler of vcuda")
    return b"".join(parts)


def _with(path: str, query: Query) -> str:
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


class _Direct:
    """By the URL of one replica."""

    def __init__(self, session: aiohttp.ClientSession, connection: Connection, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise ConfigError(f"--url: {url[:80]!r} is not an address such as https://10.0.0.7:8443")
        token = connection.bearer_token()
        facts = Facts(url.rstrip("/"), authorization=f"Bearer {token}" if token else "")
        self._access = Access(facts, _tls(connection))
        self._session = session
        self.namespace = connection.namespace or "default"

    async def get(self, path: str, query: Query) -> Answer:
        return await _call(self._session, self._access, _with(path, query))

    async def get_api(self, path: str, query: Query, *, accept: str = "application/json") -> Answer | None:
        return None

    async def post_api(self, path: str, query: Query, document: object) -> Answer | None:
        return None


def _tls(connection: Connection) -> ssl.SSLContext | bool:
    if connection.insecure:
        return False
    try:
        return client_tls(ca_file=connection.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file: {connection.ca_file} cannot be used: {error}") from None


class _Proxied:
    """Through the API server that the kubeconfig names."""

    def __init__(
        self, session: aiohttp.ClientSession, connection: Connection, credentials: Credentials, access: Access
    ) -> None:
        self._session = session
        self._connection = connection
        self._credentials = credentials
        self._token: str | None = None
        self._token_until = 0.0
        self._leader = ""
        self.namespace = connection.namespace or access.facts.namespace or "default"

    async def get(self, path: str, query: Query) -> Answer:
        asked = _with(path, query)
        headers = await self._token_header()
        answer = await self._proxied(self._service, asked, headers)
        if answer.status == _NOT_THE_LEADER and (leader := str(answer.document.get("leader") or "")):
            pod = f"pods/https:{quote(leader, safe='')}:{self._connection.port}"
            answer = await self._proxied(pod, asked, headers)
        if answer.status == _FORBIDDEN and not headers and "error" in answer.document:
            raise KubeError(f"{answer.document['error']}; {_WAYS_TO_A_RIGHT}", code=_FORBIDDEN)
        if answer.status != 200 and "error" not in answer.document:  # from the API server, or no scheduler of ours
            raise api_refusal(answer.status, answer.body, self._connection, source_of(self._connection.kubeconfigs()))
        return answer

    async def get_api(self, path: str, query: Query, *, accept: str = "application/json") -> Answer | None:
        return await self._api(_with(path, query), headers={"Accept": accept})

    async def post_api(self, path: str, query: Query, document: object) -> Answer | None:
        body, headers = msgspec.json.encode(document), {"Content-Type": "application/json"}
        return await self._api(_with(path, query), method="POST", body=body, headers=headers)

    @property
    def _service(self) -> str:
        return f"services/https:{quote(self._connection.service, safe='')}:https"

    async def _proxied(self, target: str, path: str, headers: Mapping[str, str]) -> Answer:
        namespace = quote(self._connection.scheduler_namespace, safe="")
        return await self._api(f"/api/v1/namespaces/{namespace}/{target}/proxy{path}", headers=headers)

    async def _api(self, path: str, **how: Any) -> Answer:  # noqa: ANN401 - those of _call
        """With credentials that are read again, once, if the API server refuses them."""
        access = await self._credentials.access()
        answer = await _call(self._session, access, path, **how)
        if answer.status == _UNAUTHORIZED and "error" not in answer.document:
            answer = await _call(self._session, await self._credentials.renew(access), path, **how)
        return answer

    async def _token_header(self) -> dict[str, str]:
        """A token lasts for minutes, and `top` for hours. Without the right to create one there is none."""
        if given := self._connection.bearer_token():
            return {_TOKEN_HEADER: given}
        now = asyncio.get_running_loop().time()
        if self._token is None or (self._token and now >= self._token_until):
            self._token = await self._new_token()
            self._token_until = now + _TOKEN_SECONDS / 2
        return {_TOKEN_HEADER: self._token} if self._token else {}

    async def _new_token(self) -> str:
        namespace = quote(self._connection.scheduler_namespace, safe="")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{_VIEW_ACCOUNT}/token"
        spec = {"audiences": [_AUDIENCE], "expirationSeconds": _TOKEN_SECONDS}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self.post_api(path, {}, request)
        status = answer.document.get("status") if answer is not None and answer.status in (200, 201) else None
        token = status.get("token") if isinstance(status, dict) else None
        return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""
