"""A replica passes questions on to the leader: once, to who shows a certificate of the same CA, within bounds."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from aiohttp import web

from deviceplugin.cluster.certificates.keypair import KeyPair, ServerTls, make_ca, make_certificate
from deviceplugin.cluster.http.server import FORWARDED
from deviceplugin.errors import KubeError
from deviceplugin.kube.cluster_client import Address
from deviceplugin.scheduler import leader_link
from deviceplugin.scheduler.leader_link import LeaderLink
from deviceplugin.scheduler.leadership import Leadership
from tests.waiting import until

NAME = "vcuda-scheduler.gpu.svc"
NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
CA = make_ca(NOW, DAY)
TOKEN = {"X-Vcuda-Token": "secret", "Authorization": ""}


class Following(Leadership):
    """Knows who leads, and is not it."""

    def __init__(self, leader: str) -> None:
        super().__init__("here")
        self._leader = leader

    @property
    def leader(self) -> str:
        return self._leader


@dataclass
class Leader:
    """What it was asked, and what it answers."""

    answer: tuple[int, bytes] = (200, b"{}")
    seen: list[web.Request] = field(default_factory=list)
    silent: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        await self.silent.wait()
        status, body = self.answer
        return web.Response(status=status, body=body)


@asynccontextmanager
async def serving(leader: Leader, ca: KeyPair = CA, name: str = NAME) -> AsyncIterator[Address]:
    leader.silent.set()
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", leader.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    tls = ServerTls(make_certificate([name], ca, NOW, DAY))
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.context)
    await site.start()
    assert site._server is not None
    try:
        yield Address(*site._server.sockets[0].getsockname()[:2])  # type: ignore[attr-defined]
    finally:
        leader.silent.set()
        await runner.cleanup()


def trusted() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=CA.chain.decode())
    return context


@asynccontextmanager
async def linked(addresses: Mapping[str, Address], leader: str = "a", **more: float) -> AsyncIterator[LeaderLink]:
    async def listed() -> Mapping[str, Address]:
        return addresses

    link = LeaderLink(Following(leader), listed, trusted, name=NAME, **more)  # type: ignore[arg-type]
    try:
        yield link
    finally:
        await link.close()


async def test_the_leader_is_asked_the_same_with_the_caller_s_token_and_by_whom() -> None:
    leader = Leader((404, b'{"error":"no"}'))
    async with serving(leader) as address, linked({"a": address}) as link:
        found = await link.ask("/view/nodes/a b%c", {"live": "1", "name": "x&y=ü"}, TOKEN)
    assert found == (404, b'{"error":"no"}')
    (request,) = leader.seen
    assert (request.path, dict(request.query)) == ("/view/nodes/a b%c", {"live": "1", "name": "x&y=ü"})
    assert (request.headers["X-Vcuda-Token"], request.headers[FORWARDED]) == ("secret", "here")
    assert "Authorization" not in request.headers


@pytest.mark.parametrize(
    ("leader", "headers"), [("here", {}), ("", {}), ("a", {FORWARDED: "b"})], ids=["leads", "nobody", "passed on"]
)
async def test_nobody_is_asked_by_the_leader_without_one_or_twice(leader: str, headers: Mapping[str, str]) -> None:
    server = Leader()
    async with serving(server) as address, linked({"a": address, "here": address}, leader) as link:
        assert await link.ask("/view/cluster", {}, headers) is None
    assert server.seen == []


async def test_a_token_goes_to_nobody_with_a_certificate_of_another_ca_or_name() -> None:
    server = Leader()
    for ca, name in ((make_ca(NOW, DAY), NAME), (CA, "vcuda-scheduler.other.svc")):
        async with serving(server, ca, name) as address, linked({"a": address}) as link:
            assert await link.ask("/view/cluster", {}, TOKEN) is None
    assert server.seen == []


async def test_a_leader_that_is_silent_away_unknown_or_says_too_much_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_link, "_LARGEST", 100)
    server = Leader()
    async with serving(server) as address, linked({"a": address}, within_s=0.3) as link:
        server.silent.clear()
        assert await link.ask("/view/cluster", {}, {}) is None
        server.silent.set()
        server.answer = (200, b"x" * 101)
        assert await link.ask("/view/cluster", {}, {}) is None
        server.answer = (200, b"x" * 100)
        assert await link.ask("/view/cluster", {}, {}) == (200, b"x" * 100)
    async with linked({"a": address}) as link:
        assert await link.ask("/view/cluster", {}, {}) is None
    async with linked({"b": address}) as link:
        assert await link.ask("/view/cluster", {}, {}) is None


def has_seen(server: Leader, questions: int) -> bool:
    return len(server.seen) >= questions


def asking(link: LeaderLink, *callers: str) -> list[asyncio.Task[tuple[int, bytes] | None]]:
    return [asyncio.create_task(link.ask("/view/cluster", {}, {}, caller=each)) for each in callers]


async def test_a_few_are_asked_at_once_and_who_finds_no_place_in_time_has_no_answer() -> None:
    server = Leader()
    async with serving(server) as address, linked({"a": address}, place_within_s=0.2) as link:
        server.silent.clear()
        under_way = asking(link, *"aabbccdd")
        await until(partial(has_seen, server, 8))
        assert await link.ask("/view/cluster", {}, {}, caller="e") is None
        assert len(server.seen) == 8
        server.silent.set()
        assert await asyncio.gather(*under_way) == [(200, b"{}")] * 8
        assert await link.ask("/view/cluster", {}, {}, caller="e") == (200, b"{}")


async def test_a_caller_has_two_of_these_however_many_it_asks_for_and_keeps_no_other_one_waiting() -> None:
    """A tenant with eight slow questions made the others' answers those of a replica that does not lead."""
    server = Leader()
    async with serving(server) as address, linked({"a": address}) as link:
        server.silent.clear()
        slow = asking(link, *["mallory"] * 40)
        await until(partial(has_seen, server, 2))
        others = asking(link, "ann", "bob", "")
        await until(partial(has_seen, server, 5))
        await asyncio.sleep(0.1)
        assert len(server.seen) == 5
        server.silent.set()
        assert await asyncio.gather(*others, *slow) == [(200, b"{}")] * 43, "within the time for a place all have one"


async def test_who_leaves_while_he_waits_or_asks_takes_no_place_with_him() -> None:
    server = Leader()
    async with serving(server) as address, linked({"a": address}) as link:
        server.silent.clear()
        left = asking(link, *["ann"] * 4)
        await until(partial(has_seen, server, 2))
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        again = asking(link, *"aabbccdd")
        await until(partial(has_seen, server, 2 + 8))
        server.silent.set()
        assert await asyncio.gather(*again) == [(200, b"{}")] * 8


async def test_where_the_replicas_cannot_be_listed_there_is_no_answer_and_the_next_question_lists_again() -> None:
    server, calls = Leader(), 0
    async with serving(server) as address:

        async def listed() -> Mapping[str, Address]:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise KubeError("away")
            return {"a": address}

        link = LeaderLink(Following("a"), listed, trusted, name=NAME)
        assert await link.ask("/view/cluster", {}, {}) is None
        assert await link.ask("/view/cluster", {}, {}) == (200, b"{}")
        assert await link.ask("/view/cluster", {}, {}) == (200, b"{}")
        await link.close()
    assert calls == 2
