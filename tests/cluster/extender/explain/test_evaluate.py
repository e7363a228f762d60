"""Pods about which kube-scheduler does not ask: their nodes are evaluated now."""

import asyncio

from deviceplugin.cluster.extender.cache.pod_hold import total_request
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.cluster_view import Explanation
from deviceplugin.model.pod import ClusterPod, ScheduledCondition
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, deleting, node, pod, running

CORES = "0/1 nodes are available: 1 Insufficient tencent.com/vcuda-core."
GATED = "Scheduling is blocked due to non-empty scheduling gates"
TAINT = "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: only}."


def unschedulable(one: ClusterPod, message: str, *, version: str = "2", reason: str = "Unschedulable") -> ClusterPod:
    condition = ScheduledCondition(is_true=False, reason=reason, text=hash(message), message=message)
    return replace(one, pod=replace(one.pod, resource_version=version), condition=condition)


async def said_of(extender: Extender, one: ClusterPod) -> Explanation:
    extender.put_pod(one)
    found = await extender.explain("d", one.pod.ref.name)
    assert found is not None
    return found


async def test_a_pod_larger_than_any_node_is_judged_now(extender: Extender) -> None:
    extender.put_node(node("a", 8))
    found = await said_of(extender, unschedulable(pod("p", cores=1000, blocks=0), CORES))
    assert found.sentence == (
        "kube-scheduler has not asked about the pod; evaluated now, the pod does not fit on the one node; "
        "kube-scheduler's own sums of cores and memory do not fit either, so it need not ask the extender"
    )
    assert (found.now, found.at, found.condition) == (True, None, CORES)
    assert found.asked == ("container main: 10 whole GPUs",)
    assert found.reasons == {"not enough matching GPUs": 1}
    assert found.nodes[0].fix == "request fewer GPUs, allow other GPUs, or add GPUs to the node"
    assert (len(found.nodes[0].gpus), found.left_out) == (8, 0)


async def test_of_a_full_cluster_it_is_said_who_holds_what_and_what_must_become_free(extender: Extender) -> None:
    for name in ("a", "b"):
        extender.put_node(node(name, 1))
    extender.put_pod(running("a", 0, 100, 64))
    extender.put_pod(running("b", 0, 60, 64))
    found = await said_of(extender, unschedulable(pod("p", cores=50, blocks=8), CORES))
    assert "evaluated now, the pod fits on none of the 2 nodes; kube-scheduler's own sums" in found.sentence
    assert [each.node for each in found.nodes] == ["b", "a"]
    assert found.nodes[0].gpus[0].holders == ("d/on-b-0: 60 cores, 16 GiB (bound)",)
    assert found.nodes[0].fix == "10 more cores and 2 GiB more must become free on GPU 0"


async def test_where_a_node_has_room_the_reason_lies_elsewhere(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    extender.put_node(node("cpu", text=""))
    found = await said_of(extender, unschedulable(pod("p"), TAINT))
    assert found.sentence == (
        "kube-scheduler has not asked about the pod; evaluated now, node a has room on its GPUs, so the pod is "
        "Pending for another reason: CPU, memory, taints, affinity, volumes or another check that kube-scheduler makes "
        "before it asks the extender"
    )
    assert found.condition == TAINT
    assert found.nodes[0].node == "a"
    assert (found.nodes[0].reason, found.nodes[0].fix) == ("its GPUs have room for the pod", "nothing on its GPUs")
    assert found.reasons == {"its GPUs have room for the pod": 1, "node has no vcuda GPU inventory": 1}
    extender.put_node(node("b", 1))
    assert "2 of 3 nodes have room on their GPUs" in (await said_of(extender, unschedulable(pod("p"), TAINT))).sentence


async def test_nothing_is_reserved_or_recorded_by_asking_why(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    one = unschedulable(pod("p"), TAINT)
    before = extender.verdicts.count
    await said_of(extender, one)
    assert (extender.verdicts.count, extender.verdicts.of(one.uid)) == (before, None)
    assert not list(extender.cache.holds(one.uid))
    assert not extender.verdicts.has_unplaced_pods


async def test_what_kube_scheduler_holds_against_a_node_whose_gpus_have_room_is_said_where_it_is_known() -> None:
    sums = "insufficient GPU resources by kube-scheduler's own sums, though single GPUs have room"
    cases = [
        (replace(node("a", 2), unschedulable=True), "node is unschedulable", "kubectl uncordon a"),
        (replace(node("a", 2), ready=False), "node is not ready", "its kubelet must report that the node is ready"),
        (
            *(replace(node("a", 2), cores=90), sums),
            "the pod requests 50 tencent.com/vcuda-core in total, and 30 of 90 are free",
        ),
        (
            *(replace(node("a", 2), blocks=12), sums),
            "the pod requests 8 tencent.com/vcuda-memory in total, and 4 of 12 are free",
        ),
    ]
    for made, reason, change in cases:
        extender = Extender(MemoryApi())
        extender.put_node(made)
        extender.put_pod(running("a", 0, 60, 8))
        found = await said_of(extender, unschedulable(pod("p"), CORES))
        assert "GPUs have room on the one node, but kube-scheduler can use none of these nodes" in found.sentence
        assert (found.nodes[0].reason, found.nodes[0].fix) == (reason, change)
        assert [gpu.against for gpu in found.nodes[0].gpus] == ["only 40 cores free", ""], reason


async def test_of_several_containers_it_is_not_claimed_that_a_barred_node_has_room(extender: Extender) -> None:
    extender.put_node(replace(node("a", 2), unschedulable=True))
    several = unschedulable(pod("p", more=[("side", ContainerRole.APP, 60, 1)]), TAINT)
    assert "GPUs may have room on the one node, but" in (await said_of(extender, several)).sentence


async def test_a_node_that_was_deleted_and_still_has_pods_is_none(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    extender.put_pod(running("a", 0, 60, 8))
    extender.drop_node("a")
    found = await said_of(extender, unschedulable(pod("p"), TAINT))
    assert (found.sentence.endswith("no node is known"), found.reasons) == (True, {})


async def test_enough_by_sums_and_no_gpu_with_room_means_another_reason(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    for at in range(2):
        extender.put_pod(running("a", at, 60, 8))
    found = await said_of(extender, unschedulable(pod("p"), TAINT))
    assert found.sentence.endswith(
        "the pod does not fit on the one node; by kube-scheduler's own sums it fits on the one node, so "
        "kube-scheduler refuses it for another reason too"
    )


def placed_by(scheduler: str, made: ClusterPod) -> ClusterPod:
    return replace(made, pod=replace(made.pod, scheduler=scheduler))


async def test_the_scheduler_that_should_ask_is_named(api: MemoryApi, clock: Clock) -> None:
    extender = Extender(api, PlacementSettings(scheduler="vcuda-scheduler"), clock=clock)
    extender.put_node(node("a", 1))
    for one, beginning in (
        (
            placed_by("vcuda-scheduler", pod("own")),
            "kube-scheduler has neither asked about the pod nor written a condition for it",
        ),
        (
            placed_by("volcano", pod("other")),
            "no scheduler has asked about the pod; its schedulerName is volcano, the",
        ),
        (pod("default"), "no scheduler has asked about the pod; its schedulerName is default-scheduler, the"),
        (deleting(pod("leaving")), "the pod is being deleted"),
        (
            unschedulable(replace(pod("gated"), gates=("kueue.x-k8s.io/admission",)), GATED, reason="SchedulingGated"),
            "the pod is Pending until its scheduling gate kueue.x-k8s.io/admission is removed; no scheduler chooses",
        ),
        (
            replace(pod("several"), gates=("a/1", "b/2", "c/3", "d/4", "e/5")),
            "the pod is Pending until its scheduling gates a/1, b/2, c/3 and 2 more are removed; no scheduler chooses",
        ),
        (
            unschedulable(placed_by("vcuda-scheduler", pod("opened")), GATED, reason="SchedulingGated"),
            "kube-scheduler has not asked about the pod;",
        ),
    ):
        found = await said_of(extender, one)
        assert found.sentence.startswith(beginning), found.sentence
        assert found.sentence.endswith("; evaluated now, node a has room on its GPUs"), found.sentence


async def test_without_nodes_and_with_nonsense_there_is_a_sentence(extender: Extender) -> None:
    assert (await said_of(extender, pod("p"))).sentence.endswith("evaluated now, no node is known")
    found = await said_of(extender, unschedulable(pod("odd", cores=150), CORES))
    assert found.sentence == "kube-scheduler has not asked about the pod; its request is wrong, so it fits on no node"
    assert "write 100 or 200" in found.asked[0]


async def test_a_verdict_stands_as_long_as_kube_scheduler_repeats_it_and_no_longer(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    extender.put_pod(running("a", 0, 60, 8))
    one = pod("p")
    extender.put_pod(one)
    assert not extender.filter(ask(one, "a")).names
    ours = unschedulable(one, "0/1 nodes are available: 1 insufficient vcuda-core on any one GPU.")
    found = await said_of(extender, ours)
    assert found.sentence == "the pod does not fit on the one node that kube-scheduler asked about"
    assert (found.now, found.condition) == (False, ours.condition.message if ours.condition else "")

    found = await said_of(extender, unschedulable(one, CORES, version="3"))
    assert found.sentence.startswith(
        "kube-scheduler has asked about the pod, and has since refused it for a reason outside the extender; evaluated "
        "now, the pod does not fit on the one node"
    )
    assert found.now
    assert found.at is not None


async def test_a_refusal_that_kube_scheduler_had_in_hand_when_it_asked_supersedes_nothing(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    extender.put_pod(running("a", 0, 60, 8))
    one = unschedulable(pod("p"), CORES)
    extender.put_pod(one)
    extender.filter(ask(one, "a"))
    assert not (await said_of(extender, one)).now


async def test_a_pod_refused_after_its_node_was_chosen_is_evaluated_again(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    one = pod("p")
    extender.put_pod(one)
    assert extender.filter(ask(one, "a")).names == ("a",)
    found = await said_of(extender, unschedulable(one, TAINT))
    assert found.sentence.startswith(
        "node a was chosen when kube-scheduler last asked, but it has since refused the pod; evaluated now,"
    )
    assert found.now


async def test_several_containers_are_tried_together_on_few_nodes_only(extender: Extender) -> None:
    """Each alone has room on every node; together only on the one that comes last."""
    for at in range(30):
        extender.put_node(node(f"n{at:02}", 2))
        extender.put_pod(running(f"n{at:02}", 0, 20, 8))
        extender.put_pod(running(f"n{at:02}", 1, 50, 8))
    several = unschedulable(pod("p", cores=60, blocks=1, more=[("side", ContainerRole.APP, 60, 1)]), TAINT)
    found = await said_of(extender, several)
    assert "the pod fits on none of the 30 nodes, as far as its containers were placed together" in found.sentence
    assert found.reasons == {
        "the pod's containers do not fit together": 20,
        "its GPUs have room for each container, but the containers were not placed together": 10,
    }
    extender.put_node(node("n00a", 2))
    found = await said_of(extender, several)
    assert "node n00a has room on its GPUs" in found.sentence


async def test_others_have_the_loop_while_all_nodes_of_a_large_cluster_are_judged(extender: Extender) -> None:
    for at in range(5000):
        extender.put_node(node(f"n{at:04}", 1))
    extender.put_pod(unschedulable(pod("p", cores=1000, blocks=0), CORES))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    found = await extender.explain("d", "p")
    beside.cancel()
    assert found is not None
    assert (len(found.nodes), found.left_out) == (20, 4980)
    assert turns > 2 * 5000 / 64, "after every 64 nodes at the latest, when they are judged and when they are compared"


async def test_a_node_that_goes_while_the_others_are_judged_is_no_bug(extender: Extender) -> None:
    for at in range(100):
        extender.put_node(node(f"n{at:02}", 1))
    extender.put_pod(unschedulable(pod("p"), TAINT))
    asked = asyncio.create_task(extender.explain("d", "p"))
    for at in range(100):
        await asyncio.sleep(0)
        extender.drop_node(f"n{at:02}")
    assert await asked is not None


def test_kube_schedulers_sum_is_what_runs_at_once() -> None:
    assert total_request(pod("p").pod) == GpuAmount(50, 8)
    assert total_request(pod("p", more=[("side", ContainerRole.APP, 20, 4)]).pod) == GpuAmount(70, 12)


def test_kube_schedulers_sum_of_init_containers_is_the_largest_beside_the_sidecars_before_it() -> None:
    one = pod("p", cores=50, blocks=8, more=[("s", ContainerRole.SIDECAR, 10, 1), ("i", ContainerRole.INIT, 80, 2)])
    app, sidecar, init = one.pod.containers
    assert total_request(replace(one.pod, containers=(sidecar, init, app))) == GpuAmount(90, 9)
    before = replace(init, index=0)
    assert total_request(replace(one.pod, containers=(before, sidecar, app))) == GpuAmount(80, 9)
