"""Passes explanations and views on from a replica that does not lead to the one that does.

In: a path, a query, the caller's headers; where the replicas are, and whom to trust. Out: the leader's answer; None
where it cannot be had, and this replica answers itself or says so. Invariants: one hop, because who is asked so answers
itself, whether it leads or not; a caller's token goes only to a replica whose certificate is of the same CA; a few at a
time, each within a deadline and of a bounded size.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping

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
    ) -> None:
        self._leadership = leadership
        self._list = addresses
        self._trusted = trusted
        self._name = name
        self._clock = clock
        self._within_s = within_s
        self._addresses: Mapping[str, Address] = {}
        self._listed = -_ADDRESSES_GOOD_FOR_S
        self._listing = asyncio.Lock()
        self._asking = 0
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Answered | None:
        """None also where this replica leads, was itself asked so, or has enough questions under way."""
        leader = self._leadership.leader
        if self._leadership.leads or not leader or headers.get(FORWARDED) or self._asking >= _AT_ONCE:
            return None
        self._asking += 1
        try:
            async with asyncio.timeout(self._within_s):
                return await self._ask(leader, str(URL.build(path=path, query=query)), headers)
        except (VcudaError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self._listed = -_ADDRESSES_GOOD_FOR_S
            log.warning("leader_unreachable", leader=leader, error=str(error) or "no answer in time")
            return None
        finally:
            self._asking -= 1

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

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
