"""The order of nodes and pods by what is used, in a cluster of more nodes than one page has."""

from collections.abc import Mapping
from itertools import product

import pytest

from deviceplugin.cluster.view.live import NodeUse
from deviceplugin.cluster.view.query import NodeSort, NodesQuery, PageQuery, PodSort, PodsQuery
from deviceplugin.model.cluster_view import GpuLive, ShareLive
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.makers import bound, node, pod
from tests.cluster.view.scene import Scene, scene

NODES = 520
Uses = Mapping[str, NodeUse]


def name(number: int) -> str:
    return f"node-{number:03}"


def busy(number: int, *percents: int | None) -> NodeUse:
    return NodeUse({f"GPU-{name(number)}-{at}": GpuLive(percent) for at, percent in enumerate(percents)})


@pytest.fixture(scope="module")
def large() -> Scene:
    made = scene()
    for number in range(NODES):
        made.extender.put_node(node(name(number), 2))
    return made


@pytest.fixture(scope="module")
def uses() -> Uses:
    """The last node has the busiest GPU, the one before is the busiest of all; two do not answer."""
    found = {name(number): busy(number, number % 50, number % 50) for number in range(NODES)}
    found[name(NODES - 1)] = busy(NODES - 1, 99, 0)
    found[name(NODES - 2)] = busy(NODES - 2, 70, 70)
    found[name(7)] = NodeUse(error="its agent does not answer")
    found[name(8)] = busy(8, None, None)
    return found


async def nodes(made: Scene, uses: Uses, *, descending: bool = True, by_part: bool = False) -> list[str]:
    """By use, of all pages."""
    more, found = "", list[str]()
    while True:
        page = PageQuery(250, more, descending)
        answer = await made.views.nodes(NodesQuery(page, NodeSort.USED, by_part=by_part), uses)
        found += [row.node for row in answer.items]
        if not (more := answer.more):
            return found


async def test_the_busiest_of_all_nodes_comes_first_and_what_is_not_known_last(large: Scene, uses: Uses) -> None:
    ways = list(product((True, False), repeat=2))
    orders = {way: await nodes(large, uses, descending=way[0], by_part=way[1]) for way in ways}
    assert {way: set(found[-2:]) for way, found in orders.items()} == {way: {name(7), name(8)} for way in ways}
    found = orders[True, False]
    assert found[0] == name(NODES - 2)
    assert sorted(found) == sorted(uses)
    mean = {each: sum(gpu.utilization_percent or 0 for gpu in uses[each].gpus.values()) // 2 for each in found}
    assert [mean[each] for each in found] == sorted(mean.values(), reverse=True)
    assert orders[True, True][:2] == [name(NODES - 1), name(NODES - 2)], "by GPU it stands where its first GPU stands"
    assert name(NODES - 1) in orders[False, True][:12], "its other GPU is idle"


async def test_by_gpu_what_is_allocated_of_one_gpu_counts() -> None:
    made = scene()
    for each in "ab":
        made.extender.put_node(node(each, 4))
    made.runs("a", 0, 90, 8)
    for at in range(4):
        made.runs("b", at, 30, 16)
    page = PageQuery(descending=True)
    for sort in (NodeSort.CORES, NodeSort.MEMORY):
        rows = (await made.views.nodes(NodesQuery(page, sort))).items
        assert [row.node for row in rows] == ["b", "a"]
    rows = (await made.views.nodes(NodesQuery(page, NodeSort.CORES, by_part=True))).items
    assert [row.node for row in rows] == ["a", "b"]
    rows = (await made.views.nodes(NodesQuery(page, NodeSort.MEMORY, by_part=True))).items
    assert [row.node for row in rows] == ["b", "a"]


def use_of(one: ClusterPod, where: str, **live: float) -> dict[str, NodeUse]:
    return {where: NodeUse(shares={(one.uid, "main", f"GPU-{where}-0"): ShareLive(**live)})}  # type: ignore[arg-type]


async def test_of_many_pods_the_one_with_the_most_comes_first() -> None:
    fields = {
        PodSort.USED: "cores_used",
        PodSort.USED_MEMORY: "memory_used_bytes",
        PodSort.THROTTLED: "throttled_seconds",
    }
    made, uses = scene(), dict[PodSort, dict[str, NodeUse]]((sort, {}) for sort in fields)
    for number in range(NODES):
        where = name(number)
        made.extender.put_node(node(where, 1))
        one = made.runs(where, 0, 30, 8, name=f"p{number:03}")
        for sort, field in fields.items():
            if number != 3:
                uses[sort] |= use_of(one, where, **{field: NODES + 1 if number == NODES - 1 else number % 40})
    made.extender.put_pod(bound(pod("unlocated"), name(4)))
    for sort, by_part in product(fields, (False, True)):
        page = PageQuery(1000, descending=True)
        found = await made.views.pods(PodsQuery(page, sort, by_part=by_part), uses[sort])
        assert found.items[0].pod == f"p{NODES - 1}", (sort, by_part)
        assert {row.pod for row in found.items[-2:]} == {"p003", "unlocated"}, (sort, by_part)
        found = await made.views.pods(PodsQuery(PageQuery(1000), sort, by_part=by_part), uses[sort])
        assert found.items[-3].pod == f"p{NODES - 1}", (sort, by_part)
        assert {row.pod for row in found.items[-2:]} == {"p003", "unlocated"}, (sort, by_part)


async def test_the_most_idle_comes_first_and_who_uses_more_than_he_has_is_not_idle() -> None:
    made, uses = scene(), dict[str, NodeUse]()
    for at, (cores, used) in enumerate(((50, 50.0), (20, 70.0), (60, 10.0), (90, None))):
        where = name(at)
        made.extender.put_node(node(where, 2))
        one = made.runs(where, 0, cores, 8, name=f"p{at}")
        shares = {} if used is None else use_of(one, where, cores_used=used)[where].shares
        uses[where] = NodeUse(busy(at, None if used is None else int(used), 0).gpus, shares)
    page = PageQuery(descending=True)
    found = await made.views.pods(PodsQuery(page, PodSort.IDLE), uses)
    assert [row.pod for row in found.items] == ["p2", "p1", "p0", "p3"]
    rows = await made.views.nodes(NodesQuery(page, NodeSort.IDLE), uses)
    assert [row.node for row in rows.items] == [name(at) for at in (2, 3, 1, 0)], (
        "of n3 only the GPU counts that is measured"
    )
    rows = await made.views.nodes(NodesQuery(page, NodeSort.IDLE, by_part=True), uses)
    assert [row.node for row in rows.items] == [name(at) for at in (2, 3, 1, 0)]


async def test_only_agents_of_what_matches_are_asked(large: Scene) -> None:
    assert await large.views.node_names(NodesQuery(name="node-51")) == tuple(map(name, range(510, 520)))
    made = scene()
    made.extender.put_node(node("a", 1))
    made.runs("a", 0, 30, 8)
    made.extender.put_pod(pod("waits"))
    assert await made.views.nodes_of_pods(PodsQuery(namespace="d")) == {"a"}
    assert await made.views.nodes_of_pods(PodsQuery(namespace="d*", name="on-a")) == {"a"}
    assert await made.views.nodes_of_pods(PodsQuery(name="d/on")) == {"a"}, "a part of NAMESPACE/NAME"
    assert await made.views.nodes_of_pods(PodsQuery(namespace="d", name="d")) == frozenset(), "all are of d"
    for query in (PodsQuery(namespace="other"), PodsQuery(name="off"), PodsQuery(allowed=frozenset())):
        assert await made.views.nodes_of_pods(query) == frozenset()
