"""Whose pods a caller may read: it shows a bearer token, and the API server says who it is and what it may list.

In: tokens from a request's headers, the namespace that is asked for, the peer's address. Out: whether it may read the
pods of all namespaces; an `HttpError`, 403 if it may read not even those of the namespace, 401 for a token that the API
server does not know, 429 after many of these from one peer, 503 if it cannot be asked: nothing is shown because nobody
answered. Answers are kept for a minute, by the token's hash, those about unknown tokens apart, so that wrong ones push
out no right one. The same question is asked once at a time. A few questions are under way at once, and of one peer a
part of these. A request may show a token of each of several namespaces: the first counts for all that is asked, each
other one for its own namespace alone. They are looked up one after the other, up to the first that is unknown, so that
one request costs its peer no larger part than with one token.

A token for the audience `vcuda` of a service account is made by who may make tokens of that account, or pods that have
one mounted: the account's namespace is his to use, so he reads about its pods. Tokens that every pod has mounted are
for the API server, and show nothing by themselves.
"""

import asyncio
import base64
import enum
import hashlib
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

from deviceplugin.cluster.http.server import unavailable
from deviceplugin.errors import VcudaError
from deviceplugin.kube.cluster_client import Caller
from deviceplugin.model.cluster_view import MOST_TOKENS, TOKEN_HEADER
from deviceplugin.serve.messages import HttpError

K = TypeVar("K")
V = TypeVar("V")
AUDIENCE = "vcuda"
RIGHT = "/vcuda/view"
"""A path in a ClusterRole's nonResourceURLs: the right to read about all pods here, and nothing anywhere else."""
FORBIDDEN = 403
_KEPT_S = 60.0
_MOST = 4000
_MOST_NAMESPACES = 32
_LONGEST_TOKEN = 16 << 10
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)
_AT_ONCE = 4
_MOST_ASKING, _MOST_OF_PEER = 256, 16
_MOST_WRONG = 20
"""Tokens of one peer that the API server does not know, in a minute."""
_WAIT_S = 5.0
_SHOWS_NONE = "{} are shown with a token only; give --token-file to vcuda, or send a header Authorization: Bearer"
_NOT_OF_ONE = "you may not read {}; ask for the ClusterRole edit there, or use -n with one of yours"
_NOT_OF_ALL = "you may not read {}; use -n with one of yours, or ask for the chart's value operators.subjects"
_Question = tuple[bytes, str]


class _Pods(enum.Enum):
    """Which pods a caller may read: those of all namespaces, those of the namespace that it asked for, or none."""

    ALL = "all"
    NAMESPACE = "namespace"
    NONE = "none"


class _Owner(msgspec.Struct, frozen=True):
    """Of a token: its name, and what it may read."""

    name: str
    pods: _Pods


class Reviews(Protocol):
    """The API server's answers; `kube.cluster_client` has them."""

    async def caller_of(self, token: str, *, audience: str) -> Caller | None: ...
    async def may_list_pods(self, caller: Caller, namespace: str) -> bool: ...
    async def may_get(self, caller: Caller, path: str) -> bool: ...


def tokens_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """One of Authorization; else those of our own header, between commas. Empty: the caller shows none."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    shown = [bearer] if scheme.lower() == "bearer" else headers.get(TOKEN_HEADER, "").split(",")
    tokens = tuple(dict.fromkeys(filter(None, map(str.strip, shown))))
    if len(tokens) > MOST_TOKENS:
        raise HttpError(400, "malformed", f"more than {MOST_TOKENS} tokens; show one for each of fewer namespaces")
    if any(len(each) > _LONGEST_TOKEN or not _TOKEN.fullmatch(each) for each in tokens):
        raise _refused()
    return tokens


def token_for(namespace: str, tokens: Sequence[str]) -> str:
    """The one of that namespace, else the first; empty if there is none."""
    return _by_home(tokens).get(namespace, tokens[0]) if tokens else ""


class Viewers:
    """`clock` is monotonic."""

    def __init__(self, reviews: Reviews, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = reviews
        self._clock = clock
        self._known = _Kept[_Question, _Owner](clock)
        self._unknown = _Kept[_Question, None](clock)
        self._wrong = _Kept[str, int](clock)
        self._asking: dict[_Question, asyncio.Task[_Owner | None]] = {}
        self._asking_of = Counter[str]()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def reads_all(self, token: str, namespace: str, peer: str) -> bool:
        """False: of this namespace only. An empty `namespace` asks for all. Raises an HttpError."""
        if not token:
            raise _forbidden(_SHOWS_NONE.format(_pods_of(namespace)))
        pods = (await self._owner(token, namespace, peer)).pods
        if pods is _Pods.NONE:
            raise _forbidden((_NOT_OF_ONE if namespace else _NOT_OF_ALL).format(_pods_of(namespace)))
        return pods is _Pods.ALL

    async def owner(self, token: str, peer: str) -> str:
        """The namespace of a service account, which can have many of them; else the user. Raises an HttpError."""
        name = (await self._owner(token, "", peer)).name
        home = _home_of(name)
        return f"namespace {home}" if home else f"user {name}"

    async def readable(self, tokens: Sequence[str], namespaces: Iterable[str], peer: str) -> frozenset[str]:
        """Of the first of these the ones whose pods the caller may read, for whom `reads_all` of all was refused.

        Those that the tokens say they are of come before them, also where they are none of them.
        """
        own = _by_home(tokens)
        asked = islice(dict.fromkeys([*own, *namespaces]), _MOST_NAMESPACES)
        return frozenset([each for each in asked if await self._reads(own.get(each, tokens[0]), each, peer)])

    async def _reads(self, token: str, namespace: str, peer: str) -> bool:
        try:
            await self.reads_all(token, namespace, peer)
        except HttpError as error:
            if error.status != FORBIDDEN:
                raise
            return False
        return True

    async def _owner(self, token: str, namespace: str, peer: str) -> _Owner:
        question = (hashlib.sha256(token.encode()).digest(), namespace)
        if question in self._unknown:
            raise _refused()
        found = self._known.get(question) or await self._ask(question, token, peer)
        if found is None:
            raise _refused()
        return found

    async def _ask(self, question: _Question, token: str, peer: str) -> _Owner | None:
        """One task for all who ask the same; it goes on if one of them leaves."""
        task = self._asking.get(question)
        if task is None:
            self._require_part(peer)
            task = self._asking[question] = asyncio.create_task(self._review(question, token))
            self._asking_of[peer] += 1
            task.add_done_callback(lambda done: self._keep(question, peer, done))
        try:
            async with asyncio.timeout(_WAIT_S):
                return await asyncio.shield(task)
        except (VcudaError, TimeoutError):
            raise unavailable("the API server cannot say now whose token this is; try again") from None

    def _require_part(self, peer: str) -> None:
        if (self._wrong.get(peer) or 0) >= _MOST_WRONG:
            sentence = "too many tokens from this address that the API server does not know; try again in a minute"
            raise HttpError(429, "unauthorized", sentence)
        if len(self._asking) >= _MOST_ASKING or self._asking_of[peer] >= _MOST_OF_PEER:
            raise unavailable("too many tokens are being looked up; try again")

    def _keep(self, question: _Question, peer: str, done: asyncio.Task[_Owner | None]) -> None:
        del self._asking[question]
        self._asking_of[peer] -= 1
        if not self._asking_of[peer]:
            del self._asking_of[peer]
        if done.cancelled() or done.exception() is not None:
            return
        if (found := done.result()) is not None:
            self._known.put(question, found)
            return
        self._unknown.put(question, None)
        self._wrong.put(peer, (self._wrong.get(peer) or 0) + 1)

    async def _review(self, question: _Question, token: str) -> _Owner | None:
        hashed, namespace = question
        audience = _audience_of(token)
        async with self._slots:
            caller = await self._reviews.caller_of(token, audience=audience)
            if caller is None:
                return None
            of_all = self._known.get((hashed, ""))
            is_refused_all = of_all is not None and of_all.pods is _Pods.NONE
            if not is_refused_all and await self._reads_everything(caller):
                return _Owner(caller.name, _Pods.ALL)
            is_home = audience == AUDIENCE and _home_of(caller.name) == namespace
            if namespace and (is_home or await self._reviews.may_list_pods(caller, namespace)):
                return _Owner(caller.name, _Pods.NAMESPACE)
            return _Owner(caller.name, _Pods.NONE)

    async def _reads_everything(self, caller: Caller) -> bool:
        return await self._reviews.may_get(caller, RIGHT) or await self._reviews.may_list_pods(caller, "")


class _Kept(Generic[K, V]):
    """The last values by key, each for a minute from when it was put."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        until, _ = self._values.get(key, (0.0, None))
        return until > self._clock()

    def get(self, key: K) -> V | None:
        return self._values[key][1] if key in self else None

    def put(self, key: K, value: V) -> None:
        self._values[key] = (self._clock() + _KEPT_S, value)
        self._values.move_to_end(key)
        while len(self._values) > _MOST:
            self._values.popitem(last=False)


class _Claims(msgspec.Struct):
    """What a JSON web token says of itself, which proves nothing: its audiences and its owner (RFC 7519, 4.1)."""

    aud: str | list[str] = ""
    sub: str = ""


def _claims_of(token: str) -> _Claims:
    payload = token.split(".")[1:2]
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(f"{''.join(payload)}=="), type=_Claims)
    except (ValueError, msgspec.MsgspecError, RecursionError):  # no JSON web token
        return _Claims()


def _by_home(tokens: Sequence[str]) -> dict[str, str]:
    """By the namespace that each token says it is of, the first of each in their order."""
    found: dict[str, str] = {}
    for each in tokens:
        found.setdefault(_home_of(_claims_of(each).sub), each)
    found.pop("", None)
    return found


def _audience_of(token: str) -> str:
    """For which audience the API server is asked about it."""
    aud = _claims_of(token).aud
    return AUDIENCE if AUDIENCE in (aud if isinstance(aud, list) else [aud]) else ""


def _home_of(account: str) -> str:
    """The namespace of a service account; empty for another user."""
    parts = account.split(":")
    return parts[2] if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else ""


def _pods_of(namespace: str) -> str:
    return f"the pods of {f'namespace {namespace[:80]}' if namespace else 'all namespaces'}"


def _forbidden(sentence: str) -> HttpError:
    return HttpError(FORBIDDEN, "unauthorized", sentence)


def _refused() -> HttpError:
    sentence = "the API server does not know this token, or it has expired; ask for a new one"
    return HttpError(401, "unauthorized", sentence)
