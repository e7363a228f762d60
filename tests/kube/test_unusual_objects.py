"""What one user writes into his object hides nobody else's, however unusual it is, and frees nothing of his own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from deviceplugin.errors import ParseError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.cluster_objects import cluster_nodes, cluster_pods
from deviceplugin.kube.collection import Collection
from deviceplugin.kube.pods import PodListReader, pods_of_node
from deviceplugin.kube.reflector import Reflector, WatchTiming
from deviceplugin.kube.resource_claims import claiming_pods, cluster_claims, kept_templates
from deviceplugin.kube.resource_slices import offers_of, slices_of
from deviceplugin.kube.structs import decode, decode_strict, readable
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.claims import ClaimNames, ClaimRef, ClaimUid
from deviceplugin.model.pod import Pod
from sandbox.apiserver import ApiServer, JsonObject, container, node, pod
from sandbox.apiserver.verbatim import nested, verbatim, written
from tests.kube.counting import lists
from tests.waiting import in_background, until

DRIVER, DOMAIN = "vcuda.tencent.com", "tencent.com"
DEEP = (1_500, 9_900)  # with Python 3.11 msgspec reads fewer than 1,000, and a kube-apiserver took 9,900
PACE = WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02)
HALF_A_PAIR = verbatim(r'{"a":"\ud800","\udc00b":["\\ud800", "\ud83d\ude00"]}')
UNUSUAL = {**{f"{levels} levels": nested(levels) for levels in DEEP}, "half a pair": HALF_A_PAIR}


def labelled(item: JsonObject) -> JsonObject:
    item["metadata"]["labels"] = {f"{DOMAIN}/vcuda-claims": "true"}
    return item


def a_pod(name: str, odd: str) -> JsonObject:
    """In fields that are not read, and in one of which it is only read whether it is there."""
    item = pod(name, container(cores=10, blocks=1), node="n1")
    item["metadata"]["managedFields"] = [{"manager": "x", "fieldsV1": odd}]
    rule = "preferredDuringSchedulingIgnoredDuringExecution"
    item["spec"]["affinity"] = {"nodeAffinity": {rule: [{"weight": 1, "preference": odd}]}}
    return labelled(item)


def a_node(name: str, odd: str) -> JsonObject:
    item = node(name)
    item["metadata"]["managedFields"] = [{"manager": "x", "fieldsV1": odd}]
    return item


def asked(odd: str) -> JsonObject:
    request = {"name": "gpu", "exactly": {"deviceClassName": "x"}}
    return {"devices": {"requests": [request], "config": [{"opaque": {"driver": "x.example.com", "parameters": odd}}]}}


def a_claim(name: str, odd: str) -> JsonObject:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": asked(odd)}


def a_template(name: str, odd: str) -> JsonObject:
    return labelled({"metadata": {"name": name, "namespace": "default"}, "spec": {"spec": asked(odd)}})


def a_slice(name: str, odd: str) -> JsonObject:
    spec = {"driver": DRIVER, "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}}
    return {"metadata": {"name": name, "managedFields": [{"fieldsV1": odd}]}, "spec": {**spec, "devices": []}}


def a_slice_of_its_node(name: str, odd: str) -> JsonObject:
    """The scheduler keeps one of each node."""
    made = a_slice(name, odd)
    made["spec"] |= {"nodeName": name, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}
    return made


Make = Callable[[str, str], JsonObject]
ALL: dict[str, tuple[Collection[Any, Any], str, Make]] = {
    "the scheduler's pods": (cluster_pods(), "pods", a_pod),
    "the scheduler's pods with claims": (cluster_pods(claims=True), "pods", a_pod),
    "the scheduler's nodes": (cluster_nodes(), "nodes", a_node),
    "an agent's node": (cluster_nodes(only="odd"), "nodes", a_node),
    "an agent's pods": (pods_of_node("n1"), "pods", a_pod),
    "pods with templates": (claiming_pods(DOMAIN), "pods", a_pod),
    "templates": (kept_templates(DOMAIN), "resourceclaimtemplates", a_template),
    "claims": (cluster_claims(ClaimNames(DOMAIN)), "resourceclaims", a_claim),
    "an agent's slices": (slices_of(DRIVER, "n1"), "resourceslices", a_slice),
    "the scheduler's slices": (offers_of(DRIVER), "resourceslices", a_slice_of_its_node),
}


@asynccontextmanager
async def running(client: KubeClient, collection: Collection[Any, Any]) -> AsyncIterator[Reflector[Any, Any]]:
    reflector = Reflector(client, collection, pace=PACE)
    async with in_background(reflector.run()):
        yield reflector


@pytest.mark.parametrize("odd", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("what", ALL)
async def test_an_unusual_object_is_read_and_hides_no_other(
    server: ApiServer, client: KubeClient, what: str, odd: str
) -> None:
    collection, resource, make = ALL[what]
    only_one = "metadata.name" in collection.query.get("fieldSelector", "")
    server.store.create(resource, make("odd", odd))
    server.store.create(resource, make("other", "x"))
    async with running(client, collection) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        assert len(reflector.items) == (1 if only_one else 2)
        server.store.create(resource, make("late and odd", odd))
        server.store.create(resource, make("later", "x"))
        await until(lambda: len(reflector.items) == (1 if only_one else 4), seen=lambda: reflector.items)
        namespace = server.store.objects(resource)[0]["metadata"].get("namespace", "")
        server.store.delete(resource, "odd", namespace=namespace, grace=0)
        await until(lambda: len(reflector.items) == (0 if only_one else 3), seen=lambda: reflector.items)
        assert lists(server) == 1
        assert reflector.unreadable == 0


@pytest.mark.parametrize("odd", UNUSUAL.values(), ids=UNUSUAL)
async def test_an_unusual_object_is_read_alone(server: ApiServer, client: KubeClient, odd: str) -> None:
    made = server.store.create("pods", a_pod("odd", odd))
    server.store.create("nodes", a_node("n1", odd))
    claim = server.store.create("resourceclaims", a_claim("odd", odd), namespace="default")
    ref = PodRef(PodUid(made["metadata"]["uid"]), "default", "odd")
    assert (await client.get_pod(ref)).ref == ref
    assert (await client.patch_pod_annotations(ref, {"a": "b"})).ref == ref
    assert (await client.get_node("n1")).labels == {"kubernetes.io/hostname": "n1"}
    found = await client.get_claim(ClaimRef(ClaimUid(claim["metadata"]["uid"]), "default", "odd"))
    assert found.ref.name == "odd"


@pytest.mark.parametrize("odd", UNUSUAL.values(), ids=UNUSUAL)
def test_kubelets_list_is_read_with_an_unusual_pod(odd: str) -> None:
    items = [a_pod(name, text) for name, text in (("odd", odd), ("other", "x"))]
    for item in items:
        item["metadata"]["uid"] = item["metadata"]["name"]
    found = PodListReader().read(written({"items": items}).encode())
    assert [(each.ref.uid, each.node, len(each.containers)) for each in found] == [("odd", "n1", 1), ("other", "n1", 1)]


def spoil(server: ApiServer, name: str) -> None:
    """No API server writes this; nothing else is left that it may write and vcuda cannot read."""
    server.store.set_status(name, {"phase": 7})


def phases(reflector: Reflector[PodUid, Pod]) -> dict[str, str]:
    return {found.ref.name: found.phase for found in reflector.items.values()}


async def test_of_a_pod_that_became_unreadable_counts_what_was_known(
    server: ApiServer, client: KubeClient, logs: list[EventDict]
) -> None:
    for name in ("a", "b", "c", "d"):
        server.store.create("pods", pod(name, node="n1"))
    async with running(client, pods_of_node("n1")) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        for name in ("a", "b", "c"):
            spoil(server, name)
        server.store.set_status("d", {"phase": "Running"})
        kept = {"a": "Pending", "b": "Pending", "c": "Pending", "d": "Running"}
        await until(lambda: phases(reflector) == kept and reflector.unreadable == 3, seen=lambda: phases(reflector))
        server.store.delete("pods", "a", namespace="default", grace=0)
        await until(lambda: phases(reflector).keys() == {"b", "c", "d"}, seen=lambda: phases(reflector))
        async with server.refuse():
            server.store.delete("pods", "b", namespace="default", grace=0)
            server.store.create("pods", pod("e", node="n1"))
            server.compact()
        await until(lambda: phases(reflector).keys() == {"c", "d", "e"}, seen=lambda: phases(reflector))
        assert reflector.unreadable == 1
        server.store.set_status("c", {"phase": "Succeeded"})
        await until(lambda: phases(reflector)["c"] == "Succeeded", seen=lambda: phases(reflector))
        assert (reflector.unreadable, lists(server)) == (0, 2)
    told = [each for each in logs if each["event"] == "object_unreadable"]
    assert [(each["objects"], each["name"]) for each in told] == [("pods of n1", "default/a")]
    assert "status.phase" in told[0]["error"]


async def test_a_pod_that_was_never_readable_keeps_no_list_from_its_end(server: ApiServer, client: KubeClient) -> None:
    for name in ("a", "b"):
        server.store.create("pods", pod(name, node="n1"))
    spoil(server, "a")
    async with running(client, pods_of_node("n1")) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        assert (set(phases(reflector)), reflector.unreadable) == ({"b"}, 1)
        server.store.delete("pods", "a", namespace="default", grace=0)
        await until(lambda: reflector.unreadable == 0)
        assert phases(reflector).keys() == {"b"}


async def test_a_new_pod_of_the_name_takes_over_nothing_of_the_old_one(server: ApiServer, client: KubeClient) -> None:
    server.store.create("nodes", node("n1"))
    async with running(client, cluster_nodes()) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        async with server.refuse():
            server.store.delete("nodes", "n1")
            server.store.create("nodes", {**node("n1"), "spec": {"unschedulable": "x"}})
            server.compact()
        await until(lambda: not reflector.items, seen=lambda: reflector.items)
        assert reflector.unreadable == 1


def test_an_unreadable_pod_of_kubelets_list_does_not_seem_to_have_ended() -> None:
    def body(phase: object) -> bytes:
        items = [pod(name, container(cores=10, blocks=1), node="n1") for name in ("a", "b")]
        for item in items:
            item["metadata"]["uid"] = item["metadata"]["name"]
        items[0]["status"] = {"phase": phase}
        return json.dumps({"items": items}).encode()

    reader = PodListReader()
    first, other = reader.read(body("Running"))
    for _ in range(2):
        assert reader.read(body(7)) == (first, other)
    (alone, same) = PodListReader().read(body(7))
    assert (alone.ref, alone.is_terminal, alone.containers, same) == (first.ref, False, (), other)


def test_what_is_readable_stays_as_it_is() -> None:
    for text in (r'"\\ud800"', r'"\ud83d\ude00\\"', '"[{" ', r'["\"]", {"a\\": "]"}]', '{"a": "\u2028\u00e9"}', "[[]"):
        assert readable(text.encode()) == text.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.booleans(), st.integers(0, 3))
def test_any_value_beside_what_is_cut_is_the_same(value: object, ascii_only: bool, more: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert readable(text) == text
    depth = 198 + more
    found = msgspec.json.decode(readable(b'{"deep":' + b"[" * depth + b'"]"' + b"]" * depth + b',"a":' + text + b"}"))
    assert found["a"] == value
    inner: Any = found["deep"]
    for _ in range(198):
        (inner,) = inner
    assert inner == {0: "]", 1: None, 2: None, 3: None}[more]


def test_half_a_pair_is_what_go_makes_of_it() -> None:
    text = rb'["\ud800","\ud800\ud83d\ude00","\udc00\ud800","\uD8","\ud800\\u"]'.replace(rb'"\uD8",', b"")
    with pytest.raises(ParseError):
        decode_strict(list[str], text, what="it")
    assert decode(list[str], text, what="it") == ["\ufffd", "\ufffd\U0001f600", "\ufffd\ufffd", "\ufffd\\u"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"items":[', b'"\\', b'["a\\"' + b'\\"' * 300_000, b'{"items":[1]}', b"]" * 9]
)
def test_what_is_broken_stays_an_error(body: bytes) -> None:
    with pytest.raises(ParseError, match="it cannot be read"):
        decode(dict[str, list[str]], body, what="it")
