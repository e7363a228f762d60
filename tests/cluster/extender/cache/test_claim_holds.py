"""Who holds what by claims, in whatever order the watches deliver it."""

from collections.abc import Callable
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHolds, NodeClaims
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.rejection import UNKNOWN_NODE
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.claims import ClaimRequest, DeviceRequest, PodClaim, Taint
from deviceplugin.model.pod import ClusterPod
from deviceplugin.structs import replace
from tests.budget.dearest import cost_of
from tests.cluster.extender.makers import node
from tests.cluster.view.claims import FIFTH, NAMES, allocated, claim, claiming, offer
from tests.examples import examples

Step = Callable[[ClaimHolds], None]


def cache(*steps: Step) -> SchedulerCache:
    made = SchedulerCache(lambda: 0.0)
    for step in steps:
        step(made.claims)
        looked_at(made)  # what is asked between two events must not be kept
    return made


def looked_at(made: SchedulerCache, name: str = "a") -> NodeClaims:
    """Of no node if nothing is offered and nothing held there."""
    there = made.nodes[name].claims if name in made.nodes else NodeClaims(name)
    assert there.holds is there.holds
    return there


def waiting(made: SchedulerCache) -> list[ClusterPod]:
    return [each for each in made.claims.waiting.values() if made.claims.waits(each)]


ONE = claiming("one", "c", on="a")
HELD = allocated("c", "a", (1, 20, 8), for_pods=[ONE])
STEPS: tuple[Step, ...] = (
    lambda made: made.put_offer(offer("a")),
    lambda made: made.put_claim(HELD),
    lambda made: made.put_pod(ONE),
    lambda made: made.put_pod(claiming("two", "c")),
)


def test_the_order_of_events_does_not_matter() -> None:
    for order in permutations(range(len(STEPS))):
        made = cache(*(STEPS[at] for at in order))
        found = looked_at(made)
        (hold,) = found.holds
        assert (hold.device, hold.amount, hold.is_bound) == ("gpu-1", (20, 8), True), order
        assert (hold.users, hold.user) == (1, ContainerRef(ONE.pod.ref, "main")), (
            "it is reserved for one of the pods that name it"
        )
        assert [each.uid for each in made.claims.pods_on(found)] == [ONE.uid], order
        assert [each.pod.ref.name for each in waiting(made)] == ["two"], order


def test_what_ends_leaves_nothing() -> None:
    made = cache(*STEPS)
    made.claims.drop_pod(ONE.uid)
    found = looked_at(made)
    assert (made.claims.pods_on(found), found.holds[0].users) == ((), 0), "the claim is still allocated"
    made.claims.drop_claim(HELD.key)
    made.claims.drop_offer("a")
    made.claims.drop_pod(claiming("two", "c").uid)
    assert (made.nodes, waiting(made)) == ({}, [])


def test_only_what_is_of_a_node_changes_it() -> None:
    made = cache(*STEPS)
    there = looked_at(made)
    before, holds = there.version, there.holds
    made.claims.put_offer(offer("b"))
    made.claims.put_pod(claiming("three", "other"))
    assert (there.version, there.holds) == (before, holds)
    made.claims.put_pod(claiming("one", "c", on="a", containers={"other": ["c"]}))
    assert there.version > before
    assert there.holds[0].user == ContainerRef(ONE.pod.ref, "other")


def test_a_node_object_comes_and_goes_beside_its_claims() -> None:
    made = cache(*STEPS)
    made.put_node(node("a"))
    assert len(looked_at(made).holds) == 1
    made.drop_node("a")
    assert (len(looked_at(made).holds), made.nodes["a"].problem) == (1, UNKNOWN_NODE)


def test_a_claim_of_another_driver_holds_nothing_here() -> None:
    other = allocated("c", "a", (0, 1, 1), driver="gpu.example.com", requests=FIFTH)
    assert cache(lambda made: made.put_claim(other)).nodes == {}


def test_administrative_access_takes_nothing_from_others() -> None:
    assert HELD.devices is not None
    beside = replace(HELD, devices=tuple(replace(each, is_administrative=True) for each in HELD.devices))
    assert looked_at(cache(lambda made: made.put_claim(beside))).holds == ()


def test_of_the_slices_of_a_node_the_last_that_is_delivered_counts() -> None:
    made = cache(
        lambda made: made.put_offer(offer("a", [0, 1], generation=1)),
        lambda made: made.put_offer(offer("a", [0], generation=2)),
    )
    assert list(looked_at(made).gpus) == ["gpu-0"]
    made.claims.drop_offer("a")
    assert made.nodes == {}


def test_taints_say_why_a_gpu_gets_no_new_pods() -> None:
    taints = {0: Taint(NAMES.unhealthy, "xid-79"), 1: Taint(NAMES.cordoned, ""), 2: Taint("example.com/slow", "yes")}
    found = looked_at(cache(lambda made: made.put_offer(offer("a", range(4), taints=taints)))).gpus.values()
    assert [(each.closed, each.healthy) for each in found] == [
        *(("xid-79", False), ("cordoned", True), ("taint example.com/slow=yes", True), ("", True)),
    ]


def test_a_pod_waits_until_its_claim_is_reserved_for_it() -> None:
    made = cache(lambda made: made.put_claim(claim("c")), lambda made: made.put_pod(claiming("one", "c")))
    assert [each.pod.ref.name for each in waiting(made)] == ["one"]
    made.claims.put_claim(allocated("c", "a", (0, 20, 8), for_pods=[claiming("one", "c")]))
    assert waiting(made) == []
    assert [hold.is_bound for hold in looked_at(made).holds] == [False]
    assert made.claims.place(claiming("one", "c")) == "a"


def test_pods_of_other_drivers_are_not_ours() -> None:
    theirs = replace(claim("c"), requests=(replace(FIFTH[0], alternatives=()),))
    made = cache(lambda made: made.put_claim(theirs), lambda made: made.put_pod(claiming("one", "c")))
    assert waiting(made) == []
    for name, pod in (("a", claiming("a", whole_gpus=2)), ("b", claiming("b", templates=["vcuda-1x20c8b"]))):
        made.claims.put_pod(pod)
        assert [each.pod.ref.name for each in waiting(made)] == [name]
        made.claims.drop_pod(pod.uid)


def test_missing_claims_are_named() -> None:
    made = cache(lambda made: made.put_claim(claim("here")))
    assert made.claims.missing(claiming("one", "here", "gone", templates=["fifth"])) == (
        "ResourceClaim d/gone does not exist; create it",
        "the pod's claim t0 is not made yet from ResourceClaimTemplate d/fifth; check that the template exists",
    )


def shared(claims: int, pods: int, containers: int) -> tuple[SchedulerCache, list[ClusterPod]]:
    """On node a all pods share all claims, and their containers name all of them."""
    made, names = SchedulerCache(lambda: 0.0), [f"c{at}" for at in range(claims)]
    made.claims.put_offer(offer("a", [0]))
    using = {f"main{at}": names for at in range(containers)}
    found = [claiming(f"p{at}", *names, on="a", containers=using) for at in range(pods)]
    for pod in found:
        made.claims.put_pod(pod)
    for name in names:
        made.claims.put_claim(allocated(name, "a", (0, 1, 1), for_pods=found))
    return made, found


def lines(do: Callable[[], object]) -> int:
    async def run() -> None:
        do()

    return cost_of(run).total


def test_a_look_at_a_node_costs_what_its_parts_cost_however_many_pods_share_them() -> None:
    few, many = shared(100, 2, 10)[0], shared(100, 80, 10)[0]
    costs = [lines(lambda made=made: looked_at(made)) for made in (few, many)]  # type: ignore[misc]
    assert costs[1] < costs[0] + 10 * 80
    assert {(hold.users, hold.user) for hold in looked_at(many).holds} == {(800, None)}


def test_an_event_of_a_pod_that_shares_everything_costs_what_it_names() -> None:
    made, pods = shared(100, 80, 10)
    looked_at(made)
    again = replace(pods[7], pod=replace(pods[7].pod, resource_version="2"))
    steps: list[Callable[[], object]] = [
        *(lambda: made.claims.put_pod(again), lambda: looked_at(made)),
        *(lambda: made.claims.drop_pod(again.uid), lambda: looked_at(made)),
    ]
    assert max(map(lines, steps)) < 30_000
    there = looked_at(made)
    assert (there.holds[0].users, len(made.claims.pods_on(there))) == (790, 79)


def test_a_pod_that_names_a_claim_hundreds_of_times_is_looked_at_once() -> None:
    other = replace(claim("x"), requests=tuple(ClaimRequest(f"r{at}", (DeviceRequest("nic"),) * 8) for at in range(32)))
    pod = replace(claiming("p", "x"), claims=tuple(PodClaim(f"a{at}", "x") for at in range(256)))
    made = cache(lambda made: made.put_claim(other), lambda made: made.put_pod(pod))
    assert lines(lambda: waiting(made)) < 2_000


@st.composite
def events(draw: st.DrawFn) -> list[Step]:
    """Claims, pods and reservations that come, change and go, with names that are used again."""
    steps = list[Step]()
    for _ in range(draw(st.integers(1, 25))):
        name, is_gone = draw(st.sampled_from("pq")), draw(st.booleans())
        if draw(st.booleans()):
            mentions = draw(st.lists(st.sampled_from(["c", "c/gpu", "c/x", "d", "d/gpu"]), max_size=3))
            uid, on = f"{name}{draw(st.integers(1, 2))}", draw(st.sampled_from(["", "a"]))
            pod = claiming(name, "c", "d", on=on, containers={"one": mentions, "two": mentions[:1]}, uid=uid)
            steps.append(lambda made, pod=pod, gone=is_gone: made.drop_pod(pod.uid) if gone else made.put_pod(pod))  # type: ignore[misc]
        else:
            users = [
                claiming(uid[0], uid=uid) for uid in draw(st.lists(st.sampled_from(["p1", "p2", "q1"]), unique=True))
            ]
            one = allocated(draw(st.sampled_from("cd")), draw(st.sampled_from("ab")), (0, 1, 1), for_pods=users)
            steps.append(lambda made, one=one, gone=is_gone: made.drop_claim(one.key) if gone else made.put_claim(one))  # type: ignore[misc]
    return steps


@given(steps=events())
@examples(200)
def test_what_is_counted_by_events_is_what_claims_and_pods_say(steps: list[Step]) -> None:
    made = cache(*steps)
    for name in "ab":
        there = looked_at(made, name)
        for hold in there.holds:
            held = made.claims.claim((hold.claim.namespace, hold.claim.name))
            assert held is not None
            pods = [pod for uid in sorted(held.consumers) if (pod := made.claims.pods.get(PodUid(uid))) is not None]
            users = [
                ContainerRef(pod.pod.ref, one.ref.name)
                for pod in pods
                for one in pod.pod.containers
                if {(each.claim, each.request) for each in one.claims} & {(held.ref.name, ""), (held.ref.name, "gpu")}
            ]
            assert (hold.users, hold.user) == (len(users), users[0] if len(users) == 1 else None)
            assert hold.is_bound == all(pod.pod.node for pod in pods)
            assert {pod.uid for pod in pods} <= {pod.uid for pod in made.claims.pods_on(there)}
