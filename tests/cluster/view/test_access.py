"""Whose names a caller may read: by his token, asked once, never by accident."""

import asyncio
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
        tokens={("view", "vcuda"): "viewer", ("ann", ""): "ann", ("bob", ""): "bob", ("eve", ""): "eve"},
        rights={"viewer": (RIGHT,), "ann": ("",), "bob": ("team",), "eve": ()},
    )
    made.open.set()
    for name, value in more.items():
        setattr(made, name, value)
    return made


async def test_names_are_those_that_the_caller_may_list() -> None:
    cases = [
        ("view", "", NamesShown.ALL),
        ("ann", "", NamesShown.ALL),
        ("bob", "", NamesShown.NONE),
        ("bob", "team", NamesShown.NAMESPACE),
        ("bob", "other", NamesShown.NONE),
        ("eve", "team", NamesShown.NONE),
    ]
    viewers = Viewers(server())
    found = [(token, namespace, await viewers.shown(token, namespace)) for token, namespace, _ in cases]
    assert found == [(token, namespace, Shown(names, namespace)) for token, namespace, names in cases]


async def test_without_a_token_nobody_is_asked_and_no_names_are_shown() -> None:
    made = server()
    assert await Viewers(made).shown("", "team") == Shown(NamesShown.NONE)
    assert made.asked == []


async def test_a_token_that_the_api_server_does_not_know_is_refused_and_asked_once_a_minute() -> None:
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    for _ in range(3):
        with pytest.raises(HttpError, match="does not know this token") as refused:
            await viewers.shown("forged", "")
        assert refused.value.status == 401
    assert made.asked == ["forged", "forged"], "for vcuda's audience and for its own"
    clock.now += 61.0
    with pytest.raises(HttpError):
        await viewers.shown("forged", "")
    assert len(made.asked) == 4


async def test_a_right_that_is_taken_away_ends_within_a_minute() -> None:
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    assert (await viewers.shown("ann", "")).names is NamesShown.ALL
    made.rights = {"ann": ()}
    clock.now += 61.0
    assert (await viewers.shown("ann", "")).names is NamesShown.NONE


async def test_many_who_ask_the_same_at_once_cost_one_question() -> None:
    made = server(open=asyncio.Event())
    viewers = Viewers(made)
    asking = [asyncio.create_task(viewers.shown("view", "")) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    made.open.set()
    found = await asyncio.gather(*asking[1:])
    assert {each.names for each in found} == {NamesShown.ALL}
    assert made.asked == ["view"]


async def test_where_the_api_server_gives_no_answer_no_names_are_shown() -> None:
    made = server(error=KubeError("away"))
    viewers = Viewers(made)
    with pytest.raises(HttpError, match="cannot say now") as refused:
        await viewers.shown("ann", "")
    assert refused.value.status == 503
    made.error = None
    assert (await viewers.shown("ann", "")).names is NamesShown.ALL, "what was not answered is not kept"


async def test_a_flood_of_tokens_is_refused_and_known_callers_are_served() -> None:
    made = server(open=asyncio.Event())
    viewers = Viewers(made)
    flood = [asyncio.create_task(viewers.shown(f"t{number}", "")) for number in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in flood if task.done()]
    assert len(refused) == 200 - 64
    assert len(made.asked) == 4, "questions at once"
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    made.open.set()


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
