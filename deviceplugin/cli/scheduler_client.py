"""Asks a running scheduler, for the commands of operators: a path of it, or all pages of a list of its view.

In: a `Connection`, and what is asked. Out: status and body, or the types of `model.cluster_view`; if the scheduler
cannot be asked or refuses, a VcudaError of one sentence that says why and ends with the way out. Any replica answers;
it asks the leader itself. A token shows that the caller may read about pods: the one that the options name; else a
short-lived one of the service account `vcuda-view`, for operators; else one of the account `default` of each namespace
that is asked about, for those who may make it there, as with the ClusterRole `edit`. Where no single namespace is named
these are a bounded number of those that the caller's contexts name or the API server lists. Tokens are in memory only.
A list that changed so much that its pages do not fit together is read again from the beginning.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from itertools import accumulate, islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import aiohttp
import msgspec

from deviceplugin import log
from deviceplugin.cli.connection import Connection
from deviceplugin.errors import ConfigError, KubeError, VcudaError, one_line
from deviceplugin.kube.api_errors import TOO_LARGE, lacks_right, refused, words_of
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.collection import ObjectKind
from deviceplugin.kube.credentials import Access, Credentials, Facts, GivenAccess, Headers, client_tls
from deviceplugin.kube.kubeconfig import namespaces, source_of
from deviceplugin.kube.structs import Object
from deviceplugin.kube.transport import JSON, MOST_BODY, Timeouts, Transport, cause
from deviceplugin.model.cluster_view import (
    MOST_IN_DETAIL,
    MOST_ROWS,
    MOST_TOKENS,
    TOKEN_HEADER,
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
_UNAUTHORIZED, _UNAVAILABLE = 401, 503
_NO_PATH = ("no such path", "no such view")
_LOG_IN = "log in again"


def unreachable(server: str, other: str, error: Exception, _what: str) -> KubeError:
    """`server` is HOST:PORT; `other`: how another one is named. What was asked is not said: nothing else can be."""
    text, advice = cause(error).removeprefix(f"{server}: "), f"check that it runs, or name another one with {other}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        certificate = error.certificate_error
        why = certificate.verify_message if isinstance(certificate, ssl.SSLCertVerificationError) else text
        text = f"its certificate is not trusted ({one_line(why)})"
        advice = "with --url give --ca-file FILE or --insecure, else correct certificate-authority of the kubeconfig"
    elif isinstance(error, aiohttp.ClientConnectorSSLError):
        text = f"it does not speak TLS as expected ({_tls_reason(error.os_error)})"
        advice = "check address and port"
    elif isinstance(error, TimeoutError):
        advice = "check the address, or give a longer --request-timeout"
    return KubeError(f"{server} cannot be reached: {text}", advice=advice)


def _tls_reason(error: OSError) -> str:
    """OpenSSL's own words, without the place in its source."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return reason.replace("_", " ").lower() or one_line(str(error))


def caller_refusal(source: str, code: int, body: bytes, what: str) -> KubeError:
    """What the API server does not do for the caller; `source` has the credentials."""
    said = one_line(words_of(body))
    if code == _UNAUTHORIZED:
        return refused(code, said, _unknown_caller(source, code, said), advice=_LOG_IN)
    return refused(code, said, f"you may not {what}" if lacks_right(code, said) else f"cannot {what} ({code}): {said}")


def _unknown_caller(source: str, code: int, said: str) -> str:
    return f"the API server does not accept the credentials of {source} ({code}): {said}"


def api_refusal(status: int, body: bytes, connection: Connection, source: str) -> KubeError:
    """An answer of the API server in the place of the scheduler's, or of a scheduler without the path."""
    said = one_line(_message(body))
    where = f"{connection.service} in namespace {connection.scheduler_namespace}"
    if said.startswith(_NO_PATH):
        return _older(status, "upgrade the chart, or use the scheduler's version of vcuda")
    if status == _UNAUTHORIZED or (status == 403 and _ANONYMOUS in said):
        text, advice = _unknown_caller(source, status, said), _LOG_IN
    elif lacks_right(status, said):
        values = "operators.subjects or tenants.subjects"
        text, advice = said, f"an administrator gives you the right with the chart's value {values}"
    elif status == 404:
        text = f"no scheduler found: there is no service {where}"
        advice = "install the chart, or give --scheduler-namespace NS"
    elif status in (502, 503, 504):
        text = f"no replica of the scheduler answers for service {where} ({status}: {said})"
        pods = f"kubectl -n {connection.scheduler_namespace} get pods -l app.kubernetes.io/name=vcuda-scheduler"
        advice = f"look at {pods}"
    else:
        text, advice = f"the scheduler cannot be asked ({status}): {said}", ""
    return KubeError(text, code=status, advice=advice)


def _older(status: int, advice: str) -> KubeError:
    return KubeError("the scheduler is older than this command", code=status, advice=advice)


def scheduler_refusal(status: int, body: bytes) -> KubeError:
    """What the scheduler said; of another server whatever it said."""
    said = one_line(_message(body))
    if said.startswith(_NO_PATH):
        return _older(status, "upgrade it, or use its version of vcuda")
    lacks_advice = status == _UNAVAILABLE and said and not said.endswith("try again")
    return KubeError(said or f"HTTP status {status}", code=status, advice="try again" if lacks_advice else "")


def _message(body: bytes) -> str:
    error = Answer(0, body).document.get("error")
    return error if isinstance(error, str) else words_of(body)


_FORBIDDEN = 403
_VIEW_ACCOUNT, _USUAL_ACCOUNT = "vcuda-view", "default"
_AUDIENCE = "vcuda"
_TOKEN_SECONDS = 600
_LONGEST_HEADER = 8000
_MOST_TRIED, _MOST_LISTED = 64, 2000  # namespaces
_NAMESPACES = ObjectKind("v1", "namespaces", "Namespace", "namespace", Object, lambda found: found.metadata.name)
_PODS_BELOW = "/view/pods/"
_MOST_READ = 200_000
_MOST_TRIES = 3
_GONE = 410
_CLUSTER, _NODES = "/view/cluster", "/view/nodes"  # with sums alone, except for holders
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
            finding = "the scheduler's answer is of another version of vcuda"
            raise VcudaError(finding, advice="use its own version of vcuda") from None


class _Token(msgspec.Struct, frozen=True):
    """Empty where the caller may not create it; good until then by the loop's clock."""

    text: str
    until: float


class CallersTokens:
    """`own`: the namespace of the caller's context; `api`: with the caller's own rights."""

    def __init__(self, transport: Transport, api: ObjectClient, connection: Connection, own: str) -> None:
        self._transport = transport
        self._api = api
        self._connection = connection
        self._own = own
        self._known: dict[tuple[str, str], _Token] = {}
        self._names: tuple[str, ...] | None = None
        self._turn = asyncio.Lock()

    async def shown(self, namespace: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tokens, and the namespaces that were tried; `namespace`: as it is asked about, empty for all."""
        if given := self._connection.bearer_token():
            return (given,), ()
        async with self._turn:
            if of_all := await self._of(self._connection.scheduler_namespace, _VIEW_ACCOUNT):
                return (of_all,), ()
            is_one = namespace and not namespace.endswith("*")
            names = (namespace,) if is_one else tuple(islice(await self._matching(namespace), _MOST_TRIED))
            return await self._of_usual(names), names

    async def _matching(self, pattern: str) -> list[str]:
        if self._names is None:
            self._names = tuple(dict.fromkeys([self._own, *await self._in_contexts(), *await self._listed()]))
        return [each for each in self._names if each.startswith(pattern.removesuffix("*"))]

    async def _in_contexts(self) -> tuple[str, ...]:
        kubeconfigs = self._connection.kubeconfigs()
        return () if kubeconfigs is None else await asyncio.to_thread(namespaces, kubeconfigs)

    async def _listed(self) -> list[str]:
        """By name; none for a caller who may not list them."""
        found: list[str] = []
        with suppress(KubeError):
            async with aclosing(self._api.each(_NAMESPACES, what="namespaces")) as names:
                async for name in names:
                    found.append(name)
                    if len(found) == _MOST_LISTED:
                        break
        return sorted(found)

    async def _of_usual(self, names: Sequence[str]) -> tuple[str, ...]:
        """The first that the caller may make, and that fit in one header; a few are made at once."""
        found: list[str] = []
        for begin in range(0, len(names), MOST_TOKENS):
            part = names[begin : begin + MOST_TOKENS]
            found += filter(None, await asyncio.gather(*(self._of(each, _USUAL_ACCOUNT) for each in part)))
            if len(found) >= MOST_TOKENS:
                break
        first, *others = found[:MOST_TOKENS] or [""]
        ends = accumulate((len(each) + 1 for each in others), initial=len(first))
        return tuple(each for each, end in zip(found, ends, strict=False) if each is first or end <= _LONGEST_HEADER)

    async def _of(self, namespace: str, account: str) -> str:
        """A token lasts for minutes, and `top` for hours; who may not create one is asked again as seldom."""
        now = asyncio.get_running_loop().time()
        known = self._known.get((namespace, account))
        if known is None or now >= known.until:
            text = await self._new(namespace, account)
            known = self._known[namespace, account] = _Token(text, now + _TOKEN_SECONDS / 2)
        return known.text

    async def _new(self, namespace: str, account: str) -> str:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{account}/token"
        spec = {"audiences": [_AUDIENCE], "expirationSeconds": _TOKEN_SECONDS}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        body, headers = msgspec.json.encode(request), (("Content-Type", JSON),)
        answer = Answer(*await self._transport.answer("POST", path, what="create a token", body=body, headers=headers))
        status = answer.document.get("status") if answer.status in (200, 201) else None
        token = status.get("token") if isinstance(status, dict) else None
        return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""


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

    `api` asks the API server with the caller's own rights, and leads to the scheduler, who is shown `tokens`; both are
    None if the scheduler's URL was given. `source` has the credentials.
    """

    def __init__(
        self,
        transport: Transport,
        connection: Connection,
        source: str,
        namespace: str,
        *,
        api: ObjectClient | None = None,
        tokens: CallersTokens | None = None,
    ) -> None:
        self._transport = transport
        self.connection = connection
        self._source = source
        self._tokens = tokens
        self.namespace = namespace
        self.api = api

    async def get(self, path: str, query: Query = MappingProxyType({})) -> Answer:
        """Asks the scheduler."""
        if self._tokens is None:
            return await self._asked(path, query)
        asks_names = path != _CLUSTER and (path != _NODES or "holders" in query)
        shown, tried = await self._tokens.shown(_namespace_of(path, query) if asks_names else self.namespace)
        answer = await self._proxied(path, query, {TOKEN_HEADER: ",".join(shown)} if shown else {})
        if answer.status == _FORBIDDEN and not shown and "error" in answer.document:
            missing, advice = _may_not_read(tried)
            raise KubeError(missing, code=_FORBIDDEN, advice=advice)
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

    async def _proxied(self, path: str, query: Query, headers: Mapping[str, str]) -> Answer:
        namespace = quote(self.connection.scheduler_namespace, safe="")
        service = f"https:{quote(self.connection.service, safe='')}:https"
        whole = f"/api/v1/namespaces/{namespace}/services/{service}/proxy{path}"
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


def _namespace_of(path: str, query: Query) -> str:
    """The one whose pods are asked about, or how those begin; empty if none is named."""
    place, _, given = path.partition("?")
    pod = query.get("pod", "") or dict(parse_qsl(given)).get("pod", "")
    if place.startswith(_PODS_BELOW):
        pod = unquote(place.removeprefix(_PODS_BELOW))
    return query.get("namespace", "") or pod.partition("/")[0]


def _may_not_read(tried: Sequence[str]) -> tuple[str, str]:
    """For a caller who may make a token in none of these namespaces: what is missing, and what to do."""
    if not tried:
        return (
            "no such namespace is in a context of your kubeconfig, and you may list none",
            "name one whole with -n",
        )
    more = f", nor of {len(tried) - 1} more" if len(tried) > 1 else ""
    return (
        f"you may not read the pods of namespace {tried[0]}{more}",
        "ask for the ClusterRole edit there, or use -n with one of yours",
    )


@asynccontextmanager
async def opened(connection: Connection, *, login_s: float = 60.0) -> AsyncIterator[SchedulerClient]:
    """The client that the options name; `login_s`: how long an exec plugin of the kubeconfig may take."""
    source, credentials = _credentials(connection, login_s)
    facts = (await credentials.access()).facts
    transport = Transport(
        credentials,
        timeouts=Timeouts(connect=None, request=connection.request_timeout or None, login=login_s),
        refused=partial(caller_refusal, source),
        silent=partial(
            unreachable, urlsplit(facts.server).netloc, "--url" if connection.url else "--context or --kubeconfig"
        ),
    )
    namespace = connection.namespace or facts.namespace or "default"
    async with ObjectClient(transport) as api:
        if connection.url:
            yield SchedulerClient(transport, connection, source, namespace)
            return
        own = namespace if connection.is_for_one_namespace else facts.namespace or "default"
        tokens = CallersTokens(transport, api, connection, own)
        yield SchedulerClient(transport, connection, source, namespace, api=api, tokens=tokens)


def asked(connection: Connection, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
    """What a command asks. Warnings about credentials are not part of the answer."""

    async def ask() -> T:
        async with opened(connection) as client:
            return await question(client)

    log.open_log_for_command()
    return asyncio.run(ask())


def _credentials(connection: Connection, login_s: float) -> tuple[str, Credentials | GivenAccess]:
    """And what they are of, in sentences."""
    if connection.url:
        return "--url", GivenAccess(_given(connection, connection.url))
    kubeconfigs = connection.kubeconfigs()
    return source_of(kubeconfigs), Credentials(kubeconfigs, login_s=login_s)


def _given(connection: Connection, url: str) -> Access:
    token = connection.bearer_token()
    return Access(Facts(url.rstrip("/"), authorization=f"Bearer {token}" if token else ""), _tls(connection))


def _tls(connection: Connection) -> ssl.SSLContext | bool:
    if connection.insecure:
        return False
    try:
        return client_tls(ca_file=connection.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca-file: {connection.ca_file} cannot be used: {error}") from None
