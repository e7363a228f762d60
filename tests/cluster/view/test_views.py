"""What the view says of a cluster."""

import asyncio

import msgspec
import pytest

from deviceplugin.cluster.extender.explain.verdicts import Verdicts, reason_of
from deviceplugin.cluster.extender.rejection import AGENT_DOWN, NO_INVENTORY
from deviceplugin.cluster.view.query import NodeFilter, NodeSort, NodesQuery, PageQuery, PodSort, PodsQuery
from deviceplugin.model.cluster_view import PodStage
from deviceplugin.model.pod import ScheduledCondition
from deviceplugin.structs import replace
from tests.budget.dearest import cost_of
from tests.cluster.extender.makers import ask, bound, node, pod, refused
from tests.cluster.view.scene import Scene, scene


@pytest.fixture
def busy() -> Scene:
    """Node a: two GPUs, one shared; b: one of two is ill; c has no agent any more; d has a larger model."""
    made = scene()
    made.extender.put_node(node("a", 2))
    made.extender.put_node(node("b", 2, ill=[1]))
    made.extender.put_node(replace(node("c", 1), cores=0))
    made.extender.put_node(node("d", 1, model="NVIDIA H100", blocks=320, cordon=["0"]))
    made.runs("a", 0, 30, 8, name="one")
    made.runs("a", 0, 20, 8, name="two")
    return made


async def test_a_node_says_what_is_allocated_and_what_takes_no_pods(busy: Scene) -> None:
    found = await busy.views.nodes(NodesQuery())
    assert (found.total, found.more, found.replica, found.leader, found.at) == (4, "", "here", "there", 5.0)
    by_name = {row.node: row for row in found.items}
    a, b, c, d = (by_name[name] for name in "abcd")
    assert (a.cores, a.cores_allocated, a.blocks, a.blocks_allocated) == (200, 50, 128, 16)
    assert (a.gpu_count, a.free_gpus, a.unavailable_gpus, a.pods, a.problem) == (2, 1, 0, 2, "")
    assert (b.free_gpus, b.unavailable_gpus) == (1, 1)
    assert (c.free_gpus, c.unavailable_gpus) == (0, 1)
    assert "vcuda agent is down" in c.problem
    assert [each.unavailable_by_reason for each in (a, b, c, d)] == [{}, {"Xid 79": (1,)}, {}, {"cordoned": (0,)}]
    (down,) = busy.views.gpus("c")
    assert (down.available, down.reason) == (False, "vcuda agent is down")
    assert (d.free_gpus, d.unavailable_gpus, d.models) == (0, 1, {"NVIDIA H100": 1})
    assert (a.driver, a.cuda, a.gpus) == ("550.1", "12.4", ())


async def test_nodes_are_found_by_a_part_of_their_name() -> None:
    made = scene()
    for name in ("gpu-a-1", "gpu-b-1", "GPU-B-2"):
        made.extender.put_node(node(name, 1))
    found = await made.views.nodes(NodesQuery(name="-b-"))
    assert ([row.node for row in found.items], found.total) == (["GPU-B-2", "gpu-b-1"], 2)


async def test_the_gpus_of_a_node_have_their_holders(busy: Scene) -> None:
    found = busy.views.node("a")
    assert found is not None
    first, second = found.item.gpus
    assert (first.cores_allocated, first.blocks_allocated, first.available, first.reason) == (50, 16, True, "")
    assert [(each.namespace, each.pod, each.container, each.cores) for each in first.holders] == [
        ("d", "one", "main", 30),
        ("d", "two", "main", 20),
    ]
    assert second.holders == ()
    ill = busy.views.node("b")
    assert ill is not None
    seen = [(gpu.available, gpu.healthy, gpu.reason) for gpu in ill.item.gpus]
    assert seen == [(True, True, ""), (False, False, "Xid 79")]
    cordoned = busy.views.node("d")
    assert cordoned is not None
    assert [gpu.reason for gpu in cordoned.item.gpus] == ["cordoned"]
    assert busy.views.node("nobody") is None


async def test_a_row_follows_every_change_of_its_node(busy: Scene) -> None:
    async def allocated() -> int:
        found = await busy.views.nodes(NodesQuery())
        return next(row.cores_allocated for row in found.items if row.node == "a")

    assert await allocated() == 50
    third = busy.runs("a", 1, 40, 8, name="three")
    assert await allocated() == 90
    busy.extender.drop_pod(third.uid)
    assert await allocated() == 50
    busy.extender.put_node(node("a", 2, ill=[0]))
    found = await busy.views.nodes(NodesQuery())
    assert next(row.unavailable_gpus for row in found.items if row.node == "a") == 1
    busy.extender.drop_node("a")
    found = await busy.views.nodes(NodesQuery())
    gone = next(row for row in found.items if row.node == "a")
    assert (gone.problem, gone.gpu_count, gone.pods) == ("node is not in the GPU scheduler's cache yet", 0, 2)


async def test_nodes_are_found_and_sorted(busy: Scene) -> None:
    cases = [
        (NodesQuery(sort=NodeSort.CORES, page=PageQuery(descending=True)), ["a", "d", "c", "b"]),
        (NodesQuery(state=NodeFilter.FREE), ["a", "b"]),
        (NodesQuery(state=NodeFilter.PROBLEM), ["b", "c", "d"]),
        (NodesQuery(model="h100"), ["d"]),
        (NodesQuery(page=PageQuery(limit=2)), ["a", "b"]),
    ]
    found = [(query, [row.node for row in (await busy.views.nodes(query)).items]) for query, _ in cases]
    assert found == cases


async def test_the_cluster_is_the_sum(busy: Scene) -> None:
    busy.extender.put_node(replace(node("plain"), inventory=""))  # no GPUs, and of no interest
    waits = pod("waits", cores=700)
    busy.extender.put_pod(waits)
    busy.extender.filter(ask(waits, "a", "b"))
    found = await busy.views.cluster()
    assert (found.nodes, found.nodes_with_problem, found.gpus, found.free_gpus, found.unavailable_gpus) == (
        4,
        1,
        6,
        2,
        3,
    )
    assert (found.cores, found.cores_allocated, found.pods_bound, found.pods_reserved) == (600, 50, 2, 0)
    assert (found.pods_pending, found.pending_by_reason) == (1, {"not enough matching GPUs": 1})
    assert found.models == {"NVIDIA H100": 1, "Tesla T4": 5}
    assert found.scheduler_version == "1.2.3"


async def test_pods_wait_with_a_reason_are_reserved_and_bound(busy: Scene) -> None:
    chosen, large, other = pod("chosen"), pod("large", cores=700), pod("other")
    for each in (chosen, large):
        busy.extender.put_pod(each)
        busy.extender.filter(ask(each, "a", "b"))
    condition = ScheduledCondition(is_true=False, reason="Unschedulable", message="0/3 nodes are available: taints.")
    busy.extender.put_pod(replace(refused(other, "2"), condition=condition))
    found = {row.pod: row for row in (await busy.views.pods(PodsQuery())).items}
    assert {name: row.stage for name, row in found.items()} == {
        "one": PodStage.BOUND,
        "two": PodStage.BOUND,
        "chosen": PodStage.RESERVED,
        "large": PodStage.PENDING,
        "other": PodStage.PENDING,
    }
    assert found["large"].reason == "not enough matching GPUs (2 of 2 nodes)"
    assert found["other"].reason == "0/3 nodes are available: taints."
    (container,) = found["one"].containers
    assert [(share.minor, share.cores, share.blocks) for share in container.shares] == [(0, 30, 8)]
    assert found["chosen"].node in ("a", "b")
    waiting = await busy.views.pods(PodsQuery(stages=frozenset({PodStage.PENDING})))
    assert [row.pod for row in waiting.items] == ["large", "other"]
    assert [
        row.pod for row in (await busy.views.pods(PodsQuery(node="a", stages=frozenset({PodStage.BOUND})))).items
    ] == [
        "one",
        "two",
    ]
    by_cores = await busy.views.pods(PodsQuery(sort=PodSort.CORES, page=PageQuery(2, descending=True)))
    assert by_cores.items[0].pod == "large"


async def test_a_container_whose_gpu_is_not_known_has_no_shares(busy: Scene) -> None:
    busy.extender.put_pod(bound(pod("adopted"), "a"))
    found = await busy.views.pods(PodsQuery(node="a"))
    row = next(each for each in found.items if each.pod == "adopted")
    assert [(each.name, each.cores, each.shares) for each in row.containers] == [("main", 50, ())]


async def test_sums_have_no_name_of_a_pod(busy: Scene) -> None:
    secret = "ann-s-secret-project"
    busy.runs("b", 0, 10, 8, name=secret)
    waits = pod(secret + "-waits", cores=700)
    message = f'0/1 nodes are available: persistentvolumeclaim "data-{secret}-0" not found.'
    condition = ScheduledCondition(is_true=False, reason="Unschedulable", message=message)
    busy.extender.put_pod(replace(refused(waits, "2"), condition=condition))
    nodes = await busy.views.nodes(NodesQuery(with_gpus=True))
    documents = [await busy.views.cluster(), await busy.views.nodes(NodesQuery()), nodes]
    assert secret not in msgspec.json.encode(documents).decode()
    gpus = [gpu for row in nodes.items for gpu in row.gpus if row.node in ("a", "b")]
    assert [(gpu.pods, gpu.holders) for gpu in gpus] == [(2, ()), (0, ()), (1, ()), (0, ())]


async def test_a_node_that_goes_with_its_pods_while_they_are_listed_is_no_failure() -> None:
    made = scene()
    made.extender.put_node(node("a", 8))
    pods = [made.runs("a", number % 8, 1, 0, name=f"p{number:04}") for number in range(700)]
    listing = asyncio.create_task(made.views.pods(PodsQuery(page=PageQuery(5000))))
    await asyncio.sleep(0)  # the walk over the pods has begun, and gives way
    assert not listing.done()
    made.extender.drop_node("a")
    for each in pods:
        made.extender.drop_pod(each.uid)
    assert "a" not in made.extender.cache.nodes
    found = await listing
    assert {row.node for row in found.items} == {"a"}
    assert {share.minor for row in found.items for each in row.containers for share in each.shares} <= {*range(8), None}


def test_why_a_pod_waits_is_counted_once_and_not_for_each_view() -> None:
    """One tenant may have a thousand pods that filter has refused, each on thousands of nodes."""
    names, waits = tuple(f"n{at}" for at in range(5_000)), pod("waits")
    verdicts = Verdicts()
    verdicts.record(waits, None, dict.fromkeys(names, NO_INVENTORY) | {"n7": AGENT_DOWN})
    judged = verdicts.of(waits.uid)
    assert judged is not None
    found = reason_of(waits, replace(judged, reasons=()))
    assert found.kind == NO_INVENTORY.text
    assert f"{NO_INVENTORY.text} (4999 of 5000 nodes), {AGENT_DOWN.text} (1)" in found.sentence()


def test_a_node_with_very_many_shares_is_described_share_by_share() -> None:
    made = scene()
    made.extender.put_node(node("a", 16))
    for gpu in range(16):
        for at in range(20):
            made.runs("a", gpu, 1, 1, name=f"p{gpu}-{at}")

    async def described() -> None:
        found = made.views.node("a")
        assert found is not None
        assert [len(each.holders) for each in found.item.gpus] == [20] * 16

    asyncio.run(described())
    assert cost_of(described).total < 320 * 32
