"""Sums by namespace: what is allocated and used, who comes first, whose names are shown."""

from deviceplugin.cluster.view.live import NodeUse
from deviceplugin.cluster.view.query import NamespaceSort, NamespacesQuery, PageQuery
from deviceplugin.cluster.view.views import Uses
from deviceplugin.model.allocation import ContainerRef, PodRef
from deviceplugin.model.cluster_view import NamespaceRow, NamespacesView, ShareLive
from deviceplugin.model.pod import ClusterPod
from deviceplugin.structs import replace
from tests.cluster.extender.makers import allocated, bound, node, on_gpu, pod
from tests.cluster.view.scene import Scene, scene


def runs(made: Scene, namespace: str, name: str, at: int, cores: int, blocks: int) -> ClusterPod:
    one = pod(name, cores=cores, blocks=blocks)
    ref = PodRef(one.pod.ref.uid, namespace, name)
    containers = tuple(replace(each, ref=ContainerRef(ref, each.ref.name)) for each in one.pod.containers)
    one = replace(one, pod=replace(one.pod, ref=ref, containers=containers))
    made.extender.put_pod(bound(one, "a", allocated(one, {"main": on_gpu("a", at, cores, blocks)})))
    return one


def three() -> tuple[Scene, Uses]:
    """`busy` uses all, `idle` little, and of `dark` one of two pods is measured."""
    made = scene()
    made.extender.put_node(node("a", 4))
    busy = runs(made, "busy", "b", 0, 40, 8)
    idle = runs(made, "idle", "i", 1, 90, 4)
    dark = runs(made, "dark", "d1", 2, 30, 16)
    runs(made, "dark", "d2", 2, 30, 16)
    made.extender.put_pod(pod("pending"))
    shares: dict[tuple[str, str, str], ShareLive] = {
        (busy.uid, "main", "GPU-a-0"): ShareLive(cores_used=50.0, memory_used_bytes=7, throttled_seconds=2.0),
        (idle.uid, "main", "GPU-a-1"): ShareLive(cores_used=5.0, memory_used_bytes=9),
        (dark.uid, "main", "GPU-a-2"): ShareLive(cores_used=10.0),
    }
    return made, {"a": NodeUse(shares=shares)}


async def test_what_is_allocated_and_used_is_added_up_by_namespace() -> None:
    made, uses = three()
    found = await made.views.namespaces(NamespacesQuery(live=True), uses)
    assert found.items == (
        NamespaceRow("busy", 1, 40, 8, 50.0, 0.0, 7, 2.0, 40),
        NamespaceRow("dark", 2, 60, 32, 10.0, 20.0, None, None, 30),
        NamespaceRow("idle", 1, 90, 4, 5.0, 85.0, 9, None, 90),
    )
    assert (found.total, found.more, found.others) == (3, "", None)
    quiet = await made.views.namespaces(NamespacesQuery())
    assert {(row.cores_used, row.cores_idle, row.cores_measured) for row in quiet.items} == {(None, None, None)}


async def names(made: Scene, query: NamespacesQuery, uses: Uses) -> list[str]:
    return [row.namespace for row in (await made.views.namespaces(query, uses)).items]


async def test_the_order_is_by_any_amount_and_what_is_not_known_comes_last() -> None:
    made, uses = three()
    orders = {
        NamespaceSort.NAME: ["idle", "dark", "busy"],
        NamespaceSort.CORES: ["idle", "dark", "busy"],
        NamespaceSort.MEMORY: ["dark", "busy", "idle"],
        NamespaceSort.USED: ["busy", "dark", "idle"],
        NamespaceSort.USED_MEMORY: ["idle", "busy", "dark"],
        NamespaceSort.IDLE: ["idle", "dark", "busy"],
    }
    page = PageQuery(descending=True)
    found = {sort: await names(made, NamespacesQuery(page, sort), uses) for sort in orders}
    assert found == orders
    assert await names(made, NamespacesQuery(sort=NamespaceSort.USED_MEMORY), uses) == ["busy", "idle", "dark"]
    assert await names(made, NamespacesQuery(namespace="d*"), uses) == ["dark"]
    first = await made.views.namespaces(NamespacesQuery(PageQuery(2)), uses)
    assert await names(made, NamespacesQuery(PageQuery(2, first.more)), uses) == ["idle"]


async def test_namespaces_that_the_caller_may_not_read_are_one_row_of_sums() -> None:
    made, uses = three()
    found: NamespacesView = await made.views.namespaces(NamespacesQuery(), uses, frozenset({"idle", "none"}))
    assert ([row.namespace for row in found.items], found.total) == (["idle"], 1)
    assert found.others == NamespaceRow("", 3, 100, 40, 60.0, 20.0, 7, 2.0, 70)
    every = await made.views.namespaces(NamespacesQuery(namespace="*"), uses, frozenset({"idle", "none"}))
    assert every.others == found.others, "the page asks so for all"
    by_name = await made.views.namespaces(NamespacesQuery(namespace="i*"), uses, frozenset({"idle", "none"}))
    assert ([row.namespace for row in by_name.items], by_name.others) == (["idle"], None)
