"""The view's paths: each its document, each mistake its status and one sentence."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.view.live import LiveUse, NodeUse
from deviceplugin.cluster.view.views import Installation
from deviceplugin.kube.cluster_client import Address, Caller
from deviceplugin.model.allocation import ContainerRef, PodRef
from deviceplugin.model.cluster_view import (
    TOKEN_HEADER,
    ClusterEventsView,
    ClusterView,
    GpuLive,
    NamespacesView,
    NodesView,
    PodsView,
    ShareLive,
)
from deviceplugin.model.pod import ClusterPod
from deviceplugin.scheduler.leadership import Leadership
from deviceplugin.scheduler.view_service import ViewService
from deviceplugin.serve.messages import HttpError
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import allocated, bound, node, on_gpu, pod


class TwoCallers:
    """The owner of the token `good` may read about all pods, that of `of-d` may list the pods of namespace d."""

    async def caller_of(self, token: str, *, audience: str) -> Caller | None:
        return Caller(token) if token in ("good", "of-d") else None

    async def may_list_pods(self, caller: Caller, namespace: str) -> bool:
        return (caller.name, namespace) == ("of-d", "d")

    async def may_get(self, caller: Caller, path: str) -> bool:
        return (caller.name, path) == ("good", "/vcuda/view")


VIEWS = ", ".join(
    f"/view/{each}"
    for each in ("cluster", "nodes", "nodes/NAME", "pods", "pods/NAMESPACE/NAME", "namespaces", "events")
)
OF_EVENTS = "the parameters are limit, more, order, namespace, node, kind"


@pytest.fixture
def service() -> ViewService:
    extender = Extender(MemoryApi())
    for name in ("a", "b", "c"):
        extender.put_node(node(name, 2))
    extender.put_pod(pod("waits"))
    return ViewService(extender, Leadership("replica-1"), TwoCallers(), LiveUse(no_agents), Installation("1.2.3"))


async def no_agents() -> dict[str, Address]:
    return {}


async def asked(
    service: ViewService, path: str, query: Mapping[str, str] | None = None, *, token: str = ""
) -> tuple[int, dict[str, Any]]:
    status, body = await service.answer(path, query or {}, {TOKEN_HEADER: token} if token else {}, "10.0.0.7")
    return status, msgspec.json.decode(body)


async def test_each_path_has_its_document(service: ViewService) -> None:
    status, cluster = await asked(service, "/view/cluster")
    assert (status, cluster["nodes"], cluster["pods_pending"], cluster["replica"]) == (200, 3, 1, "replica-1")
    status, nodes = await asked(service, "/view/nodes", {"limit": "2"})
    assert (status, [row["node"] for row in nodes["items"]], nodes["total"]) == (200, ["a", "b"], 3)
    status, rest = await asked(service, "/view/nodes", {"limit": "2", "more": nodes["more"]})
    assert ([row["node"] for row in rest["items"]], rest["more"]) == (["c"], "")
    status, one = await asked(service, "/view/nodes/b", token="good")
    assert (status, one["item"]["node"], len(one["item"]["gpus"])) == (200, "b", 2)


async def test_a_document_is_of_its_types_however_many_nodes_there_are() -> None:
    """The commands decode strictly: a `false` in the place of a 0 ended `vcuda version` in a cluster of one node."""
    kinds = {
        "cluster": ClusterView,
        "nodes": NodesView,
        "pods": PodsView,
        "namespaces": NamespacesView,
        "events": ClusterEventsView,
    }
    extender = Extender(MemoryApi())
    service = ViewService(extender, Leadership("replica-1"), TwoCallers(), LiveUse(no_agents), Installation("1.2.3"))
    for name in ("a", "b", "c"):
        for path, kind in kinds.items():
            _, body = await service.answer(f"/view/{path}", {}, {TOKEN_HEADER: "good"}, "10.0.0.7")
            assert isinstance(msgspec.json.decode(body, type=kind), kind)
        extender.put_node(node(name, 2))


async def test_live_use_is_asked_for_by_a_parameter(service: ViewService) -> None:
    for path in ("/view/nodes", "/view/nodes/b"):
        _, quiet = await asked(service, path, token="good")
        _, found = await asked(service, path, {"live": "1"}, token="good")
        row, without = (each["items"][0] if "items" in each else each["item"] for each in (found, quiet))
        assert (row["live_error"], without["live_error"]) == ("the node has no ready agent", "")
    assert (await asked(service, "/view/pods", {"live": "1"}, token="good"))[0] == 200


async def test_sums_are_for_everybody_and_pods_for_who_may_list_them(
    service: ViewService, subtests: pytest.Subtests
) -> None:
    sums = [("/view/cluster", {}), ("/view/nodes", {}), ("/view/nodes", {"gpus": "1", "live": "1"})]
    assert [(await asked(service, path, query))[0] for path, query in sums] == [200] * 3
    details: list[tuple[str, dict[str, str]]] = [
        ("/view/pods", {}),
        ("/view/pods", {"namespace": "d"}),
        ("/view/pods", {"namespace": "no-such-namespace"}),
        ("/view/pods", {"namespace": ""}),
        ("/view/pods", {"namespace": "*"}),
        ("/view/pods/d/waits", {}),
        ("/view/namespaces", {}),
        ("/view/events", {}),
        ("/view/events", {"namespace": "d", "kind": "pending"}),
        ("/view/nodes", {"holders": "1"}),
        ("/view/nodes/a", {}),
    ]
    for path, query in details:
        with subtests.test(path=path, query=query):
            status, refused = await asked(service, path, query)
            assert (status, sorted(refused)) == (403, ["error", "leader"])
            named = query.get("namespace", "d" if path.startswith("/view/pods/") else "")
            where = f"namespace {named}" if named not in ("", "*") else "all namespaces"
            assert refused["error"].startswith(f"the pods of {where} are shown with a token only; give ")
            assert (await asked(service, path, query, token="good"))[0] == 200
            assert (await asked(service, path, query, token="forged"))[0] == 401


def sharing(name: str, namespace: str, cores: int = 20) -> ClusterPod:
    """A pod with a part of the first GPU of node a."""
    one = pod(name, cores=cores, blocks=4)
    ref = PodRef(one.uid, namespace, name)
    containers = tuple(replace(each, ref=ContainerRef(ref, each.ref.name)) for each in one.pod.containers)
    one = replace(one, pod=replace(one.pod, ref=ref, containers=containers))
    return bound(one, "a", allocated(one, {"main": on_gpu("a", 0, cores, 4)}))


async def test_the_right_to_one_namespace_shows_its_pods_and_sums_of_all_others() -> None:
    extender = Extender(MemoryApi())
    extender.put_node(node("a", 2))
    extender.recent_events.begin()
    for each in (pod("waits"), sharing("ours", "d"), sharing("theirs", "e")):
        extender.put_pod(each)
    service = ViewService(extender, Leadership("replica-1"), TwoCallers(), LiveUse(no_agents), Installation("1.2.3"))
    for query in ({"namespace": "d"}, {}, {"namespace": "*"}):
        status, found = await asked(service, "/view/pods", query, token="of-d")
        assert (status, {row["pod"] for row in found["items"]}) == (200, {"waits", "ours"}), query
    status, found = await asked(service, "/view/events", {}, token="of-d")
    assert (status, {row["pod"] for row in found["items"]}) == (200, {"ours"})
    _, one = await asked(service, "/view/nodes/a", token="of-d")
    _, page = await asked(service, "/view/nodes", {"holders": "1"}, token="of-d")
    for row in (one["item"], page["items"][0]):
        gpu = row["gpus"][0]
        assert (gpu["pods"], [each["pod"] for each in gpu["holders"]]) == (2, ["ours"])
    assert (await asked(service, "/view/pods", {"namespace": "e"}, token="of-d"))[0] == 403
    rights = [await service.reads_all({TOKEN_HEADER: token}, "d", "10.0.0.7") for token in ("good", "of-d")]
    assert rights == [True, False]


async def test_whose_part_of_the_leader_a_question_takes_is_the_owner_of_its_first_token(service: ViewService) -> None:
    async def owner(*tokens: str) -> str:
        return await service.owner({TOKEN_HEADER: ",".join(tokens)} if tokens else {}, "10.0.0.7")

    assert [await owner(), await owner("good"), await owner("of-d", "good")] == ["", "user good", "user of-d"]
    with pytest.raises(HttpError) as refused:
        await owner("forged", "good")
    assert refused.value.status == 401


async def test_a_mistake_is_told(service: ViewService) -> None:
    cases: list[tuple[str, dict[str, str], int, str]] = [
        ("/view/nodes", {"limit": "x"}, 400, "limit is 'x'; write a number from 1 to 5000"),
        ("/view/cluster", {"x": "1"}, 400, "'x' is not a parameter; the parameters are live"),
        ("/view/nodes/zz", {}, 404, "no node 'zz' has vcuda's GPUs"),
        ("/view/pods/d/zz", {}, 404, "no pod d/zz requests GPUs and has not ended"),
        ("/view/pods/d", {}, 404, "no pod d/ requests GPUs and has not ended"),
        ("/view/nodes/", {}, 404, "no node '' has vcuda's GPUs"),
        ("/view/", {}, 404, f"no such view; the views are {VIEWS}"),
        ("/view/events", {"stage": "bound"}, 400, f"'stage' is not a parameter; {OF_EVENTS}"),
        ("/view/nodes", {"more": "e30"}, 400, "more is no token of a page; take it from the previous page"),
    ]
    found = [(path, query, *await asked(service, path, query, token="good")) for path, query, *_ in cases]
    assert found == [
        (path, query, status, {"error": sentence, "leader": "replica-1"}) for path, query, status, sentence in cases
    ]


async def test_documents_are_made_one_after_the_other(service: ViewService) -> None:
    found = await asyncio.gather(*(asked(service, "/view/nodes") for _ in range(20)))
    assert {status for status, _ in found} == {200}


class OneAgent(LiveUse):
    """Of node a: its first GPU is half busy, by the pods that run there."""

    def __init__(self, extender: Extender) -> None:
        super().__init__(no_agents)
        self.extender = extender
        self.asked: list[list[str]] = []

    async def of(self, nodes: Iterable[str], *, oldest_s: float = 5.0) -> Mapping[str, NodeUse]:
        self.asked.append(list(nodes))
        uids = [held.pod.uid for held in self.extender.cache.nodes["a"].holds.values()]
        shares: dict[tuple[str, str, str], ShareLive] = {
            (uid, "main", "GPU-a-0"): ShareLive(cores_used=25.0, memory_used_bytes=5) for uid in uids
        }
        use = NodeUse({"GPU-a-0": GpuLive(50, 10, 2)}, shares)
        return {name: use if name == "a" else NodeUse(error="it does not answer") for name in self.asked[-1]}


@pytest.fixture
def used() -> tuple[ViewService, OneAgent]:
    extender = Extender(MemoryApi())
    for name in ("a", "b"):
        extender.put_node(node(name, 2))
    extender.warm_up()
    extender.put_pod(sharing("mine", "d", 40))
    extender.put_pod(sharing("theirs", "secret", 30))
    extender.put_node(node("b", 2, ill=[1]))
    extender.put_pod(pod("waits"))
    live = OneAgent(extender)
    leader = Leadership("replica-1")
    installation = Installation("1", "gpus", "example.org", "gpu=yes", "https://g")
    made = ViewService(extender, leader, TwoCallers(), live, installation, wall=lambda: 7.0)
    return made, live


async def test_the_totals_have_what_is_used_where_that_is_asked_for(used: tuple[ViewService, OneAgent]) -> None:
    service, live = used
    _, quiet = await asked(service, "/view/cluster")
    assert (quiet["cores_used"], quiet["gpus_measured"], live.asked) == (None, None, [])
    _, found = await asked(service, "/view/cluster", {"live": "1"})
    assert (found["cores_used"], found["memory_used_bytes"], found["gpus_measured"]) == (50.0, 10, 1)
    assert (found["cores_allocated"], live.asked) == (70, [["a", "b"]])
    installed = {"scheduler_version": "1", "namespace": "gpus", "resource_domain": "example.org"}
    installed |= {"node_label": "gpu=yes", "grafana_url": "https://g"}
    assert {key: found[key] for key in installed} == installed


async def test_a_tenant_sees_his_namespaces_by_name_and_the_rest_as_sums(used: tuple[ViewService, OneAgent]) -> None:
    service, _ = used
    _, everything = await asked(service, "/view/namespaces", {"live": "1"}, token="good")
    assert [(row["namespace"], row["cores"], row["cores_idle"]) for row in everything["items"]] == [
        ("d", 40, 15.0),
        ("secret", 30, 5.0),
    ]
    assert everything["others"] is None
    status, found = await asked(service, "/view/namespaces", {"live": "1"}, token="of-d")
    assert (status, [row["namespace"] for row in found["items"]], found["total"]) == (200, ["d"], 1)
    assert (found["others"]["namespace"], found["others"]["cores"]) == ("", 30)


async def test_a_prefix_shows_the_pods_of_namespaces_that_the_caller_may_read(
    used: tuple[ViewService, OneAgent],
) -> None:
    service, _ = used
    for asks, seen in (("*", ["mine", "waits"]), ("d*", ["mine", "waits"])):
        status, found = await asked(service, "/view/pods", {"namespace": asks}, token="of-d")
        assert (status, [row["pod"] for row in found["items"]], found["total"]) == (200, seen, len(seen))
    for asks in ("s*", "secret*", "none*"):
        status, refused = await asked(service, "/view/pods", {"namespace": asks}, token="of-d")
        assert (status, sorted(refused)) == (403, ["error", "leader"]), "whether there are such namespaces or not"
    _, mine = await asked(service, "/view/events", {"namespace": "*"}, token="of-d")
    _, everything = await asked(service, "/view/events", {"namespace": "*"}, token="good")
    assert [{event["namespace"] for event in each["items"]} for each in (mine, everything)] == [
        {"d", ""},
        {"d", "secret", ""},
    ], "events of nodes and GPUs name no pods"
    _, found = await asked(service, "/view/pods", {"namespace": "*", "name": "THEIR"}, token="good")
    assert [row["pod"] for row in found["items"]] == ["theirs"]


async def test_a_pod_has_its_use_and_the_samples_of_this_replica(used: tuple[ViewService, OneAgent]) -> None:
    service, live = used
    _, first = await asked(service, "/view/pods/d/mine", token="of-d")
    assert (first["item"]["node"], first["history"], live.asked) == ("a", [], [])
    for _ in range(2):
        await service.sample()
    _, found = await asked(service, "/view/pods/d/mine", {"live": "1"}, token="of-d")
    (share,) = found["item"]["containers"][0]["shares"]
    assert (share["minor"], share["live"]["cores_used"]) == (0, 25.0)
    sample = {"at": 7.0, "cores_used": 25.0, "memory_used_bytes": 5, "throttled_seconds": None}
    assert (found["history"], live.asked) == ([sample, sample], [["a"]] * 3)
    _, pending = await asked(service, "/view/pods/d/waits", {"live": "1"}, token="of-d")
    assert (pending["item"]["stage"], pending["history"]) == ("pending", [])
    assert (await asked(service, "/view/pods/secret/theirs", token="of-d"))[0] == 403
