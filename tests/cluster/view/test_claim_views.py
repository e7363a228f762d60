"""The views of a cluster in which claims have GPUs: beside the device plugin's, and with the same promises."""

import msgspec
import pytest

from deviceplugin.cluster.extender.rejection import UNKNOWN_NODE
from deviceplugin.cluster.view.live import NodeUse, node_with_use, pod_with_use
from deviceplugin.cluster.view.query import (
    NamespacesQuery,
    NodeFilter,
    NodeSort,
    NodesQuery,
    PageQuery,
    PodSort,
    PodsQuery,
)
from deviceplugin.model.claims import ClaimRequest, DeviceRequest, NodeOffer, PodClaim, Taint
from deviceplugin.model.cluster_view import NodesView, PodStage, ShareLive, ShareSource
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.node import ClusterNode, format_inventory
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.topology import Topology
from deviceplugin.structs import replace
from tests.budget.dearest import cost_of
from tests.cluster.extender.makers import allocated as given
from tests.cluster.extender.makers import bound, inventory, node, on_gpu, pod
from tests.cluster.view.claims import BLOCKS, NAMES, WHOLE, allocated, claim, claiming, offer
from tests.cluster.view.scene import Scene, scene

ONE_TURN = 100_000  # lines, some 15 ms
WHOLE_ANSWER = 6_000_000
SICK = Taint(NAMES.unhealthy, "xid-79")
NO_ROOM = "0/2 nodes are available: 2 cannot allocate all claims."
BOUND_PODS = ["apart", "both", "one", "two"]


def only_for_claims(name: str) -> ClusterNode:
    """Its agent says that the device plugin has no GPU."""
    none = format_inventory(Inventory((), Topology((), {}), inventory(name).driver), share_mode=True)
    return replace(node(name, text=none), cores=0, blocks=0)


def split(name: str) -> tuple[ClusterNode, NodeOffer]:
    """GPU 0 is the device plugin's, GPU 1 is for claims."""
    return node(name, 1), offer(name, [1])


@pytest.fixture
def mixed() -> Scene:
    """Node a: two GPUs for claims; b: one of each kind; c: one for claims, ill.

    On a: `one` by a claim of its own, `two` and `both` share one. On b: `apart` by the device plugin.
    """
    made = scene()
    made.extender.put_node(only_for_claims("a"))
    made.claims.put_offer(offer("a"))
    there, offered = split("b")
    made.extender.put_node(there)
    made.claims.put_offer(offered)
    made.extender.put_node(only_for_claims("c"))
    made.claims.put_offer(offer("c", [0], taints={0: SICK}))
    one, two, both = claiming("one", "mine", on="a"), claiming("two", "ours", on="a"), claiming("both", "ours", on="a")
    for each in (one, two, both):
        made.claims.put_pod(each)
    made.claims.put_claim(allocated("mine", "a", (0, 20, 8), for_pods=[one]))
    made.claims.put_claim(allocated("ours", "a", (0, 30, 16), for_pods=[two, both]))
    made.runs("b", 0, 50, 8, name="apart")
    return made


async def test_nodes_have_the_gpus_of_both_kinds(mixed: Scene) -> None:
    found = {row.node: row for row in (await mixed.views.nodes(NodesQuery())).items}
    a, b, c = (found[name] for name in "abc")
    assert (a.problem, a.gpu_count, a.free_gpus, a.unavailable_gpus, a.pods) == ("", 2, 1, 0, 3)
    assert (a.cores, a.cores_allocated, a.blocks, a.blocks_allocated) == (200, 50, 2 * BLOCKS, 24)
    assert (a.models, a.driver, a.cuda) == ({"Tesla T4": 2}, "550.1", "12.4")
    assert (b.problem, b.gpu_count, b.free_gpus, b.cores_allocated, b.pods) == ("", 2, 1, 50, 1)
    assert (c.problem, c.gpu_count, c.free_gpus, c.unavailable_gpus) == ("", 1, 0, 1)


async def test_gpus_say_how_they_are_offered_and_holders_by_which_claim(mixed: Scene) -> None:
    found = mixed.views.node("a")
    assert found is not None
    first, second = found.item.gpus
    assert (first.uuid, first.minor, first.numa, first.cores_allocated, first.blocks_allocated) == (
        *("GPU-a-0", 0, 0, 50, 24),
    )
    assert [(each.pod, each.container, each.cores, each.claim, each.users, each.source) for each in first.holders] == [
        ("one", "main", 20, "mine", 1, ShareSource.CLAIM),
        ("ours", "gpu", 30, "ours", 2, ShareSource.CLAIM),
    ]
    assert (second.source, second.available, second.holders) == (ShareSource.CLAIM, True, ())
    both = mixed.views.node("b")
    assert both is not None
    assert [(gpu.minor, gpu.source.value) for gpu in both.item.gpus] == [(0, "device-plugin"), (1, "claim")]
    ill = mixed.views.node("c")
    assert ill is not None
    assert [(gpu.available, gpu.healthy, gpu.reason) for gpu in ill.item.gpus] == [(False, False, "xid-79")]


async def test_a_row_follows_every_change_of_its_claims(mixed: Scene) -> None:
    async def seen() -> tuple[int, int, int]:
        (row,) = (await mixed.views.nodes(NodesQuery(name="a"))).items
        return row.cores_allocated, row.pods, row.unavailable_gpus

    assert await seen() == (50, 3, 0)
    new = claiming("new", "more", on="a")
    mixed.claims.put_claim(allocated("more", "a", (1, 40, 8), for_pods=[new]))
    assert await seen() == (90, 3, 0)
    mixed.claims.put_pod(new)
    assert await seen() == (90, 4, 0)
    mixed.claims.put_offer(offer("a", taints={1: SICK}))
    assert await seen() == (90, 4, 1)
    mixed.claims.drop_claim(("d", "more"))
    assert await seen() == (50, 3, 1)


async def test_a_node_whose_slice_is_gone_still_has_its_pods(mixed: Scene) -> None:
    mixed.claims.drop_offer("a")
    (row,) = (await mixed.views.nodes(NodesQuery(name="a"))).items
    assert (row.problem, row.gpu_count, row.pods) == ("node has no vcuda GPU inventory", 0, 3)
    (one,) = [each for each in (await mixed.views.pods(PodsQuery(node="a"))).items if each.pod == "one"]
    assert [(share.uuid, share.minor, share.cores) for share in one.containers[0].shares] == [("gpu-0", None, 20)]


async def test_a_node_that_is_gone_has_its_pods_and_no_free_gpu(mixed: Scene) -> None:
    mixed.extender.drop_node("a")
    (row,) = (await mixed.views.nodes(NodesQuery(name="a"))).items
    assert (row.problem, row.gpu_count, row.free_gpus, row.pods) == (UNKNOWN_NODE.text, 2, 0, 3)
    gone = mixed.views.node("a")
    assert gone is not None
    assert {(gpu.available, gpu.reason) for gpu in gone.item.gpus} == {(False, UNKNOWN_NODE.text)}
    assert [each.pod for each in (await mixed.views.pods(PodsQuery(node="a"))).items] == ["both", "one", "two"]


async def test_a_gpu_that_changed_sides_keeps_what_the_other_side_holds(mixed: Scene) -> None:
    """To the device plugin: the inventory has it, and the claim's device is found by its minor."""
    mixed.claims.drop_offer("a")
    mixed.extender.put_node(node("a", 2, ill=[0]))
    found = mixed.views.node("a")
    assert found is not None
    first = found.item.gpus[0]
    assert (first.uuid, first.source.value, first.cores_allocated) == ("GPU-a-0", "device-plugin", 50)
    mixed.claims.put_offer(offer("b", [0, 1]))
    moved = mixed.views.node("b")
    assert moved is not None
    held = moved.item.gpus[0]
    assert (held.source.value, held.cores_allocated, [each.pod for each in held.holders]) == ("claim", 50, ["apart"])
    assert moved.item.problem == ""


async def test_a_broken_inventory_stays_a_problem_beside_claims(mixed: Scene) -> None:
    mixed.extender.put_node(node("b", text="{"))
    (row,) = (await mixed.views.nodes(NodesQuery(name="b"))).items
    assert (row.gpu_count, "vcuda-inventory" in row.problem) == (1, True)


async def test_nodes_with_claims_are_found_and_sorted(mixed: Scene) -> None:
    cases = [
        (NodesQuery(sort=NodeSort.FREE, page=PageQuery(descending=True)), ["b", "a", "c"]),
        (NodesQuery(sort=NodeSort.MEMORY, by_part=True, page=PageQuery(descending=True)), ["a", "b", "c"]),
        (NodesQuery(state=NodeFilter.FREE), ["a", "b"]),
        (NodesQuery(state=NodeFilter.PROBLEM), ["c"]),
        (NodesQuery(model="t4", page=PageQuery(limit=2)), ["a", "b"]),
    ]
    found = [(query, [row.node for row in (await mixed.views.nodes(query)).items]) for query, _ in cases]
    assert found == cases


async def test_the_cluster_counts_both(mixed: Scene) -> None:
    mixed.claims.put_claim(claim("large"))
    mixed.claims.put_pod(claiming("waits", "large", refused=NO_ROOM))
    mixed.claims.put_pod(claiming("early", whole_gpus=2))
    found = await mixed.views.cluster()
    assert (found.nodes, found.nodes_with_problem, found.gpus, found.free_gpus, found.unavailable_gpus) == (
        3,
        0,
        5,
        2,
        1,
    )
    assert (found.cores, found.cores_allocated, found.pods_bound, found.pods_reserved) == (500, 100, 4, 0)
    assert found.pending_by_reason == {
        "its ResourceClaims can be allocated on no node": 1,
        "kube-scheduler has not asked about it": 1,
    }


async def test_pods_by_claims_stand_among_the_others(mixed: Scene) -> None:
    mixed.claims.put_claim(claim("large", WHOLE))
    mixed.claims.put_pod(claiming("waits", "large", refused=NO_ROOM))
    chosen = claiming("chosen", "soon")
    mixed.claims.put_pod(chosen)
    mixed.claims.put_claim(allocated("soon", "b", (1, 20, 8), for_pods=[chosen]))
    mixed.claims.put_pod(claiming("lost", "gone", templates=["vcuda-1x20c8b"]))
    found = {row.pod: row for row in (await mixed.views.pods(PodsQuery())).items}
    assert list(found) == sorted([*BOUND_PODS, "chosen", "lost", "waits"])
    assert {name: (row.stage.value, row.node) for name, row in found.items() if name not in BOUND_PODS} == {
        "chosen": ("reserved", "b"),
        "lost": ("pending", None),
        "waits": ("pending", None),
    }
    (container,) = found["waits"].containers
    assert (container.cores, container.blocks, container.claim, container.shares) == (100, 0, "large", ())
    assert found["waits"].reason == NO_ROOM
    assert found["lost"].reason.startswith("ResourceClaim d/gone does not exist; create it")
    (container,) = found["two"].containers
    assert (container.name, container.cores, container.source.value, container.claim) == ("main", 30, "claim", "ours")
    assert [(share.uuid, share.minor, share.blocks) for share in container.shares] == [("GPU-a-0", 0, 16)]
    assert [each.source.value for each in found["apart"].containers] == ["device-plugin"]


async def test_pods_with_claims_are_found_and_sorted(mixed: Scene) -> None:
    cases: list[tuple[PodsQuery, list[str | None]]] = [
        (PodsQuery(node="a"), ["both", "one", "two"]),
        (PodsQuery(stages=frozenset({PodStage.BOUND}), sort=PodSort.CORES), ["one", "both", "two", "apart"]),
        (PodsQuery(sort=PodSort.NODE), ["both", "one", "two", "apart"]),
        (PodsQuery(namespace="other"), []),
        (PodsQuery(stages=frozenset({PodStage.PENDING})), []),
    ]
    found = [(query, [row.pod for row in (await mixed.views.pods(query)).items]) for query, _ in cases]
    assert found == cases
    assert await mixed.views.nodes_of_pods(PodsQuery()) == {"a", "b"}


async def test_pages_of_pods_with_claims_are_complete(mixed: Scene) -> None:
    more, found = "", list[str | None]()
    while True:
        page = await mixed.views.pods(PodsQuery(page=PageQuery(2, more)))
        found += [row.pod for row in page.items]
        assert page.total == 4
        if not (more := page.more):
            break
    assert found == BOUND_PODS


async def test_a_pod_that_asks_in_both_ways_is_one(mixed: Scene) -> None:
    asks = replace(pod("apart-too", cores=10, blocks=1), claims=claiming("x", "second").claims)
    there = bound(asks, "b", given(asks, {"main": on_gpu("b", 0, 10, 1)}))
    mixed.extender.put_pod(there)
    mixed.claims.put_pod(with_container(there, claiming("x", "second", on="b")))
    mixed.claims.put_claim(allocated("second", "b", (1, 20, 8), for_pods=[there]))
    (row,) = [each for each in (await mixed.views.pods(PodsQuery())).items if each.pod == "apart-too"]
    assert [(each.name, each.cores, each.source.value) for each in row.containers] == [
        ("main", 10, "device-plugin"),
        ("side", 20, "claim"),
    ]
    (found,) = (await mixed.views.nodes(NodesQuery(name="b"))).items
    assert (found.pods, found.cores_allocated) == (2, 80)


def with_container(asks: ClusterPod, other: ClusterPod) -> ClusterPod:
    """The pod with a container `side` that names what the other's names."""
    side = replace(other.pod.containers[0], ref=replace(asks.pod.containers[0].ref, name="side"), index=1)
    return replace(asks, pod=replace(asks.pod, containers=(*asks.pod.containers, side)))


async def test_sums_have_no_name_of_a_pod_or_claim(mixed: Scene) -> None:
    mixed.claims.put_pod(claiming("hidden-pod", "hidden-claim", templates=["vcuda-1x20c8b"], uid="u-1"))
    hidden = claiming("hidden-runner", "hidden-held", on="a", uid="u-2")
    mixed.claims.put_pod(hidden)
    mixed.claims.put_claim(allocated("hidden-held", "a", (1, 1, 1), for_pods=[hidden]))
    documents = [await mixed.views.cluster(), await mixed.views.nodes(NodesQuery(with_gpus=True))]
    assert b"hidden" not in msgspec.json.encode(documents)


async def test_clients_decode_both_and_older_ones_ignore_what_they_do_not_know(mixed: Scene) -> None:
    found = await mixed.views.nodes(NodesQuery(with_gpus=True, with_holders=True))
    assert msgspec.json.decode(msgspec.json.encode(found), type=NodesView) == found

    class OlderHolder(msgspec.Struct):
        uid: str
        pod: str
        cores: int

    class OlderGpu(msgspec.Struct):
        holders: tuple[OlderHolder, ...]

    class OlderNode(msgspec.Struct):
        node: str
        gpus: tuple[OlderGpu, ...]

    class Older(msgspec.Struct):
        items: tuple[OlderNode, ...]

    read = msgspec.json.decode(msgspec.json.encode(found), type=Older)
    assert [each.pod for each in read.items[0].gpus[0].holders] == ["one", "ours"]


async def test_what_agents_say_of_claims_joins_by_container_or_by_the_claim(mixed: Scene) -> None:
    used = ShareLive(cores_used=12.0), ShareLive(cores_used=25.0)
    use = NodeUse(shares={("pod-one", "main", "GPU-a-0"): used[0], ("claim-ours", "gpu", "GPU-a-0"): used[1]})
    found = mixed.views.node("a")
    assert found is not None
    assert tuple(each.live for each in node_with_use(found.item, use, found.item.gpus).gpus[0].holders) == used
    rows = {row.pod: pod_with_use(row, use) for row in (await mixed.views.pods(PodsQuery(node="a"))).items}
    assert rows["one"].containers[0].shares[0].live == used[0]
    assert rows["two"].containers[0].shares[0].live is None, "nobody measures one container of a shared claim"
    by_use = PodsQuery(sort=PodSort.USED, page=PageQuery(descending=True), live=True)
    ordered = await mixed.views.pods(by_use, {"a": use})
    assert ordered.items[0].pod == "one"


def many_aliases(name: str, claim_name: str, *, mentions: int = 0) -> ClusterPod:
    """A pod with 256 names for one claim."""
    containers = {f"m{at}": [claim_name] * (mentions // 32) for at in range(32)} if mentions else None
    pod = claiming(name, claim_name, containers=containers)
    return replace(pod, claims=tuple(PodClaim(f"a{at}", claim_name) for at in range(256)))


async def every_view(made: Scene) -> None:
    await made.views.cluster()
    for sort in (PodSort.NAME, PodSort.CORES):
        await made.views.pods(PodsQuery(sort=sort, page=PageQuery(1000)))
    await made.views.nodes_of_pods(PodsQuery())
    await made.views.nodes(NodesQuery(with_gpus=True, page=PageQuery(500)))


def test_the_pods_of_one_tenant_keep_no_view_from_giving_others_their_turn() -> None:
    """Some wait for another driver's devices, and are in no view; some for a claim of 32 requests in 32 containers."""
    made = scene()
    nic = tuple(ClaimRequest(f"r{at}", (DeviceRequest("nic"),) * 8) for at in range(32))
    made.claims.put_claim(claim("nic", nic))
    made.claims.put_claim(claim("many", tuple(replace(WHOLE[0], name=f"r{at}") for at in range(32))))
    for at in range(300):
        made.claims.put_pod(many_aliases(f"nic-{at}", "nic"))
    for at in range(40):
        made.claims.put_pod(many_aliases(f"many-{at}", "many", mentions=1024))
    cost = cost_of(lambda: every_view(made))
    assert cost.longest < ONE_TURN
    assert cost.total < WHOLE_ANSWER


def test_nodes_with_very_many_shares_keep_no_view_from_giving_others_their_turn() -> None:
    made = scene()
    for number in range(20):
        name = f"n{number}"
        made.extender.put_node(only_for_claims(name))
        made.claims.put_offer(offer(name, range(8)))
        for gpu in range(8):
            users = [claiming(f"{name}-{gpu}-{at}", f"{name}-{gpu}-{at}", on=name) for at in range(60)]
            for user in users:
                made.claims.put_pod(user)
                made.claims.put_claim(allocated(user.claims[0].claim, name, (gpu, 1, 1), for_pods=[user]))
    cost = cost_of(lambda: every_view(made))
    assert cost.longest < ONE_TURN


async def test_a_page_shows_a_part_of_what_hundreds_of_containers_share() -> None:
    made, names = scene(), [f"c{at}" for at in range(20)]
    made.extender.put_node(only_for_claims("a"))
    made.claims.put_offer(offer("a", range(8)))
    pod = claiming("p", *names, on="a", containers={f"m{at}": names for at in range(50)})
    made.claims.put_pod(pod)
    for name in names:
        made.claims.put_claim(allocated(name, "a", *[(at % 8, 1, 1) for at in range(32)], for_pods=[pod]))
    (row,) = (await made.views.pods(PodsQuery())).items
    assert [each.cores for each in row.containers] == [640] * 50, "the sums are of all"
    assert sum(len(each.shares) for each in row.containers) == 1024


async def test_by_namespace_what_pods_have_by_claims_counts_once(mixed: Scene) -> None:
    (row,) = (await mixed.views.namespaces(NamespacesQuery())).items
    cluster = await mixed.views.cluster()
    assert (row.namespace, row.cores, row.blocks) == ("d", cluster.cores_allocated, cluster.blocks_allocated)
    assert row.pods == cluster.pods_bound == 4
