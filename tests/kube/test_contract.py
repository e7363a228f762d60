"""What the edge relies on in an API server, asked of the stand-in and, where one is given, of a real one.

`VCUDA_CONTRACT_KUBECONFIG=FILE` (an administrator's) adds a real server, restarted once, to every test. Without it the
stand-in alone is asked, and nothing is skipped.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from deviceplugin.errors import KubeConflictError, KubeGoneError, KubeNotFoundError
from deviceplugin.kube.client import KubeClient, NodeMetadata
from deviceplugin.kube.collection import EventKind, WatchEvent
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.events import EventReason, EventRecorder, Rate
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, WatchTiming
from deviceplugin.kube.transport import Timeouts, Transport
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import Pod
from deviceplugin.structs import replace
from sandbox.apiserver import ApiServer, JsonObject, container, node, pod
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background, until

REAL = os.environ.get("VCUDA_CONTRACT_KUBECONFIG", "")


class Cluster(Protocol):
    """What users, the scheduler and kubelet do, so that there is something to see."""

    client: KubeClient

    async def create(self, item: JsonObject) -> PodRef: ...
    async def bind(self, ref: PodRef, node: str, annotations: dict[str, str]) -> None: ...
    async def report(self, ref: PodRef, status: JsonObject) -> None: ...
    async def add_node(self, name: str) -> None: ...
    async def events_about(self, uid: str) -> list[JsonObject]: ...
    def forget_history(self) -> None: ...


@dataclass
class StandIn:
    server: ApiServer
    client: KubeClient

    async def create(self, item: JsonObject) -> PodRef:
        return _ref(self.server.store.create("pods", item))

    async def bind(self, ref: PodRef, node: str, annotations: dict[str, str]) -> None:
        self.server.store.bind(ref.name, node, meta={"uid": ref.uid, "annotations": annotations})

    async def report(self, ref: PodRef, status: JsonObject) -> None:
        self.server.store.set_status(ref.name, status)

    async def add_node(self, name: str) -> None:
        self.server.store.create("nodes", node(name))

    async def events_about(self, uid: str) -> list[JsonObject]:
        return [item for item in self.server.store.objects("events") if item["involvedObject"]["uid"] == uid]

    def forget_history(self) -> None:
        self.server.compact()


@dataclass
class Real:
    transport: Transport
    client: KubeClient

    async def create(self, item: JsonObject) -> PodRef:
        body = await self.transport.request("POST", _PODS, what="create a pod", body=msgspec.json.encode(item))
        return _ref(msgspec.json.decode(body))

    async def bind(self, ref: PodRef, node: str, annotations: dict[str, str]) -> None:
        meta = {"name": ref.name, "uid": ref.uid, "annotations": annotations}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}
        body = msgspec.json.encode(binding)
        await self.transport.request("POST", f"{_PODS}/{ref.name}/binding", what="bind", body=body)

    async def report(self, ref: PodRef, status: JsonObject) -> None:
        body = msgspec.json.encode({"status": status})
        kind = "application/strategic-merge-patch+json"
        await self.transport.request("PATCH", f"{_PODS}/{ref.name}/status", what="report", body=body, content_type=kind)

    async def add_node(self, name: str) -> None:
        await self.transport.request(
            "POST", "/api/v1/nodes", what="create a node", body=msgspec.json.encode(node(name))
        )

    async def events_about(self, uid: str) -> list[JsonObject]:
        query = {"fieldSelector": f"involvedObject.uid={uid}"}
        body = await self.transport.request("GET", "/api/v1/events", what="list events", query=query)
        items: list[JsonObject] = msgspec.json.decode(body)["items"]
        return items

    def forget_history(self) -> None:
        """Its watch cache forgets in no other way than a restart, which must have happened before this run."""


_PODS = "/api/v1/namespaces/default/pods"


def _ref(item: JsonObject) -> PodRef:
    meta = item["metadata"]
    return PodRef(PodUid(meta["uid"]), meta["namespace"], meta["name"])


@pytest.fixture(params=["stand-in", "real"] if REAL else ["stand-in"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    timeouts = Timeouts(connect=2.0, request=5.0, silence=5.0)
    if request.param == "real":
        transport = Transport(Credentials(Path(REAL)), timeouts=timeouts)
        async with KubeClient(await open_transport(Path(REAL), timeouts=timeouts)) as client:
            yield Real(transport, client)
        await transport.close()
        return
    async with (
        ApiServer(bookmark_seconds=0.5) as server,
        KubeClient(await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=timeouts)) as client,
    ):
        yield StandIn(server, client)


@pytest.fixture
def host() -> str:
    """A node's name that no other test uses."""
    return f"n-{uuid.uuid4().hex[:8]}"


def fresh(name: str, host: str = "", *, owner: str = "") -> JsonObject:
    return pod(f"{name}-{uuid.uuid4().hex[:8]}", container(cores=30, blocks=16), node=host, owner=owner)


async def collect(cluster: Cluster, host: str, version: str, count: int) -> list[WatchEvent[Pod]]:
    """The next events that are no bookmarks."""
    found: list[WatchEvent[Pod]] = []
    async with (
        asyncio.timeout(60),
        aclosing(cluster.client.watch(pods_of_node(host), version=version, seconds=8)) as events,
    ):
        async for event in events:
            if event.kind is not EventKind.BOOKMARK:
                found.append(event)
            if len(found) == count:
                break
    return found


async def test_a_list_and_a_watch_from_its_version_miss_nothing(cluster: Cluster, host: str) -> None:
    first = await cluster.create(fresh("a", host))
    listing = await cluster.client.list(pods_of_node(host))
    assert [found.ref for found in listing.items.values()] == [first]
    main = listing.items[first.uid].containers[0]
    assert (main.cores, main.blocks) == (30, 16)
    second = await cluster.create(fresh("b", host))
    await cluster.report(second, {"phase": "Running"})
    await cluster.client.delete_pod(second, grace_seconds=0)
    events = await collect(cluster, host, listing.version, 4)
    assert [event.kind.value for event in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert {event.item.ref for event in events if event.item} == {second}
    assert [event.item.deleting for event in events if event.item] == [False, False, True, True]


async def test_a_binding_shows_node_and_annotations_in_one_event(cluster: Cluster, host: str) -> None:
    listing = await cluster.client.list(pods_of_node(host))
    ref = await cluster.create(fresh("bound"))
    await cluster.bind(ref, host, {"tencent.com/predicate-time": "1700000000000000000"})
    [event] = await collect(cluster, host, listing.version, 1)
    assert event.kind is EventKind.ADDED
    assert event.item is not None
    assert event.item.node == host
    assert event.item.annotations == {"tencent.com/predicate-time": "1700000000000000000"}


async def test_a_bound_pod_is_deleted_in_two_steps(cluster: Cluster, host: str) -> None:
    ref = await cluster.create(fresh("slow", host))
    version = (await cluster.client.list(pods_of_node(host))).version
    await cluster.client.delete_pod(ref)
    assert (await cluster.client.get_pod(ref)).deleting
    await cluster.client.delete_pod(ref, grace_seconds=0)
    with pytest.raises(KubeNotFoundError):
        await cluster.client.get_pod(ref)
    events = await collect(cluster, host, version, 3)
    assert [event.kind.value for event in events] == ["MODIFIED", "MODIFIED", "DELETED"]


async def test_a_failed_pod_is_deleted_in_one_step(cluster: Cluster, host: str) -> None:
    ref = await cluster.create(fresh("failed", host, owner="ReplicaSet"))
    await cluster.report(ref, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"})
    found = await cluster.client.get_pod(ref)
    assert (found.phase, found.reason, found.owner_kind) == ("Failed", "UnexpectedAdmissionError", "ReplicaSet")
    await cluster.client.delete_pod(ref)
    with pytest.raises(KubeNotFoundError):
        await cluster.client.get_pod(ref)


async def test_a_pod_of_the_same_name_is_left_alone(cluster: Cluster, host: str) -> None:
    ref = await cluster.create(fresh("x", host))
    older = replace(ref, uid=PodUid(str(uuid.uuid4())))
    with pytest.raises(KubeConflictError):
        await cluster.client.patch_pod_annotations(older, {"x": "y"})
    with pytest.raises(KubeConflictError):
        await cluster.client.delete_pod(older)
    with pytest.raises(KubeNotFoundError, match="another pod has its name"):
        await cluster.client.get_pod(older)
    assert not (await cluster.client.get_pod(ref)).deleting


async def test_annotations_are_merged_and_null_removes(cluster: Cluster, host: str) -> None:
    ref = await cluster.create(fresh("x", host))
    await cluster.client.patch_pod_annotations(
        ref, {"tencent.com/predicate-gpu-idx-0": "1", "tencent.com/predicate-gpu-idx-1": "2"}
    )
    patched = await cluster.client.patch_pod_annotations(
        ref, {"tencent.com/predicate-gpu-idx-0": None, "tencent.com/predicate-gpu-idx-2": "3"}
    )
    assert patched.annotations == {"tencent.com/predicate-gpu-idx-1": "2", "tencent.com/predicate-gpu-idx-2": "3"}


async def test_a_watch_from_long_ago_is_gone(cluster: Cluster, host: str) -> None:
    await cluster.create(fresh("x", host))
    cluster.forget_history()
    with pytest.raises(KubeGoneError, match="too old"):
        await collect(cluster, host, "1", 1)


async def test_nodes_are_labelled(cluster: Cluster, host: str) -> None:
    await cluster.add_node(host)
    patched = await cluster.client.patch_node(host, NodeMetadata({"tencent.com/gpu-model": "A100"}, {"x": "y"}))
    assert patched.labels["tencent.com/gpu-model"] == "A100"
    bare = await cluster.client.patch_node(host, NodeMetadata({"tencent.com/gpu-model": None}, {"x": None}))
    assert "tencent.com/gpu-model" not in bare.labels
    assert "x" not in bare.annotations
    assert await cluster.client.get_node(host) == bare


async def test_events_are_accepted_and_counted(cluster: Cluster, host: str) -> None:
    ref = await cluster.create(fresh("x", host))
    recorder = EventRecorder(cluster.client, node=host, rate=Rate(burst=10, seconds=0.01))
    async with in_background(recorder.run()):
        for _ in range(2):
            recorder.about_pod(ref, EventReason.ALLOCATED, "30 cores and 16 blocks of GPU 0")
            recorder.about_node(EventReason.UNHEALTHY, "GPU 3: Xid 79 " + "x" * 2000)
            await until(lambda: not recorder._filled.is_set())
    [about_pod] = await cluster.events_about(ref.uid)
    [about_node] = await cluster.events_about(host)
    assert (about_pod["reason"], about_pod["count"], about_pod["type"]) == ("GPUAllocated", 2, "Normal")
    assert (about_node["reason"], about_node["count"], about_node["type"]) == ("GPUUnhealthy", 2, "Warning")


async def test_the_reflector_ends_in_the_servers_state(cluster: Cluster, host: str) -> None:
    reflector = Reflector(cluster.client, pods_of_node(host), pace=WatchTiming(watch=1, first_wait=0.05, most_wait=0.1))
    async with in_background(reflector.run()):
        await asyncio.wait_for(reflector.synced.wait(), 60)
        refs = [await cluster.create(fresh(f"p{number}", host)) for number in range(12)]
        for ref in refs[::3]:
            await cluster.client.delete_pod(ref, grace_seconds=0)
        for ref in refs[1::3]:
            await cluster.report(ref, {"phase": "Running"})
        late = await cluster.create(fresh("late"))
        await cluster.bind(late, host, {"tencent.com/predicate-node": "y"})
        listing = await cluster.client.list(pods_of_node(host))
        await until(lambda: listing.items == reflector.items)
