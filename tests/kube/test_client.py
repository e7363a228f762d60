"""The client asks the right thing, touches only the pod that is meant, and turns every failure into one sentence."""

from contextlib import aclosing
from pathlib import Path

import pytest

from deviceplugin.errors import KubeConflictError, KubeError, KubeGoneError, KubeNotFoundError, ParseError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import EventKind, WatchEvent
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.transport import Timeouts
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import Pod
from deviceplugin.structs import replace
from sandbox.apiserver import ApiServer, Harm, JsonObject, container, pod
from sandbox.apiserver.kubeconfig import write_kubeconfig
from tests.kube.kubeconfigs import open_transport

PODS = pods_of_node("n1")


async def watched(client: KubeClient) -> list[WatchEvent[Pod]]:
    """All events of one watch from the first version, until the server ends it."""
    async with aclosing(client.watch(PODS, version="1", seconds=30)) as events:
        return [event async for event in events]


def made(server: ApiServer, name: str = "a") -> PodRef:
    meta = server.store.create("pods", pod(name, container(cores=50, blocks=8), node="n1"))["metadata"]
    return PodRef(PodUid(meta["uid"]), meta["namespace"], meta["name"])


def annotations(server: ApiServer, name: str = "a") -> JsonObject:
    found: JsonObject = server.store.get("pods", name, namespace="default")["metadata"].get("annotations", {})
    return found


async def test_only_pods_of_the_node_are_listed(server: ApiServer, client: KubeClient) -> None:
    mine = made(server)
    server.store.create("pods", pod("b", node="n2"))
    server.store.create("pods", pod("c"))
    listing = await client.list(PODS)
    assert [found.ref for found in listing.items.values()] == [mine]
    assert listing.version == str(server.store.version)


async def test_a_list_in_pages_is_whole_and_of_one_version(server: ApiServer, client: KubeClient) -> None:
    for number in range(1201):
        server.store.create("pods", pod(f"p{number:04d}", node="n1"))
    listing = await client.list(PODS)
    assert len(listing.items) == 1201
    assert sum("continue=" in path for _, path in server.requests) == 2


async def test_a_list_whose_pages_were_compacted_away_begins_again(server: ApiServer, client: KubeClient) -> None:
    for number in range(501):
        server.store.create("pods", pod(f"p{number:04d}", node="n1"))
    first_page = server.faults.add(Harm.SLOW, seconds=0.0)
    server.faults.fail(410)
    listing = await client.list(PODS)
    assert first_page.times == 0
    assert len(listing.items) == 501
    assert [path.count("continue=") for _, path in server.requests] == [0, 1, 0, 1]


async def test_an_empty_list_may_be_null(server: ApiServer, client: KubeClient) -> None:
    server.faults.add(Harm.BODY, body=b'{"items":null,"metadata":{"resourceVersion":"7"}}')
    listing = await client.list(PODS)
    assert (listing.items, listing.version) == ({}, "7")


async def test_a_pod_is_not_taken_for_another_one_because_of_its_name(server: ApiServer, client: KubeClient) -> None:
    """The server's sentence names the pod, and `metadata.uid` is a name that any tenant may give."""
    ref = made(server, "metadata.uid")
    with pytest.raises(KubeError, match="Too long") as refused:
        await client.patch_pod_annotations(ref, {"x": "y" * (256 << 10)})
    assert not isinstance(refused.value, KubeConflictError)
    longest = made(server, "a" * 253)
    with pytest.raises(KubeConflictError):
        await client.patch_pod_annotations(replace(longest, uid=PodUid("older")), {"x": "y"})


async def test_a_watch_tells_changes_and_bookmarks_after_a_version(server: ApiServer, client: KubeClient) -> None:
    listing = await client.list(PODS)
    ref = made(server)
    server.store.set_status("a", {"phase": "Running"})
    server.store.delete("pods", "a", namespace="default", grace=0)
    seen = []
    async with aclosing(client.watch(PODS, version=listing.version, seconds=5)) as events:
        async for event in events:
            seen.append(event)
            if event.kind is EventKind.BOOKMARK:
                break
    assert [event.kind.value for event in seen] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED", "BOOKMARK"]
    assert {event.item.ref for event in seen if event.item} == {ref}
    assert seen[-1].version == str(server.store.version)


async def test_a_watch_ends_when_the_server_ends_it(server: ApiServer, client: KubeClient) -> None:
    async with aclosing(client.watch(PODS, version="1", seconds=1)) as events:
        kinds = {event.kind async for event in events}
    assert kinds == {EventKind.BOOKMARK}
    assert server.open_watches == 0


async def test_a_broken_watch_is_one_of_our_errors(
    server: ApiServer, client: KubeClient, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[Harm, int, type[Exception]]] = [
        (Harm.ERROR_WATCH, 410, KubeGoneError),
        (Harm.ERROR_WATCH, 500, KubeError),
        (Harm.CUT_WATCH, 0, KubeError),
        (Harm.GARBLED_WATCH, 0, ParseError),
    ]
    made(server)
    for harm, code, expected in cases:
        with subtests.test(harm=harm, code=code):
            server.faults.add(harm, code=code)
            with pytest.raises(expected):
                await watched(client)


async def test_a_watch_that_is_silent_for_too_long_ends(server: ApiServer, client: KubeClient) -> None:
    server.faults.add(Harm.SILENT_WATCH)
    made(server)
    assert await watched(client) == []


async def test_each_refusal_has_its_class_code_and_sentence(
    server: ApiServer, client: KubeClient, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[int, type[KubeError], str]] = [
        (401, KubeError, "credentials"),
        (403, KubeError, "403"),
        (404, KubeNotFoundError, "404"),
        (409, KubeConflictError, "409"),
        (410, KubeGoneError, "410"),
        (429, KubeError, "429"),
        (500, KubeError, "500"),
        (503, KubeError, "503"),
    ]
    for code, error, word in cases:
        with subtests.test(code=code):
            server.faults.clear()
            server.faults.fail(code, times=3)
            with pytest.raises(error, match=word) as refusal:
                await client.get_node("n1")
            assert refusal.value.code == code
            assert "get node n1" in refusal.value.message


async def test_a_silent_server_costs_no_more_than_the_time_limit(server: ApiServer, tmp_path: Path) -> None:
    server.faults.hang()
    kubeconfig = server.kubeconfig(tmp_path / "kc")
    async with KubeClient(await open_transport(kubeconfig, timeouts=Timeouts(request=0.5))) as client:
        with pytest.raises(KubeError, match="no answer in time"):
            await client.get_node("n1")


async def test_a_broken_answer_is_one_of_our_errors(
    server: ApiServer, client: KubeClient, subtests: pytest.Subtests
) -> None:
    cases: list[Harm] = [Harm.RESET, Harm.BODY]
    for harm in cases:
        with subtests.test(harm=harm):
            server.faults.add(harm, body=b"<html>proxy</html>", times=3)
            with pytest.raises((KubeError, ParseError)):
                await client.get_node("n1")


async def test_a_refused_connection_says_where_it_went(server: ApiServer, client: KubeClient) -> None:
    async with server.refuse():
        with pytest.raises(KubeError, match=rf"127\.0\.0\.1:{server.port}: .*refused"):
            await client.get_node("n1")


async def test_foreign_text_is_capped_and_on_one_line(server: ApiServer, client: KubeClient) -> None:
    message = "x\\n" * 5000
    server.faults.add(Harm.BODY, body=f'{{"type":"ERROR","object":{{"code":500,"message":"{message}"}}}}\n'.encode())
    with pytest.raises(KubeError) as refusal:
        await watched(client)
    assert "\n" not in refusal.value.message
    assert len(refusal.value.message) < 500


async def test_names_cannot_leave_their_place_in_the_path(server: ApiServer, client: KubeClient) -> None:
    with pytest.raises(KubeNotFoundError):
        await client.get_pod(PodRef(PodUid(""), "default", "../../../nodes/n1?x=y"))
    with pytest.raises(KubeError):
        await client.get_pod(PodRef(PodUid(""), "default", ".."))
    assert all(path.startswith("/api/v1/namespaces/default/pods/") for _, path in server.requests)
    assert len(server.requests) == 2


async def test_a_server_may_stand_under_a_path_of_its_own(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kc", server.url + "/k8s/clusters/c-1/")
    async with KubeClient(await open_transport(kubeconfig)) as client:
        with pytest.raises(KubeNotFoundError):
            await client.get_pod(PodRef(PodUid(""), "default", "a"))
    assert server.requests == [("GET", "/k8s/clusters/c-1/api/v1/namespaces/default/pods/a")]


async def test_nothing_is_left_open_after_close(server: ApiServer, tmp_path: Path) -> None:
    client = KubeClient(await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=Timeouts(request=1.0)))
    await client.list(PODS)
    await client.close()
    await client.close()
