"""Whose names a caller may read: it shows a bearer token, and the API server says who it is and what it may list.

In: a token from a request's headers, and the namespace that was asked for. Out: `Shown`; an `HttpError`, 401 for a
token that the API server does not know, 503 where it cannot be asked: never names because nobody answered. Answers are
kept for a minute, by the token's hash; the same question is asked once at a time. A few questions are under way at
once, whatever strangers send.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from deviceplugin.cluster.http.verbs import unavailable
from deviceplugin.cluster.view.rows import Shown
from deviceplugin.errors import VcudaError
from deviceplugin.kube.cluster_client import Caller
from deviceplugin.model.cluster_view import NamesShown
from deviceplugin.serve.messages import HttpError

AUDIENCE = "vcuda"
RIGHT = "/vcuda/view"
"""A path in a ClusterRole's nonResourceURLs: the right to read all names here, and nothing anywhere else."""
PROXIED = "X-Vcuda-Token"
_KEPT_S = 60.0
_MOST = 1000
_LONGEST_TOKEN = 16 << 10
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)
_AT_ONCE = 4
_MOST_ASKING = 64
_WAIT_S = 5.0


class Reviews(Protocol):
    """The API server's answers; `kube.cluster_client` has them."""

    async def caller_of(self, token: str, *, audience: str) -> Caller | None: ...
    async def may_list_pods(self, caller: Caller, namespace: str) -> bool: ...
    async def may_get(self, caller: Caller, path: str) -> bool: ...


def token_in(headers: Mapping[str, str]) -> str:
    """The API server's proxy removes Authorization, so there is a header of our own. Empty: the caller shows none."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    token = bearer.strip() if scheme.lower() == "bearer" else headers.get(PROXIED, "").strip()
    if len(token) > _LONGEST_TOKEN or (token and not _TOKEN.fullmatch(token)):
        raise _refused()
    return token


class Viewers:
    """`clock` is monotonic."""

    def __init__(self, reviews: Reviews, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = reviews
        self._clock = clock
        self._known: OrderedDict[tuple[bytes, str], tuple[float, NamesShown | None]] = OrderedDict()
        self._asking: dict[tuple[bytes, str], asyncio.Task[NamesShown | None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def shown(self, token: str, namespace: str) -> Shown:
        if not token:
            return Shown(NamesShown.NONE)
        question = (hashlib.sha256(token.encode()).digest(), namespace)
        kept = self._known.get(question)
        if kept is None or kept[0] <= self._clock():
            names = await self._ask(question, token)
        else:
            names = kept[1]
        if names is None:
            raise _refused()
        return Shown(names, namespace)

    async def _ask(self, question: tuple[bytes, str], token: str) -> NamesShown | None:
        """One task for all who ask the same; it goes on where one of them leaves."""
        task = self._asking.get(question)
        if task is None:
            if len(self._asking) >= _MOST_ASKING:
                raise unavailable("too many tokens are being looked up; try again")
            task = self._asking[question] = asyncio.create_task(self._review(token, question[1]))
            task.add_done_callback(lambda done: self._keep(question, done))
        try:
            async with asyncio.timeout(_WAIT_S):
                return await asyncio.shield(task)
        except (VcudaError, TimeoutError):
            raise unavailable("the API server cannot say now whose token this is; try again") from None

    def _keep(self, question: tuple[bytes, str], done: asyncio.Task[NamesShown | None]) -> None:
        del self._asking[question]
        if done.cancelled() or done.exception() is not None:
            return
        self._known[question] = (self._clock() + _KEPT_S, done.result())
        self._known.move_to_end(question)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    async def _review(self, token: str, namespace: str) -> NamesShown | None:
        async with self._slots:
            caller = await self._reviews.caller_of(token, audience=AUDIENCE)
            caller = caller or await self._reviews.caller_of(token, audience="")
            if caller is None:
                return None
            if await self._reviews.may_get(caller, RIGHT) or await self._reviews.may_list_pods(caller, ""):
                return NamesShown.ALL
            if namespace and await self._reviews.may_list_pods(caller, namespace):
                return NamesShown.NAMESPACE
            return NamesShown.NONE


def _refused() -> HttpError:
    sentence = "the API server does not know this token, or it has expired; ask for a new one"
    return HttpError(401, "unauthorized", sentence)
