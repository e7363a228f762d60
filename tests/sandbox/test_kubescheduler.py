"""The stand-in kube-scheduler: what it asks an extender, what it makes of the answers, and when it asks again."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox.apiserver import ApiServer, container, node, pod
from sandbox.kubescheduler import KubeScheduler
from sandbox.scheduler import NoAnswerError

pytestmark = pytest.mark.thorough

Json = dict[str, Any]


class Extender:
    """Takes the first node that is offered and has not refused; binds in the store as the real one does."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.refuses: set[str] = set()
        self.away = False
        self.asked: list[tuple[str, Json]] = []

    async def ask(self, path: str, document: object = None) -> tuple[int, Any]:
        if self.away:
            raise NoAnswerError("connection refused")
        assert isinstance(document, dict)
        self.asked.append((path, document))
        if path == "/bind":
            self.server.store.bind(document["PodName"], document["Node"], namespace=document["PodNamespace"])
            return 200, {"Error": ""}
        fit = [name for name in document["NodeNames"] if name not in self.refuses]
        failed = {name: "no GPU" for name in document["NodeNames"] if name in self.refuses}
        answer = {"NodeNames": fit[:1], "FailedNodes": failed, "FailedAndUnresolvableNodes": {}, "Error": ""}
        return 200, answer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as made:
        for name, cores in (("a", 100), ("b", 200)):
            item = node(name)
            item["status"] = {"allocatable": {"tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": "640"}}
            made.store.create("nodes", item)
        yield made


def create(server: ApiServer, name: str, *, cores: int = 60) -> Json:
    item = pod(name, container(cores=cores, blocks=8))
    item["spec"]["schedulerName"] = "vcuda-scheduler"
    return server.store.create("pods", item, namespace="default")


def condition(server: ApiServer, name: str) -> Json:
    found: Json = server.store.get("pods", name, namespace="default")["status"]["conditions"][0]
    return found


def node_of(server: ApiServer, name: str) -> str:
    return str(server.store.get("pods", name, namespace="default")["spec"].get("nodeName", ""))


async def test_only_nodes_that_pass_its_own_filters_are_named_in_the_wires_own_words(server: ApiServer) -> None:
    extender = Extender(server)
    made = create(server, "p", cores=150)
    assert (await KubeScheduler(server, extender).schedule(made)).node == "b"
    meta = made["metadata"]
    assert extender.asked == [
        ("/filter", {"Pod": made, "Nodes": None, "NodeNames": ["b"]}),
        ("/bind", {"PodName": "p", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "b"}),
    ]


async def test_a_pod_without_a_node_gets_the_reasons(server: ApiServer) -> None:
    extender = Extender(server)
    extender.refuses = {"a", "b"}
    found = await KubeScheduler(server, extender).schedule(create(server, "p", cores=150))
    assert (found.node, found.why) == (
        "",
        "0/2 nodes are available: 1 Insufficient tencent.com/vcuda-core, 1 no GPU.",
    )
    assert condition(server, "p")["message"] == found.why
    assert condition(server, "p")["reason"] == "Unschedulable"


async def test_what_does_not_fit_anywhere_is_not_asked_about(server: ApiServer) -> None:
    extender = Extender(server)
    await KubeScheduler(server, extender).schedule(create(server, "p", cores=300))
    assert extender.asked == []


async def test_a_refused_pod_is_tried_again_when_another_one_goes_and_not_before(server: ApiServer) -> None:
    extender = Extender(server)
    extender.refuses = {"a", "b"}
    create(server, "other", cores=0)
    async with KubeScheduler(server, extender).at_work():
        create(server, "p")
        await server.until(lambda: "conditions" in server.store.get("pods", "p", namespace="default")["status"])
        extender.refuses = set()
        server.store.patch("pods", "p", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
        create(server, "later", cores=10)
        await server.until(lambda: node_of(server, "later") != "")
        assert node_of(server, "p") == ""
        server.store.delete("pods", "other", namespace="default")
        await server.until(lambda: node_of(server, "p") != "")


async def test_while_the_extender_is_away_a_pod_is_tried_again_and_again(server: ApiServer) -> None:
    extender = Extender(server)
    extender.away = True
    scheduler = KubeScheduler(server, extender)
    found = await scheduler.schedule(create(server, "p"))
    assert (found.failed, found.why) == (True, "the extender does not answer: connection refused")
    async with scheduler.at_work():
        extender.away = False
        await server.until(lambda: node_of(server, "p") != "")


async def test_a_gang_is_bound_as_a_whole_or_not_at_all(server: ApiServer) -> None:
    scheduler = KubeScheduler(server, Extender(server))
    large = [create(server, f"large-{number}", cores=100) for number in range(4)]
    found = await scheduler.find_all(large)
    assert [each.node for each in found] == ["a", "b", "b", ""], "members see each other's places"
    assert not await scheduler.end_cycle(large, found)
    assert {node_of(server, f"large-{number}") for number in range(4)} == {""}
    assert condition(server, "large-0")["message"].startswith(
        "the gang does not fit: 0/2 nodes are available: 2 Insuff"
    )
    fitting = large[:3]
    assert await scheduler.end_cycle(fitting, await scheduler.find_all(fitting))
    assert [node_of(server, f"large-{number}") for number in range(3)] == ["a", "b", "b"]
