"""Why a pod with claims waits, and what it has: kube-scheduler's sentence beside what the nodes have."""

import asyncio

import pytest

from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.claims import (
    ELSEWHERE,
    NO_ROOM,
    NOT_COMPARED,
    TAINTED,
    ClaimExplain,
)
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import ROOM_FOR_CLAIMS
from deviceplugin.model.claims import ClaimRequest, DeviceRequest, PodClaim, Taint
from deviceplugin.model.cluster_view import Explanation
from deviceplugin.model.pod import ClusterPod, ScheduledCondition
from deviceplugin.structs import replace
from tests.budget.dearest import Cost, cost_of
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import node, pod
from tests.cluster.view.claims import BLOCKS, FIFTH, NAMES, WHOLE, allocated, claim, claiming, offer

ONE_TURN = 60_000  # lines, some 10 ms
WHOLE_ANSWER = 12_000_000  # 2 s
NO_DEVICES = "0/3 nodes are available: 3 cannot allocate all claims."


@pytest.fixture
def cache() -> SchedulerCache:
    """Node a: GPU 0 has 10 cores free, GPU 1 is full; b: one GPU, ill; c: one GPU, free."""
    made = SchedulerCache(lambda: 0.0)
    made.claims.put_offer(offer("a"))
    made.claims.put_offer(offer("b", [0], taints={0: Taint(NAMES.unhealthy, "xid-79")}))
    made.claims.put_offer(offer("c", [0]))
    ann = claiming("ann", "large", on="a")
    made.claims.put_pod(ann)
    made.claims.put_claim(allocated("large", "a", (0, 90, 8), (1, 100, BLOCKS), for_pods=[ann]))
    return made


def explained(cache: SchedulerCache, pod: ClusterPod) -> Explanation:
    cache.claims.put_pod(pod)
    found = asyncio.run(ClaimExplain(cache).explain("d", pod.pod.ref.name))
    assert found is not None
    return found


def test_a_pod_with_room_waits_for_something_else(cache: SchedulerCache) -> None:
    cache.claims.put_claim(claim("mine"))
    found = explained(cache, claiming("waits", "mine", refused=NO_DEVICES))
    assert found.condition == NO_DEVICES
    assert found.asked == ("claim mine, request gpu: 20 cores and 2 GiB of one GPU",)
    assert found.sentence.startswith(
        "kube-scheduler has refused the pod; evaluated now, its claims have room on 1 of 3 nodes, so the pod is "
        "Pending for another reason: selectors"
    )
    (line,) = found.why
    assert line == (
        "claim mine, request gpu: room on 1 of 3 nodes (1 GPU); the largest free share is 100 cores and 16 GiB, of "
        "GPU 0 on node c; taints close 1 GPU"
    )
    assert found.reasons == {NO_ROOM.text: 1, TAINTED.text: 1, ROOM_FOR_CLAIMS.text: 1}
    assert [(each.node, each.reason, each.fix) for each in found.nodes] == [
        ("c", ROOM_FOR_CLAIMS.text, "nothing on its GPUs"),
        ("a", NO_ROOM.text, "10 more cores must become free on GPU 0"),
        ("b", TAINTED.text, "GPUs must become healthy, or be uncordoned"),
    ]
    nearest = found.nodes[1].gpus
    assert [each.against for each in nearest] == ["10 cores and 14 GiB are free", "0 cores and 0 GiB are free"]
    assert nearest[0].holders == ("d/ann: 90 cores, 2 GiB (claim)",)
    assert found.nodes[2].gpus[0].against == "xid-79"


def test_without_room_it_is_said_how_much_there_is(cache: SchedulerCache) -> None:
    cache.claims.drop_offer("c")
    cache.claims.put_claim(claim("mine"))
    found = explained(cache, claiming("waits", "mine"))
    assert found.sentence == (
        "kube-scheduler has not tried the pod yet; evaluated now, none of 2 nodes has room for its claims"
    )
    assert (
        "room on 0 of 2 nodes (0 GPUs); the largest free share is 10 cores and 14 GiB, of GPU 0 on node a"
        in (found.why[0])
    )


def test_a_claim_larger_than_any_gpu_needs_other_gpus(cache: SchedulerCache) -> None:
    cache.claims.put_claim(claim("huge", (ClaimRequest("gpu", (DeviceRequest(NAMES.shares, 1, 10, BLOCKS + 1),)),)))
    found = explained(cache, claiming("waits", "huge"))
    changes = {each.node: each.fix for each in found.nodes}
    assert changes["a"] == "the claim must ask for less, or the node must offer other GPUs"


@pytest.mark.parametrize("gpus", [3, 100_000])
def test_where_no_end_of_a_pod_helps_the_node_that_lacks_least_comes_first(cache: SchedulerCache, gpus: int) -> None:
    """b and c have one GPU each, and b's is ill."""
    cache.claims.drop_offer("a")
    cache.claims.put_offer(offer("a-two", [0, 1]))
    cache.claims.put_claim(claim("mine", (ClaimRequest("gpu", (DeviceRequest(NAMES.whole_gpus, gpus),)),)))
    assert [each.node for each in explained(cache, claiming("waits", "mine")).nodes] == ["a-two", "c", "b"]


def test_several_requests_are_judged_together_and_alone(cache: SchedulerCache) -> None:
    two = (replace(FIFTH[0], name="first"), replace(WHOLE[0], name="second"))
    cache.claims.put_claim(claim("mine", two))
    found = explained(cache, claiming("waits", "mine"))
    assert found.asked == (
        "claim mine, request first: 20 cores and 2 GiB of one GPU",
        "claim mine, request second: 1 whole GPU",
    )
    assert ROOM_FOR_CLAIMS.text not in found.reasons, "each alone would fit on node c"
    assert [line.split(";")[0] for line in found.why] == [
        "claim mine, request first: room on 1 of 3 nodes (1 GPU)",
        "claim mine, request second: room on 1 of 3 nodes (1 GPU)",
    ]


def test_whole_gpus_by_number_have_no_claim_yet(cache: SchedulerCache) -> None:
    found = explained(cache, claiming("waits", whole_gpus=2))
    assert found.asked == ("container main: 2 whole GPUs",)
    assert ROOM_FOR_CLAIMS.text not in found.reasons


def test_a_prioritized_list_shows_its_alternatives(cache: SchedulerCache) -> None:
    either = ClaimRequest("gpu", (DeviceRequest(NAMES.whole_gpus), DeviceRequest(NAMES.shares, None, 10, 8)))
    cache.claims.put_claim(claim("mine", (either,)))
    found = explained(cache, claiming("waits", "mine"))
    assert found.asked == ("claim mine, request gpu: 1 whole GPU or 10 cores and 2 GiB of each of all GPUs",)


def test_claims_that_do_not_exist_come_first(cache: SchedulerCache) -> None:
    found = explained(cache, claiming("waits", "gone", templates=["fifth"]))
    assert found.sentence == (
        "kube-scheduler has not tried the pod yet; ResourceClaim d/gone does not exist; create it"
    )
    assert any("ResourceClaimTemplate d/fifth" in line for line in found.asked)


def test_a_claim_of_another_class_is_said_to_be_none_of_ours(cache: SchedulerCache) -> None:
    theirs = (ClaimRequest("nic", (DeviceRequest("nic.example.com"),)),)
    cache.claims.put_claim(claim("theirs", theirs))
    found = explained(cache, claiming("waits", "theirs", refused=NO_DEVICES))
    assert found.sentence == "no claim of the pod asks for a class of vcuda (vcuda.tencent.com, vcuda-gpu.tencent.com)"
    assert found.asked == ("claim theirs, request nic: class nic.example.com, none of vcuda's",)
    assert found.condition == NO_DEVICES
    cache.claims.put_claim(claim("mine"))
    both = explained(cache, claiming("both", "mine", "theirs"))
    assert both.reasons[ROOM_FOR_CLAIMS.text] == 1
    assert both.asked[-1] == "claim theirs, request nic: class nic.example.com, none of vcuda's"


def test_a_shared_claim_ties_the_pod_to_its_node(cache: SchedulerCache) -> None:
    cache.claims.put_claim(claim("mine"))
    found = explained(cache, claiming("waits", "large", "mine"))
    assert found.reasons == {NO_ROOM.text: 1, ELSEWHERE.text: 2}
    assert found.nodes[0].node == "a"
    assert "claim large: allocated already, in pool a, for another pod" in found.asked


def test_a_pod_that_is_not_tried_says_why(cache: SchedulerCache) -> None:
    cache.claims.put_claim(claim("mine"))
    waits = claiming("waits", "mine")
    gated = replace(waits, condition=ScheduledCondition(False, "SchedulingGated"), gates=("a/1",))
    deleted = replace(waits, pod=replace(waits.pod, deleting=True))
    for each, begins in (
        (gated, "the pod is Pending until its scheduling gate a/1 is removed"),
        (deleted, "the pod is being deleted"),
    ):
        found = explained(cache, each)
        assert found.sentence.startswith(begins)
        assert found.sentence.endswith("its claims have room on 1 of 3 nodes"), "no other reason is looked for"


def test_where_no_node_offers_gpus_nothing_is_evaluated() -> None:
    found = explained(SchedulerCache(lambda: 0.0), claiming("waits", whole_gpus=1))
    assert found.sentence.endswith("no node offers GPUs to claims")
    assert (found.why, found.nodes) == ((), ())


def test_a_bound_pod_has_its_devices(cache: SchedulerCache) -> None:
    found = explained(cache, claiming("ann", "large", on="a"))
    assert found.sentence == ("the pod is bound to node a; kube-scheduler chose the node and the GPUs for its claims")
    assert found.asked == (
        "claim large, request gpu: 90 cores and 2 GiB of gpu-0 (GPU-a-0), for container main",
        "claim large, request gpu: 100 cores and 16 GiB of gpu-1 (GPU-a-1), for container main",
    )
    assert found.node == "a"


def test_a_pod_that_is_being_bound_has_them_too(cache: SchedulerCache) -> None:
    soon = claiming("soon", "c")
    cache.claims.put_claim(allocated("c", "c", (0, 20, 8), for_pods=[soon]))
    found = explained(cache, soon)
    assert found.sentence == "kube-scheduler chose node c and GPUs for the claims, and has not bound the pod yet"


def test_pods_without_claims_are_not_known_here(cache: SchedulerCache) -> None:
    assert asyncio.run(ClaimExplain(cache).explain("d", "nobody")) is None


async def test_a_pod_that_asks_in_both_ways_has_both_explanations() -> None:
    extender = Extender(MemoryApi())
    extender.put_node(node("a", 1))
    extender.cache.claims.put_claim(claim("mine"))
    both = replace(pod("both"), claims=claiming("both", "mine").claims)
    extender.put_pod(both)
    alone = await extender.explain("d", "both")
    extender.cache.claims.put_pod(both)
    found = await extender.explain("d", "both")
    assert alone is not None
    assert found is not None
    assert (found.sentence, found.nodes) == (alone.sentence, alone.nodes)
    assert found.asked == (*alone.asked, "claim mine, request gpu: 20 cores and 2 GiB of one GPU")


async def test_every_replica_explains_pods_with_claims_and_only_the_leader_those_that_wait_for_its_verdict() -> None:
    extender = Extender(MemoryApi())
    extender.put_pod(pod("plugin"))
    extender.cache.claims.put_claim(claim("mine"))
    extender.cache.claims.put_pod(claiming("claims", "mine"))
    for leads in (True, False):
        assert await extender.explain("d", "claims", leads=leads) is not None
        assert (await extender.explain("d", "plugin", leads=leads) is None) == (not leads)


def cost_of_explaining(cache: SchedulerCache, pod: ClusterPod) -> Cost:
    cache.claims.put_pod(pod)
    return cost_of(lambda: ClaimExplain(cache).explain("d", pod.pod.ref.name))


def requests(count: int, *, alternatives: int = 1, cores: int = 1) -> tuple[ClaimRequest, ...]:
    """All of them different."""
    return tuple(
        ClaimRequest(
            f"r{at}", tuple(DeviceRequest(NAMES.shares, 1, cores, at * 8 + one) for one in range(alternatives))
        )
        for at in range(count)
    )


def many_nodes(nodes: int, gpus: int = 8) -> SchedulerCache:
    made = SchedulerCache(lambda: 0.0)
    for at in range(nodes):
        made.claims.put_offer(offer(f"n{at}", list(range(gpus))))
    return made


def test_hundreds_of_names_for_one_claim_cost_what_one_costs() -> None:
    cache = many_nodes(4)
    cache.claims.put_claim(claim("mine", tuple(replace(FIFTH[0], name=f"r{at}") for at in range(32))))
    once = cost_of_explaining(cache, claiming("once", "mine"))
    names = tuple(PodClaim(f"a{at}", "mine") for at in range(256))
    often = cost_of_explaining(cache, replace(claiming("often", "mine"), claims=names))
    assert often.total < 2 * once.total
    assert len(explained(cache, replace(claiming("often", "mine"), claims=names)).asked) == 32


def test_requests_that_ask_for_the_same_are_judged_once() -> None:
    cache = many_nodes(20)
    cache.claims.put_claim(claim("one", FIFTH * 2))
    cache.claims.put_claim(claim("many", tuple(replace(FIFTH[0], name=f"r{at}") for at in range(32))))
    few, many = (cost_of_explaining(cache, claiming(each, each)) for each in ("one", "many"))
    assert many.total < 8 * few.total
    assert many.longest < ONE_TURN


def test_an_answer_gives_the_loop_its_turn_by_its_work_and_ends() -> None:
    cache, names = many_nodes(12, 128), [f"c{at}" for at in range(256)]
    for at, name in enumerate(names):
        cache.claims.put_claim(claim(name, requests(32, alternatives=8, cores=at % 100)))
    cost = cost_of_explaining(cache, claiming("dear", *names))
    assert cost.longest < ONE_TURN
    assert cost.total < WHOLE_ANSWER
    found = explained(cache, claiming("dear", *names))
    assert "; 7936 more requests or alternatives of the pod were not compared; 1" in found.sentence
    assert found.sentence.endswith("nodes were not compared, because the pod asks for so many different devices")
    assert found.reasons[NOT_COMPARED.text] > 1
    assert found.left_out == 12 - len(found.nodes)


def test_an_ordinary_pod_is_compared_with_every_node_of_a_large_cluster() -> None:
    cache = many_nodes(2_000)
    cache.claims.put_claim(claim("mine", requests(4)))
    assert NOT_COMPARED.text not in explained(cache, claiming("waits", "mine")).reasons


def test_a_claim_that_is_missing_under_many_names_is_said_once(cache: SchedulerCache) -> None:
    pod = replace(claiming("waits", "gone"), claims=tuple(PodClaim(f"a{at}", "gone") for at in range(256)))
    assert explained(cache, pod).asked == ("ResourceClaim d/gone does not exist; create it",)
