"""Whose pods a caller may read about: by his token, asked once, never by accident."""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from deviceplugin.cluster.view.access import RIGHT, Viewers, token_for, tokens_in
from deviceplugin.errors import KubeError
from deviceplugin.kube.cluster_client import Caller
from deviceplugin.model.cluster_view import TOKEN_HEADER
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


async def test_who_may_list_the_pods_reads_about_them(subtests: pytest.Subtests) -> None:
    viewers = Viewers(server())
    allowed = [(VIEW, "", True), (VIEW, "team", True), ("ann", "", True), ("ann", "team", True), ("bob", "team", False)]
    found = [(token, namespace, await viewers.reads_all(token, namespace, PEER)) for token, namespace, _ in allowed]
    assert found == allowed
    for token, namespace, where in [("bob", "", "all namespaces"), ("bob", "x", "namespace x"), ("eve", "team", "")]:
        with subtests.test(token=token, namespace=namespace), pytest.raises(HttpError) as refused:
            await viewers.reads_all(token, namespace, PEER)
        assert refused.value.status == 403
        assert where in refused.value.sentence
        assert refused.value.sentence.startswith("you may not read the pods of ")
        assert "use -n with one of yours" in refused.value.sentence


async def test_a_token_for_vcuda_of_an_account_shows_the_pods_of_its_namespace() -> None:
    """Those who may make it, or pods in the namespace, act for the namespace; the account itself has no right."""
    name = "system:serviceaccount:team:default"
    ours, mounted = jwt(aud=["vcuda"], sub=name), jwt(aud=["https://kubernetes"], sub=name)
    made = server(tokens={(ours, "vcuda"): name, (mounted, ""): name}, rights={name: ()})
    viewers = Viewers(made)
    assert await viewers.reads_all(ours, "team", PEER) is False
    assert await viewers.readable((ours,), ("a", "b"), PEER) == {"team"}, "also where none of its pods is known"
    for token, namespace in [(ours, "other"), (ours, ""), (mounted, "team"), (mounted, "")]:
        with pytest.raises(HttpError) as refused:
            await viewers.reads_all(token, namespace, PEER)
        assert refused.value.status == 403
    assert await viewers.readable((mounted,), ("team",), PEER) == frozenset()


async def test_what_a_token_says_of_itself_proves_nothing() -> None:
    """The API server says that it is another's, and its namespace counts."""
    lies = jwt(aud=["vcuda"], sub="system:serviceaccount:victim:default")
    name = "system:serviceaccount:team:default"
    viewers = Viewers(server(tokens={(lies, "vcuda"): name}, rights={name: ()}))
    assert await viewers.readable((lies,), ("victim", "team"), PEER) == {"team"}
    for user in ("system:serviceaccount:victim", "serviceaccount:victim:x", "ann:serviceaccount:victim:x"):
        viewers = Viewers(server(tokens={(lies, "vcuda"): user}, rights={user: ()}))
        assert await viewers.readable((lies,), ("victim",), PEER) == frozenset()


async def test_without_a_token_nobody_is_asked_and_nothing_is_shown() -> None:
    made = server()
    with pytest.raises(HttpError, match="with a token only; give --token-file") as refused:
        await Viewers(made).reads_all("", "team", PEER)
    assert (refused.value.status, made.asked) == (403, [])


async def test_a_token_that_the_api_server_does_not_know_is_refused_and_asked_once_a_minute() -> None:
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    for _ in range(3):
        with pytest.raises(HttpError, match="does not know this token") as refused:
            await viewers.reads_all("forged", "", PEER)
        assert refused.value.status == 401
    assert made.asked == ["forged"]
    clock.now += 61.0
    with pytest.raises(HttpError):
        await viewers.reads_all("forged", "", PEER)
    assert len(made.asked) == 2


async def test_a_right_that_is_taken_away_ends_within_a_minute() -> None:
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    assert await viewers.reads_all("ann", "", PEER)
    made.rights = {"ann": ()}
    clock.now += 61.0
    with pytest.raises(HttpError, match="may not"):
        await viewers.reads_all("ann", "", PEER)


async def test_many_who_ask_the_same_at_once_cost_one_question() -> None:
    made = server(open=asyncio.Event())
    viewers = Viewers(made)
    asking = [asyncio.create_task(viewers.reads_all(VIEW, "", PEER)) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    made.open.set()
    found = await asyncio.gather(*asking[1:])
    assert set(found) == {True}
    assert made.asked == [VIEW]


async def test_where_the_api_server_gives_no_answer_nothing_is_shown() -> None:
    made = server(error=KubeError("away"))
    viewers = Viewers(made)
    with pytest.raises(HttpError, match="cannot say now") as refused:
        await viewers.reads_all("ann", "", PEER)
    assert refused.value.status == 503
    made.error = None
    assert await viewers.reads_all("ann", "", PEER), "what was not answered is not kept"


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
    assert await Viewers(made).reads_all(token, "", PEER)
    assert made.asked == [token]


async def test_what_is_no_json_web_token_is_for_the_api_server_to_know() -> None:
    for token in ("opaque", "a.b.c", "...", jwt()[:-9] + "=", f"x.{'W' * 12_000}.y"):
        made = server(tokens={(token, ""): "ann"})
        assert await Viewers(made).reads_all(token, "", PEER)


async def test_wrong_tokens_end_with_their_peer_and_push_out_nobody() -> None:
    """96 connections with random tokens made the answer of every operator 503, of known ones too."""
    made, clock = server(), Clock()
    viewers = Viewers(made, clock=clock)
    assert await viewers.reads_all("ann", "", PEER)
    statuses = set()
    for number in range(1500):
        with pytest.raises(HttpError) as refused:
            await viewers.reads_all(f"t{number}", "", "10.6.6.6")
        statuses.add(refused.value.status)
    assert (statuses, len(made.asked)) == ({401, 429}, 1 + 20)
    assert await viewers.reads_all("ann", "", PEER)
    assert await viewers.reads_all("ann", "", "10.6.6.6"), "of the same peer too"
    assert len(made.asked) == 21, "it was kept"
    assert not await viewers.reads_all("bob", "team", PEER)
    clock.now += 61.0
    with pytest.raises(HttpError, match="does not know this token"):
        await viewers.reads_all("late", "", "10.6.6.6")


async def test_a_peer_has_a_part_of_the_questions_and_others_are_served() -> None:
    made = server(open=asyncio.Event())
    viewers = Viewers(made)
    flood = [asyncio.create_task(viewers.reads_all(f"t{number}", "", "10.6.6.6")) for number in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in flood if task.done()]
    assert len(refused) == 200 - 16
    assert len(made.asked) == 4, "questions at once"
    other = asyncio.create_task(viewers.reads_all("ann", "", PEER))
    made.open.set()
    assert await other
    await asyncio.gather(*flood, return_exceptions=True)


def test_the_tokens_are_in_one_of_two_headers() -> None:
    cases: list[tuple[dict[str, str], tuple[str, ...]]] = [
        ({"Authorization": "Bearer abc"}, ("abc",)),
        ({"Authorization": "bearer  a.b-c_d~e+f/g="}, ("a.b-c_d~e+f/g=",)),
        ({"Authorization": "Basic abc"}, ()),
        ({TOKEN_HEADER: "abc"}, ("abc",)),
        ({TOKEN_HEADER: "b, a,b,,c ,"}, ("b", "a", "c")),
        ({"Authorization": "Bearer one", TOKEN_HEADER: "two"}, ("one",)),
        ({}, ()),
    ]
    assert [(headers, tokens_in(headers)) for headers, _ in cases] == cases


def test_what_cannot_be_a_token_is_refused_before_anybody_is_asked() -> None:
    for token in ["a b", "a\nb", "ä", "x" * 20_000, '"', "good,a b"]:
        with pytest.raises(HttpError):
            tokens_in({TOKEN_HEADER: token})
    with pytest.raises(HttpError):
        tokens_in({"Authorization": "Bearer a,b"})
    assert len(tokens_in({TOKEN_HEADER: ",".join(f"t{number}" for number in range(8))})) == 8
    with pytest.raises(HttpError, match="more than 8 tokens") as refused:
        tokens_in({TOKEN_HEADER: ",".join(f"t{number}" for number in range(9))})
    assert refused.value.status == 400


def account(namespace: str, name: str = "default") -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def of_accounts(*namespaces: str) -> tuple[Server, tuple[str, ...]]:
    """A token of the usual account of each, none of which has a right."""
    tokens = {jwt(aud=["vcuda"], sub=account(each)): account(each) for each in namespaces}
    names = dict.fromkeys(tokens.values(), ())
    return server(tokens={(token, "vcuda"): name for token, name in tokens.items()}, rights=names), tuple(tokens)


async def test_with_a_token_of_each_namespace_a_caller_reads_about_all_of_them() -> None:
    made, tokens = of_accounts("a", "c", "e")
    viewers = Viewers(made)
    assert await viewers.readable(tokens, ("a", "b", "c", "d"), PEER) == {"a", "c", "e"}
    asked = len(made.asked)
    assert asked == 3 + 2, "each token about its own namespace, and the first about the others"
    assert await viewers.readable(tokens, ("a", "b", "c", "d"), PEER) == {"a", "c", "e"}
    assert len(made.asked) == asked, "it was kept"
    assert [token_for(each, tokens) for each in ("a", "c", "x", "")] == [tokens[0], tokens[1], tokens[0], tokens[0]]
    assert token_for("a", ()) == ""
    for namespace in ("a", "c"):
        assert await viewers.reads_all(token_for(namespace, tokens), namespace, PEER) is False


async def test_the_rights_of_another_than_the_first_token_end_with_its_own_namespace() -> None:
    made, tokens = of_accounts("a", "c")
    made.rights = {account("a"): (), account("c"): ("b",)}
    assert await Viewers(made).readable(tokens, ("a", "b", "c"), PEER) == {"a", "c"}
    assert await Viewers(made).readable(tokens[::-1], ("a", "b", "c"), PEER) == {"a", "b", "c"}


async def test_many_tokens_cost_a_peer_no_more_than_one_that_is_unknown() -> None:
    """A part of a peer is one question at a time, and wrong tokens one for each request."""
    made = server()
    viewers = Viewers(made)
    forged = tuple(jwt(aud=["vcuda"], sub=account(f"n{number}")) for number in range(8))
    with pytest.raises(HttpError) as refused:
        await viewers.readable(forged, [f"n{number}" for number in range(8)], PEER)
    assert (refused.value.status, len(made.asked)) == (401, 1)
    made, tokens = of_accounts(*(f"n{number}" for number in range(8)))
    made.open.clear()
    task = asyncio.create_task(Viewers(made).readable(tokens, [f"m{number}" for number in range(100)], PEER))
    await asyncio.sleep(0.01)
    assert len(made.asked) == 1
    made.open.set()
    assert len(await task) == 8
    assert len(made.asked) == 32, "namespaces at most, whatever is shown"


async def test_who_owns_a_token_is_the_namespace_of_an_account_or_the_user() -> None:
    """A tenant can make many accounts."""
    one, other = (jwt(aud=["vcuda"], sub=account("team", name)) for name in ("one", "other"))
    tokens = {(one, "vcuda"): account("team", "one"), (other, "vcuda"): account("team", "other"), ("ann", ""): "ann"}
    viewers = Viewers(server(tokens=tokens, rights=dict.fromkeys(tokens.values(), ())))
    found = [await viewers.owner(each, PEER) for each in (one, other, "ann")]
    assert found == ["namespace team", "namespace team", "user ann"]
    with pytest.raises(HttpError, match="does not know this token"):
        await viewers.owner("forged", PEER)


async def test_of_many_namespaces_a_bounded_number_is_looked_up_and_the_caller_once_for_each() -> None:
    made = server(rights={"bob": ("n3", "n99"), "eve": ()})
    asked: list[str] = []
    may_list_pods = made.may_list_pods

    async def noted(caller: Caller, namespace: str) -> bool:
        asked.append(namespace)
        return await may_list_pods(caller, namespace)

    made.may_list_pods = noted  # type: ignore[method-assign]
    viewers = Viewers(made)
    with pytest.raises(HttpError):
        await viewers.reads_all("bob", "", PEER)
    names = [f"n{number}" for number in range(100)]
    assert await viewers.readable(("bob",), names, PEER) == {"n3"}
    assert asked == ["", *names[:32]], "that he may not read all is known already"
    assert await viewers.readable(("bob",), names, PEER) == {"n3"}
    assert len(asked) == 33
