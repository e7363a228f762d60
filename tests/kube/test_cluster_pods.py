"""Pods with vcuda's resources keep what their scheduling needs, others what they take of their nodes."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.cluster_objects import AnyPod, cluster_pods
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.reflector import Reflector, StoreChange, WatchTiming
from deviceplugin.kube.transport import Timeouts, Transport
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod, Gang, PlainPod, ScheduledCondition
from deviceplugin.model.units import NOTHING, Compute, ResourceNames
from sandbox.apiserver import ApiError, ApiServer, JsonObject, container, pod
from tests.examples import examples
from tests.waiting import in_background, until

PODS = cluster_pods()
PACE = WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02)
GPU = container(cores=30, blocks=16)


def read(item: JsonObject) -> AnyPod | None:
    item = json.loads(json.dumps(item))
    item["metadata"] |= {"uid": "u-1", "resourceVersion": "7"}
    seen = PODS.read(json.dumps(item, separators=(",", ":")).encode())
    assert seen.version == "7"
    return seen.item


def gpu_pod(*, labels: JsonObject | None = None, spec: JsonObject | None = None, status: JsonObject | None = None,
            annotations: dict[str, str] | None = None) -> ClusterPod:  # fmt: skip
    item = pod("a", GPU, annotations=annotations)
    item["metadata"]["labels"] = labels or {}
    item["spec"] |= spec or {}
    item["status"] = status or {}
    found = read(item)
    assert isinstance(found, ClusterPod)
    return found


def test_what_a_pod_says_of_its_scheduling_is_read() -> None:
    spec = {"schedulerName": "vcuda", "priority": -5}
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    status = {
        "phase": "Pending",
        "nominatedNodeName": "n7",
        "conditions": [{"type": "Ready", "status": "False"}, refused],
    }
    found = gpu_pod(spec=spec, status=status)
    assert (found.scheduler, found.priority, found.nominated_node) == ("vcuda", -5, "n7")
    assert found.condition == ScheduledCondition(False, "Unschedulable", hash("0/3 nodes"), "0/3 nodes")
    assert found.condition.message == "0/3 nodes"
    assert (found.is_refused, found.gates) == (True, ())
    assert (found.uid, found.pod.ref.namespace, found.pod.phase) == ("u-1", "default", "Pending")
    assert [(each.cores, each.blocks) for each in found.pod.containers] == [(30, 16)]


def test_a_pod_with_scheduling_gates_names_them_and_is_not_refused() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    spec = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": "example.org/later"}]}
    found = gpu_pod(spec=spec, status={"conditions": [gated]})
    assert found.gates == ("kueue.x-k8s.io/admission", "example.org/later")
    assert not found.is_refused
    opened = gpu_pod(status={"conditions": [gated]})
    assert (opened.is_refused, opened.gates) == (False, ()), "the condition stays for a while"


def test_a_pod_that_says_nothing_of_it_is_read_too() -> None:
    found = gpu_pod()
    assert (found.scheduler, found.priority, found.nominated_node, found.gang) == ("", 0, "", None)
    assert found.condition is None
    assert not found.is_refused


def test_a_bound_pod_is_not_refused() -> None:
    found = gpu_pod(status={"conditions": [{"type": "PodScheduled", "status": "True"}]})
    assert found.condition == ScheduledCondition(is_true=True)
    assert not found.is_refused


@pytest.mark.parametrize(
    "name",
    [
        "scheduling.k8s.io/group-name",
        "scheduling.volcano.sh/group-name",
        "gang.scheduling.koordinator.sh/name",
        "scheduling.x-k8s.io/pod-group",
    ],
)
@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_a_gang_is_known_by_each_of_its_names(name: str, place: str) -> None:
    found = gpu_pod(**{place: {name: "train"}})
    assert found.gang == Gang("default", "train", waits=True)


def test_a_gang_is_known_by_kubernetes_own_fields(subtests: pytest.Subtests) -> None:
    cases: list[tuple[JsonObject, Gang | None]] = [
        ({"schedulingGroup": {"podGroupName": "g"}}, Gang("default", "g", waits=False)),
        ({"schedulingGroup": {"podGroupName": None}}, None),
        ({"workloadRef": {"name": "w", "podGroup": "workers"}}, Gang("default", "w/workers")),
        (
            {"workloadRef": {"name": "w", "podGroup": "workers", "podGroupReplicaKey": "1"}},
            Gang("default", "w/workers/1"),
        ),
        ({"workloadRef": None, "schedulingGroup": None}, None),
    ]
    for spec, gang in cases:
        with subtests.test(spec=spec):
            assert gpu_pod(spec=spec).gang == gang


def test_pods_without_gpu_resources_are_plain() -> None:
    for item in (
        pod("a"),
        pod("a", container(env={"X": "tencent.com/vcuda-core"})),
        pod("a", annotations={"tencent.com/vcuda-node-policy": "spread"}),
        pod("a", container(cores=5, domain="other.example")),
    ):
        assert read(item) is None, "nobody has to know of it before it is on a node"
        item["spec"]["nodeName"] = "n1"
        assert read(item) == PlainPod(PodUid("u-1"), "n1", NOTHING)


def test_what_is_equal_in_plain_pods_is_kept_once() -> None:
    item = pod("a", node="n1")
    first, second = read(item), read(item)
    assert isinstance(first, PlainPod)
    assert isinstance(second, PlainPod)
    assert first.node is second.node
    assert first.needs is second.needs


def test_a_pod_with_only_a_gpu_init_container_is_handled(subtests: pytest.Subtests) -> None:
    for where in ["init", "sidecar"]:
        with subtests.test(where=where):
            found = read(pod("a", init=(container("first", cores=20, blocks=4, sidecar=where == "sidecar"),)))
            assert isinstance(found, ClusterPod)
            assert found.pod.containers[0].role.value == where


def test_the_domain_may_be_another() -> None:
    collection = cluster_pods(ResourceNames("gpu.example"))
    body = json.dumps(pod("a", container(cores=5, blocks=1, domain="gpu.example"))).encode()
    assert isinstance(collection.read(body).item, ClusterPod)
    assert PODS.read(body).item is None


async def test_the_cluster_is_followed_from_binding_to_the_end(server: ApiServer, client: KubeClient) -> None:
    heard: list[tuple[str, str, str]] = []
    server.store.create("pods", pod("old", GPU, node="n1"))
    server.store.create("pods", pod("web"))
    reflector = Reflector(client, PODS, pace=PACE)

    def listen(change: StoreChange[AnyPod]) -> None:
        assert isinstance(change.item, ClusterPod)
        heard.append((change.kind.value, change.item.pod.ref.name, change.item.pod.node))

    reflector.subscribe(listen)
    async with in_background(reflector.run()):
        await asyncio.wait_for(reflector.synced.wait(), 60)
        server.store.create("pods", pod("new", GPU))
        server.store.create("pods", pod("web-2"))
        server.store.bind("new", "n2")
        server.store.set_status("web", {"phase": "Running"})
        server.store.set_status("old", {"phase": "Succeeded"})
        await until(lambda: len(heard) == 4)
        assert {each.pod.ref.name for each in reflector.items.values() if isinstance(each, ClusterPod)} == {"new"}
    assert heard == [("ADDED", "old", "n1"), ("ADDED", "new", ""), ("MODIFIED", "new", "n2"), ("DELETED", "old", "n1")]


async def test_an_ended_pod_is_not_even_listed(server: ApiServer, client: KubeClient) -> None:
    server.store.create("pods", pod("done", GPU, node="n1"))
    server.store.set_status("done", {"phase": "Failed"})
    assert not (await client.list(PODS)).items


async def test_what_has_not_changed_is_the_same_object_after_a_second_list(
    server: ApiServer, client: KubeClient
) -> None:
    for number in range(40):
        server.store.create("pods", pod(f"p{number}", GPU))
    first = (await client.list(PODS)).items
    server.store.bind("p7", "n1")
    second = (await client.list(PODS, kept=first)).items
    changed = [second[uid] for uid in first if first[uid] is not second[uid]]
    assert [each.pod.ref.name for each in changed if isinstance(each, ClusterPod)] == ["p7"]
    assert len(changed) == 1


actions = st.lists(
    st.tuples(
        st.sampled_from(["create", "plain", "bind", "bind", "resize", "end", "delete", "drop", "compact"]),
        st.sampled_from("abc"),
    ),
    max_size=20,
)


@given(actions)
@examples(25, suppress=[HealthCheck.function_scoped_fixture])
def test_any_history_ends_with_the_live_pods(tmp_path: Path, script: list[tuple[str, str]]) -> None:
    asyncio.run(follow(script, tmp_path / "kubeconfig"))


async def follow(script: list[tuple[str, str]], kubeconfig: Path) -> None:
    timeouts = Timeouts(connect=0.5, request=0.5, silence=0.3)
    async with (
        ApiServer(bookmark_seconds=0.05) as server,
        KubeClient(Transport(Credentials(server.kubeconfig(kubeconfig)), timeouts=timeouts)) as client,
    ):
        reflector = Reflector(client, PODS, pace=WatchTiming(watch=1, first_wait=0.002, most_wait=0.01))
        heard: dict[PodUid, AnyPod] = {}

        def listen(change: StoreChange[AnyPod]) -> None:
            if change.kind.value == "DELETED":
                heard.pop(change.item.uid)
            else:
                heard[change.item.uid] = change.item

        reflector.subscribe(listen)
        async with in_background(reflector.run()):
            await asyncio.wait_for(reflector.synced.wait(), 60)
            for action, name in script:
                await act(server, action, name)
                await asyncio.sleep(0.001)
            await until(lambda: is_true(reflector, server))
            assert heard == dict(reflector.items)


async def act(server: ApiServer, action: str, name: str) -> None:
    with suppress(ApiError):  # a step that the server refuses is a step that changes nothing
        match action:
            case "create":
                server.store.create("pods", pod(name, GPU))
            case "plain":
                server.store.create("pods", pod(name))
            case "resize":
                if "vcuda-core" in json.dumps(server.store.get("pods", name, namespace="default")):
                    return  # nobody can take a pod's extended resources from it
                spec = container()
                spec["resources"] = {"requests": {"cpu": "2", "memory": "1Gi"}}
                server.store.patch("pods", name, {"spec": {"containers": [spec]}}, namespace="default")
            case "bind":
                server.store.bind(name, "n1")
            case "end":
                server.store.set_status(name, {"phase": "Succeeded"})
            case "delete":
                server.store.delete("pods", name, namespace="default", grace=0)
            case "drop":
                await server.drop_watches()
            case "compact":
                server.compact()


def is_true(reflector: Reflector[PodUid, AnyPod], server: ApiServer) -> bool:
    """Everything that asks for GPUs or is on a node is there, as the server has it."""
    live = {
        item["metadata"]["uid"]: item
        for item in server.store.objects("pods")
        if item.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    }
    specs = {uid: item["spec"] for uid, item in live.items()}
    there = {uid for uid, spec in specs.items() if "vcuda-core" in json.dumps(spec) or "nodeName" in spec}
    return there <= set(reflector.items) <= set(live) and all(
        _is_as_served(each, live[uid]) for uid, each in reflector.items.items()
    )


def _is_as_served(found: AnyPod, item: JsonObject) -> bool:
    if isinstance(found, ClusterPod):
        return bool(found.pod.resource_version == item["metadata"]["resourceVersion"])
    resized = "requests" in item["spec"]["containers"][0].get("resources", {})
    return found == PlainPod(found.uid, item["spec"]["nodeName"], Compute(2000, 1 << 30) if resized else NOTHING)
