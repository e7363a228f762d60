"""Asks a running scheduler, for the commands of operators: a path of it, or all pages of a list of its view.

In: a `Connection`, and what is asked. Out: status and body, or the types of `model.cluster_view`; if the scheduler
cannot be asked or refuses, a VcudaError of one sentence that says why and ends with the way out. Through the API server
any replica may answer; if only the leader can, it is asked next. The token that the options name, or else a short-lived
one of the service account `vcuda-view`, shows that the caller may read about pods; it is in memory only. A list that
changed so much that its pages do not fit together is read again from the beginning.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from deviceplugin import log
from deviceplugin.cli.connection import Connection
from deviceplugin.errors import ConfigError, KubeError, VcudaError, one_line
from deviceplugin.kube.api_errors import TOO_LARGE, lacks_right, refused, words_of
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.credentials import Access, Credentials, Facts, GivenAccess, Headers, client_tls
from deviceplugin.kube.kubeconfig import source_of
from deviceplugin.kube.transport import JSON, MOST_BODY, Timeouts, Transport, cause
from deviceplugin.model.cluster_view import (
    MOST_IN_DETAIL,
    MOST_ROWS,
    ClusterEventRow,
    ClusterEventsView,
    ClusterView,
    NodeRow,
    NodesView,
    OneNodeView,
    PodRow,
    PodsView,
)

T = TypeVar("T")
Row = TypeVar("Row")
Document = TypeVar("Document")
_ANONYMOUS = 'User "system:anonymous"'
_UNAUTHORIZED = 401
_NO_PATH = ("no such path", "no such view")


def unreachable(server: str, error: Exception, _what: str) -> KubeError:
    """`server` is HOST:PORT. What was asked is not said: nothing else can be asked either."""
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
    return KubeError(f"{server} cannot be reached: {text}")


def _tls_reason(error: OSError) -> str:
    """OpenSSL's own words, without the place in its source."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return reason.replace("_", " ").lower() or one_line(str(error))


def caller_refusal(source: str, code: int, body: bytes, what: str) -> KubeError:
    """What the API server does not do for the caller; `source` has the credentials."""
    said = one_line(words_of(body))
    if lacks_right(code, said):
        text = f"you may not {what}"
    elif code == _UNAUTHORIZED:
        text = _unknown_caller(source, code, said)
    else:
        text = f"cannot {what} ({code}): {said}"
    return refused(code, said, text)


def _unknown_caller(source: str, code: int, said: str) -> str:
    return f"the API server does not accept the credentials of {source} ({code}): {said}; log in again"


def api_refusal(status: int, body: bytes, connection: Connection, source: str) -> KubeError:
    """An answer of the API server in the place of the scheduler's, or of a scheduler without the path."""
    said = one_line(_message(body))
    where = f"{connection.service} in namespace {connection.scheduler_namespace}"
    if said.startswith(_NO_PATH):
        text = "the scheduler is older than this command; upgrade the chart, or use the scheduler's version of vcuda"
    elif status == _UNAUTHORIZED or (status == 403 and _ANONYMOUS in said):
        text = _unknown_caller(source, status, said)
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
    error = Answer(0, body).document.get("error")
    return error if isinstance(error, str) else words_of(body)


_NOT_THE_LEADER = 421
_FORBIDDEN = 403
_WAYS_TO_A_RIGHT = (
    "you may not create one of service account vcuda-view; an administrator gives you that right with the chart's "
    "value operators.subjects"
)
_VIEW_ACCOUNT = "vcuda-view"
_AUDIENCE = "vcuda"
_TOKEN_SECONDS = 600
_TOKEN_HEADER = "X-Vcuda-Token"  # noqa: S105 - the name of a header; the API server's proxy removes Authorization
_MOST_READ = 200_000
_MOST_TRIES = 3
_GONE = 410
Query = Mapping[str, str]


class Answer(msgspec.Struct, frozen=True):
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

    def read(self, document: type[Document]) -> Document:
        """KubeError with the scheduler's sentence, or one that says that it is of another version."""
        if self.status != 200:
            raise scheduler_refusal(self.status, self.body)
        try:
            return msgspec.json.decode(self.body, type=document)
        except msgspec.MsgspecError:
            raise VcudaError(
                "the scheduler's answer is of another version of vcuda; use its own version of vcuda"
            ) from None


class RowList(msgspec.Struct, Generic[Row], frozen=True):
    """A list of the view; `key` tells its rows apart, `items` are those of one page."""

    path: str
    document: type[Any]
    key: Callable[[Row], str]
    items: Callable[[Any], Iterable[Row]] = attrgetter("items")


NODE_ROWS: RowList[NodeRow] = RowList("/view/nodes", NodesView, lambda row: row.node)
POD_ROWS: RowList[PodRow] = RowList("/view/pods", PodsView, lambda row: f"{row.uid} {row.node}")
"""A pod whose Binding got no answer may stand on two nodes."""
EVENT_ROWS: RowList[ClusterEventRow] = RowList(
    "/view/events", ClusterEventsView, lambda row: f"{row.kind.value} {row.uid} {row.node} {row.at} {row.sentence}"
)
"""The newest first. A pod that is refused again while pages are read has another one then."""


class Found(msgspec.Struct, Generic[Row], frozen=True):
    """`total` counts what matches, of which `rows` may be the first; `at` is when the scheduler answered."""

    rows: tuple[Row, ...]
    total: int
    at: float


class SchedulerClient:
    """`namespace` is the one that commands take if none is given.

    `api` asks the API server with the caller's own rights, and leads to the scheduler; None if the scheduler's URL was
    given. `source` has the credentials.
    """

    def __init__(
        self, transport: Transport, connection: Connection, source: str, namespace: str, api: ObjectClient | None
    ) -> None:
        self._transport = transport
        self.connection = connection
        self._source = source
        self._token: str | None = None
        self._token_until = 0.0
        self.namespace = namespace
        self.api = api

    async def get(self, path: str, query: Query = MappingProxyType({})) -> Answer:
        """Asks the scheduler; the leader, if another replica cannot answer."""
        if self.api is None:
            return await self._asked(path, query)
        headers = await self._token_header()
        answer = await self._proxied(self._service, path, query, headers)
        if answer.status == _NOT_THE_LEADER and (leader := str(answer.document.get("leader") or "")):
            pod = f"pods/https:{quote(leader, safe='')}:{self.connection.port}"
            answer = await self._proxied(pod, path, query, headers)
        if answer.status == _FORBIDDEN and not headers and "error" in answer.document:
            raise KubeError(f"{answer.document['error']}; {_WAYS_TO_A_RIGHT}", code=_FORBIDDEN)
        if answer.status != 200 and "error" not in answer.document:  # from the API server, or no scheduler of ours
            raise api_refusal(answer.status, answer.body, self.connection, self._source)
        return answer

    async def read(self, path: str, document: type[Document], query: Query = MappingProxyType({})) -> Document:
        return (await self.get(path, query)).read(document)

    async def cluster(self) -> ClusterView:
        return await self.read("/view/cluster", ClusterView)

    async def node(self, name: str) -> NodeRow:
        """With what is used. KubeError with code 404 if there is no such node."""
        return (await self.read(f"/view/nodes/{quote(name, safe='')}", OneNodeView, {"live": "1"})).item

    async def rows(self, wanted: RowList[Row], query: Query, *, most: int = 0) -> Found[Row]:
        """All rows that match; with `most`, the first of them."""
        for _ in range(_MOST_TRIES):
            try:
                return await self._pages(wanted, query, most)
            except KubeError as error:
                if error.code != _GONE:
                    raise
        raise VcudaError("the list changes faster than it can be read; narrow it, or try again")

    async def _pages(self, wanted: RowList[Row], query: Query, most: int) -> Found[Row]:
        page = MOST_IN_DETAIL if {"gpus", "holders"} & query.keys() else MOST_ROWS
        rows: dict[str, Row] = {}
        token, seen = "", set[str]()
        while True:
            asked = {**query, "limit": str(min(page, most) if most else page)} | ({"more": token} if token else {})
            view = await self.read(wanted.path, wanted.document, asked)
            rows |= {wanted.key(row): row for row in wanted.items(view)}
            token = view.more
            if not token or (most and len(rows) >= most):
                return Found(tuple(rows.values())[: most or None], view.total, view.at)
            if token in seen:
                raise VcudaError("the scheduler gives the same page again and again; report this with its version")
            seen.add(token)
            if len(rows) > _MOST_READ:
                raise VcudaError(f"there are more than {_MOST_READ} rows; narrow the list, by a namespace or a node")

    @property
    def _service(self) -> str:
        return f"services/https:{quote(self.connection.service, safe='')}:https"

    async def _proxied(self, target: str, path: str, query: Query, headers: Mapping[str, str]) -> Answer:
        namespace = quote(self.connection.scheduler_namespace, safe="")
        whole = f"/api/v1/namespaces/{namespace}/{target}/proxy{path}"
        return await self._asked(whole, query, tuple(headers.items()))

    async def _asked(self, path: str, query: Query, headers: Headers = ()) -> Answer:
        what = "ask the scheduler"
        try:
            return Answer(*await self._transport.answer("GET", path, what=what, query=query, headers=headers))
        except KubeError as error:
            if error.code != TOO_LARGE:
                raise
            size = f"{MOST_BODY >> 20} MiB"
            raise VcudaError(f"the answer is larger than {size}; this is not a scheduler of vcuda") from None

    async def _token_header(self) -> dict[str, str]:
        """A token lasts for minutes, and `top` for hours. Without the right to create one there is none."""
        if given := self.connection.bearer_token():
            return {_TOKEN_HEADER: given}
        now = asyncio.get_running_loop().time()
        if self._token is None or (self._token and now >= self._token_until):
            self._token = await self._new_token()
            self._token_until = now + _TOKEN_SECONDS / 2
        return {_TOKEN_HEADER: self._token} if self._token else {}

    async def _new_token(self) -> str:
        namespace = quote(self.connection.scheduler_namespace, safe="")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{_VIEW_ACCOUNT}/token"
        spec = {"audiences": [_AUDIENCE], "expirationSeconds": _TOKEN_SECONDS}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        body, headers = msgspec.json.encode(request), (("Content-Type", JSON),)
        answer = Answer(*await self._transport.answer("POST", path, what="create a token", body=body, headers=headers))
        status = answer.document.get("status") if answer.status in (200, 201) else None
        token = status.get("token") if isinstance(status, dict) else None
        return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""


@asynccontextmanager
async def opened(connection: Connection, *, login_s: float = 60.0) -> AsyncIterator[SchedulerClient]:
    """The client that the options name; `login_s`: how long an exec plugin of the kubeconfig may take."""
    source, credentials = _credentials(connection, login_s)
    facts = (await credentials.access()).facts
    transport = Transport(
        credentials,
        timeouts=Timeouts(connect=None, request=connection.request_timeout or None, login=login_s),
        refused=partial(caller_refusal, source),
        silent=partial(unreachable, urlsplit(facts.server).netloc),
    )
    namespace = connection.namespace or facts.namespace or "default"
    async with ObjectClient(transport) as api:
        yield SchedulerClient(transport, connection, source, namespace, None if connection.url else api)


def asked(connection: Connection, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
    """What a command asks. Warnings about credentials are not part of the answer."""

    async def ask() -> T:
        async with opened(connection) as client:
            return await question(client)

    log.open_log(level="error", console=True)
    return asyncio.run(ask())


def _credentials(connection: Connection, login_s: float) -> tuple[str, Credentials | GivenAccess]:
    """And what they are of, in sentences."""
    if connection.url:
        return "--url", GivenAccess(_given(connection, connection.url))
    kubeconfigs = connection.kubeconfigs()
    return source_of(kubeconfigs), Credentials(kubeconfigs, login_s=login_s)


def _given(connection: Connection, url: str) -> Access:
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError(f"--url: {url[:80]!r} is not an address such as https://10.0.0.7:8443")
    token = connection.bearer_token()
    return Access(Facts(url.rstrip("/"), authorization=f"Bearer {token}" if token else ""), _tls(connection))


def _tls(connection: Connection) -> ssl.SSLContext | bool:
    if connection.insecure:
        return False
    try:
        return client_tls(ca_file=connection.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file: {connection.ca_file} cannot be used: {error}") from None
