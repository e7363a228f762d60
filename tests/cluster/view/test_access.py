"""Whose names a caller may read: by his token, asked once, never by accident."""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from deviceplugin.cluster.view.access import PROXIED, RIGHT, Viewers, token_in
from deviceplugin.cluster.view.rows import Shown
from deviceplugin.errors import KubeError
from deviceplugin.kube.cluster_client import Caller
from deviceplugin.model.cluster_view import NamesShown
from deviceplugin.serve.messages import HttpError
from tests.cluster.extender.conftest import Clock


def jwt(**claims: object) -> str:
    parts = (b'{"alg":"RS256"}', json.dumps(claims).encode(), b"signature")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


PEER = "10.0.0.7"
VIEW = jwt(aud=["vcuda"], sub="system:serviceaccount:gpu:vcuda-view")


@dataclass
class Server:
    """`rights`: what each caller may: RIGHT, or the namespaces whose pods he may list, "" for all."""

    tokens: Mapping[tuple[str, str], str] = field(default_factory=dict)
    rights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def caller_of(self, token: str, *, audience: str) -> Caller | None:
        self.asked.append(token)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        name = self.tokens.get((token, audience))
        return None if name is None else Caller(name)

    async def may_list_pods(self, caller: Caller, namespace: str) -> bool:
        return namespace in self.rights[caller.name]

    async def may_get(self, caller: Caller, path: str) -> bool:
        return path in self.rights[caller.name]


def server(**more: object) -> Server:
    made = Server(
        tokens={(VIEW, "vcuda"): "viewer", ("ann", ""): "ann", ("bob", ""): "bob", ("eve", ""): "eve"},
        rights={"viewer": (RIGHT,), "ann": ("",), "bob": ("team",), "eve": ()},
    )
    made.open.set()
    for name, value in more.items():
        setattr(made, name, value)
    return made


async def test_names_are_those_that_the_caller_may_list() -> None:
    cases = [
        (VIEW, "", NamesShown.ALL),
        ("ann", "", NamesShown.ALL),
        ("bob", "", NamesShown.NONE),
        ("bob", "team", NamesShown.NAMESPACE),
        ("bob", "other", NamesShown.NONE),
        ("eve", "team", NamesShown.NONE),
    ]
    viewers = Viewers(server())
    found = [(token, namespace, await viewers.shown(token, namespace, PEER)) for token, namespace, _ in cases]
    assert found == [(token, namespace, Shown(names, namespace)) for token, namespace, names in cases]


async def test_without_a_token_nobody_is_asked_and_no_names_are_shown() -> None:
    made = server()
    assert await Viewers(made).shown("", "team", PEER) == Shown(NamesShown.NONE)
    assert made.asked == []


async def test_a_token_that_the_api_server_does_not_know_is_refused_and_asked_once_a_minute() -> None:
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    for _ in range(3):
        with pytest.raises(HttpError, match="does not know this token") as refused:
            await viewers.shown("forged", "", PEER)
        assert refused.value.status == 401
    assert made.asked == ["forged"]
    clock.now += 61.0
    with pytest.raises(HttpError):
        await viewers.shown("forged", "", PEER)
    assert len(made.asked) == 2


async def test_a_right_that_is_taken_away_ends_within_a_minute() -> None:
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    assert (await viewers.shown("ann", "", PEER)).names is NamesShown.ALL
    made.rights = {"ann": ()}
    clock.now += 61.0
    assert (await viewers.shown("ann", "", PEER)).names is NamesShown.NONE


async def test_many_who_ask_the_same_at_once_cost_one_question() -> None:
    made = server(open=asyncio.Event())
    viewers = Viewers(made)
    asking = [asyncio.create_task(viewers.shown(VIEW, "", PEER)) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    made.open.set()
    found = await asyncio.gather(*asking[1:])
    assert {each.names for each in found} == {NamesShown.ALL}
    assert made.asked == [VIEW]


async def test_where_the_api_server_gives_no_answer_no_names_are_shown() -> None:
    made = server(error=KubeError("away"))
    viewers = Viewers(made)
    with pytest.raises(HttpError, match="cannot say now") as refused:
        await viewers.shown("ann", "", PEER)
    assert refused.value.status == 503
    made.error = None
    assert (await viewers.shown("ann", "", PEER)).names is NamesShown.ALL, "what was not answered is not kept"


@pytest.mark.parametrize(
    ("claims", "audience"),
    [
        ({"aud": ["vcuda"]}, "vcuda"),
        ({"aud": "vcuda"}, "vcuda"),
        ({"aud": ["https://kubernetes.default.svc"]}, ""),
        ({"aud": 7}, ""),
        ({}, ""),
    ],
)
async def test_a_token_is_asked_about_once_and_for_the_audience_that_it_names(
    claims: dict[str, object], audience: str
) -> None:
    token = jwt(**claims)
    made = server(tokens={(token, audience): "ann"})
    assert (await Viewers(made).shown(token, "", PEER)).names is NamesShown.ALL
    assert made.asked == [token]


async def test_what_is_no_json_web_token_is_for_the_api_server_to_know() -> None:
    for token in ("opaque", "a.b.c", "...", jwt()[:-9] + "=", f"x.{'W' * 12_000}.y"):
        made = server(tokens={(token, ""): "ann"})
        assert (await Viewers(made).shown(token, "", PEER)).names is NamesShown.ALL


async def test_wrong_tokens_end_with_their_peer_and_push_out_nobody() -> None:
    """96 connections with random tokens made the answer of every operator 503, of known ones too."""
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    assert (await viewers.shown("ann", "", PEER)).names is NamesShown.ALL
    statuses = set()
    for number in range(1500):
        with pytest.raises(HttpError) as refused:
            await viewers.shown(f"t{number}", "", "10.6.6.6")
        statuses.add(refused.value.status)
    assert (statuses, len(made.asked)) == ({401, 429}, 1 + 20)
    assert (await viewers.shown("ann", "", PEER)).names is NamesShown.ALL
    assert (await viewers.shown("ann", "", "10.6.6.6")).names is NamesShown.ALL, "of the same peer too"
    assert len(made.asked) == 21, "it was kept"
    assert (await viewers.shown("bob", "team", PEER)).names is NamesShown.NAMESPACE
    clock.now += 61.0
    with pytest.raises(HttpError, match="does not know this token"):
        await viewers.shown("late", "", "10.6.6.6")


async def test_a_peer_has_a_part_of_the_questions_and_others_are_served() -> None:
    made = server(open=asyncio.Event())
    viewers = Viewers(made)
    flood = [asyncio.create_task(viewers.shown(f"t{number}", "", "10.6.6.6")) for number in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in flood if task.done()]
    assert len(refused) == 200 - 16
    assert len(made.asked) == 4, "questions at once"
    other = asyncio.create_task(viewers.shown("ann", "", PEER))
    made.open.set()
    assert (await other).names is NamesShown.ALL
    await asyncio.gather(*flood, return_exceptions=True)


def test_the_token_is_in_one_of_two_headers() -> None:
    cases = [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"Authorization": "bearer  a.b-c_d~e+f/g="}, "a.b-c_d~e+f/g="),
        ({"Authorization": "Basic abc"}, ""),
        ({PROXIED: "abc"}, "abc"),
        ({"Authorization": "Bearer one", PROXIED: "two"}, "one"),
        ({}, ""),
    ]
    assert [(headers, token_in(headers)) for headers, _ in cases] == cases


def test_what_cannot_be_a_token_is_refused_before_anybody_is_asked() -> None:
    for token in ["a b", "a\nb", "ä", "x" * 20_000, '"']:
        with pytest.raises(HttpError):
            token_in({PROXIED: token})
