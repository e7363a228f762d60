"""Passes explanations and views on from a replica that does not lead to the one that does.

In: a path, a query, the caller's headers and name; where the replicas are, and whom to trust. Out: the leader's
answer; None where it cannot be had, and this replica answers itself or says so. Invariants: one hop, because who is
asked so answers itself, whether it leads or not; a caller's token goes only to a replica whose certificate is of the
same CA; a few at a time, each within a deadline and of a bounded size. Of these a caller has a part, also to wait for,
so another one waits for no more than these parts; and nobody waits long, because the replica can answer itself.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from weakref import WeakValueDictionary

import aiohttp
import structlog
from yarl import URL

from deviceplugin.cluster.http.server import FORWARDED, TOKENS
from deviceplugin.errors import VcudaError
from deviceplugin.kube.cluster_client import Address
from deviceplugin.kube.transport import opened_session, read_within
from deviceplugin.scheduler.leadership import Leadership

log = structlog.get_logger("vcuda.leadership")
_AT_ONCE = 8
_OF_CALLER = 2
_PLACE_WITHIN_S = 2.0
_WITHIN_S = 10.0
_LARGEST = 16 << 20
_ADDRESSES_GOOD_FOR_S = 30.0
_LISTED_EVERY_S = 1.0
Answered = tuple[int, bytes]


class LeaderLink:
    """`addresses` lists the replicas by name. `name` is in the certificate of each. Call `close` at the end."""

    def __init__(
        self,
        leadership: Leadership,
        addresses: Callable[[], Awaitable[Mapping[str, Address]]],
        trusted: Callable[[], ssl.SSLContext],
        *,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        within_s: float = _WITHIN_S,
        place_within_s: float = _PLACE_WITHIN_S,
    ) -> None:
        self._leadership = leadership
        self._list = addresses
        self._trusted = trusted
        self._name = name
        self._clock = clock
        self._within_s = within_s
        self._place_within_s = place_within_s
        self._addresses: Mapping[str, Address] = {}
        self._listed = -_ADDRESSES_GOOD_FOR_S
        self._listing = asyncio.Lock()
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._parts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # of those who wait or ask
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], *, caller: str = ""
    ) -> Answered | None:
        """None also where this replica leads, was itself asked so, or has no place in time. `caller` is empty if
        unknown."""
        leader = self._leadership.leader
        if self._leadership.leads or not leader or headers.get(FORWARDED):
            return None
        async with self._place(caller) as is_had:
            return await self._answer(leader, str(URL.build(path=path, query=query)), headers) if is_had else None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _place(self, caller: str) -> AsyncIterator[bool]:
        """Whether there was one in time."""
        is_had = False
        part = self._parts.setdefault(caller, asyncio.Semaphore(_OF_CALLER))
        async with AsyncExitStack() as taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._place_within_s):
                    await taken.enter_async_context(part)
                    await taken.enter_async_context(self._places)
                    is_had = True
            yield is_had

    async def _answer(self, leader: str, target: str, headers: Mapping[str, str]) -> Answered | None:
        try:
            async with asyncio.timeout(self._within_s):
                return await self._ask(leader, target, headers)
        except (VcudaError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self._listed = -_ADDRESSES_GOOD_FOR_S
            log.warning("leader_unreachable", leader=leader, error=str(error) or "no answer in time")
            return None

    async def _ask(self, leader: str, target: str, headers: Mapping[str, str]) -> Answered | None:
        address = await self._address(leader)
        if address is None:
            return None
        if self._session is None:
            self._session = opened_session(_AT_ONCE)
        shown = {name: headers[name] for name in TOKENS if headers.get(name)}
        async with self._session.get(
            URL(address.url(target, scheme="https"), encoded=True),
            headers={**shown, FORWARDED: self._leadership.identity},
            ssl=self._trusted(),
            server_hostname=self._name,
            allow_redirects=False,
        ) as answer:
            body = await read_within(answer, _LARGEST)
        return None if body is None else (answer.status, body)

    async def _address(self, leader: str) -> Address | None:
        async with self._listing:
            age = self._clock() - self._listed
            if age >= _ADDRESSES_GOOD_FOR_S or (leader not in self._addresses and age >= _LISTED_EVERY_S):
                self._addresses, self._listed = await self._list(), self._clock()
        return self._addresses.get(leader)
