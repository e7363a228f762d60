"""Who holds what by claims, in whatever order the watches deliver it."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.view.claim_books import ClaimBooks, ClaimUser
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.claims import ClaimRequest, DeviceRequest, PodClaim
from deviceplugin.model.pod import ClusterPod
from tests.budget.dearest import cost_of
from tests.cluster.view.claims import FIFTH, NAMES, allocated, claim, claiming, offer
from tests.examples import examples

Step = Callable[[ClaimBooks], None]


def books(*steps: Step) -> ClaimBooks:
    made = ClaimBooks(NAMES)
    for step in steps:
        step(made)
        made.node("a")  # what is asked between two events must not be kept
    return made


def waiting(made: ClaimBooks) -> list[ClusterPod]:
    return [each for each in made.unbound() if made.waits(each)]


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
        made = books(*(STEPS[at] for at in order))
        found = made.node("a")
        assert found is not None, order
        (part,) = found.parts
        assert (part.device, part.cores, part.blocks, part.is_bound) == ("gpu-1", 20, 8, True), order
        assert (part.users, part.user) == (1, ClaimUser(ONE.pod.ref, "main")), (
            "it is reserved for one of the pods that name it"
        )
        assert [each.uid for each in found.pods] == [ONE.uid], order
        assert [each.pod.ref.name for each in waiting(made)] == ["two"], order


def test_what_ends_leaves_nothing() -> None:
    made = books(*STEPS)
    made.drop_pod(ONE)
    found = made.node("a")
    assert found is not None
    assert (found.pods, found.parts[0].users) == ((), 0), "the claim is still allocated"
    made.drop_claim(HELD)
    made.drop_offer(offer("a"))
    made.drop_pod(claiming("two", "c"))
    assert (made.node("a"), waiting(made), made.offering()) == (None, [], ())


def test_a_node_without_change_is_the_same_object() -> None:
    made = books(*STEPS)
    before = made.node("a")
    made.put_offer(offer("b"))
    made.put_pod(claiming("three", "other"))
    assert made.node("a") is before


def test_a_claim_of_another_driver_holds_nothing_here() -> None:
    made = books(lambda made: made.put_claim(allocated("c", "a", (0, 1, 1), driver="gpu.example.com", requests=FIFTH)))
    assert made.node("a") is None


def test_administrative_access_takes_nothing_from_others() -> None:
    assert HELD.devices is not None
    beside = replace(HELD, devices=tuple(replace(each, is_administrative=True) for each in HELD.devices))
    found = books(lambda made: made.put_claim(beside)).node("a")
    assert found is not None
    assert found.parts == ()


def test_of_the_slices_of_a_node_the_last_that_is_delivered_counts() -> None:
    made = books(
        lambda made: made.put_offer(offer("a", [0, 1], generation=1)),
        lambda made: made.put_offer(offer("a", [0], generation=2)),
    )
    found = made.node("a")
    assert found is not None
    assert [each.gpu.minor for each in found.gpus] == [0]
    made.drop_offer(offer("a", generation=2))
    assert (made.node("a"), made.offering()) == (None, ())


def test_a_pod_waits_until_its_claim_is_reserved_for_it() -> None:
    made = books(lambda made: made.put_claim(claim("c")), lambda made: made.put_pod(claiming("one", "c")))
    assert [each.pod.ref.name for each in waiting(made)] == ["one"]
    made.put_claim(allocated("c", "a", (0, 20, 8), for_pods=[claiming("one", "c")]))
    assert waiting(made) == []
    found = made.node("a")
    assert found is not None
    assert [part.is_bound for part in found.parts] == [False]
    assert made.place(claiming("one", "c")) == "a"


def test_pods_of_other_drivers_are_not_ours() -> None:
    theirs = replace(claim("c"), requests=(replace(FIFTH[0], alternatives=()),))
    made = books(lambda made: made.put_claim(theirs), lambda made: made.put_pod(claiming("one", "c")))
    assert waiting(made) == []
    for name, pod in (("a", claiming("a", whole_gpus=2)), ("b", claiming("b", templates=["vcuda-1x20c8b"]))):
        made.put_pod(pod)
        assert [each.pod.ref.name for each in waiting(made)] == [name]
        made.drop_pod(pod)


def test_missing_claims_are_named() -> None:
    made = books(lambda made: made.put_claim(claim("here")))
    assert made.missing(claiming("one", "here", "gone", templates=["fifth"])) == (
        "ResourceClaim d/gone does not exist; create it",
        "the pod's claim t0 is not made yet from ResourceClaimTemplate d/fifth; check that the template exists",
    )


def shared(claims: int, pods: int, containers: int) -> tuple[ClaimBooks, list[ClusterPod]]:
    """On node a all pods share all claims, and their containers name all of them."""
    made, names = ClaimBooks(NAMES), [f"c{at}" for at in range(claims)]
    made.put_offer(offer("a", [0]))
    using = {f"main{at}": names for at in range(containers)}
    found = [claiming(f"p{at}", *names, on="a", containers=using) for at in range(pods)]
    for pod in found:
        made.put_pod(pod)
    for name in names:
        made.put_claim(allocated(name, "a", (0, 1, 1), for_pods=found))
    return made, found


def lines(do: Callable[[], object]) -> int:
    async def run() -> None:
        do()

    return cost_of(run).total


def test_a_look_at_a_node_costs_what_its_parts_cost_however_many_pods_share_them() -> None:
    few, many = shared(100, 2, 10)[0], shared(100, 80, 10)[0]
    costs = [lines(lambda made=made: made.node("a")) for made in (few, many)]  # type: ignore[misc]
    assert costs[1] < costs[0] + 10 * 80
    found = many.node("a")
    assert found is not None
    assert {(part.users, part.user) for part in found.parts} == {(800, None)}


def test_an_event_of_a_pod_that_shares_everything_costs_what_it_names() -> None:
    made, pods = shared(100, 80, 10)
    made.node("a")
    again = replace(pods[7], pod=replace(pods[7].pod, resource_version="2"))
    steps: list[Callable[[], object]] = [
        *(lambda: made.put_pod(again), lambda: made.node("a")),
        *(lambda: made.drop_pod(again), lambda: made.node("a")),
    ]
    assert max(map(lines, steps)) < 30_000
    found = made.node("a")
    assert found is not None
    assert (found.parts[0].users, len(found.pods)) == (790, 79)


def test_a_pod_that_names_a_claim_hundreds_of_times_is_looked_at_once() -> None:
    other = replace(claim("x"), requests=tuple(ClaimRequest(f"r{at}", (DeviceRequest("nic"),) * 8) for at in range(32)))
    pod = replace(claiming("p", "x"), claims=tuple(PodClaim(f"a{at}", "x") for at in range(256)))
    made = books(lambda made: made.put_claim(other), lambda made: made.put_pod(pod))
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
            steps.append(lambda made, pod=pod, gone=is_gone: (made.drop_pod if gone else made.put_pod)(pod))  # type: ignore[misc]
        else:
            users = [
                claiming(uid[0], uid=uid) for uid in draw(st.lists(st.sampled_from(["p1", "p2", "q1"]), unique=True))
            ]
            one = allocated(draw(st.sampled_from("cd")), draw(st.sampled_from("ab")), (0, 1, 1), for_pods=users)
            steps.append(lambda made, one=one, gone=is_gone: (made.drop_claim if gone else made.put_claim)(one))  # type: ignore[misc]
    return steps


@given(steps=events())
@examples(200)
def test_what_is_counted_by_events_is_what_claims_and_pods_say(steps: list[Step]) -> None:
    made = books(*steps)
    for name in "ab":
        found = made.node(name)
        for part in () if found is None else found.parts:
            held = made.claim((part.claim.namespace, part.claim.name))
            assert held is not None
            pods = [pod for uid in sorted(held.consumers) if (pod := made.pod(PodUid(uid))) is not None]
            users = [
                ClaimUser(pod.pod.ref, one.ref.name)
                for pod in pods
                for one in pod.pod.containers
                if {(each.claim, each.request) for each in one.claims} & {(held.ref.name, ""), (held.ref.name, "gpu")}
            ]
            assert (part.users, part.user) == (len(users), users[0] if len(users) == 1 else None)
            assert part.is_bound == all(pod.pod.node for pod in pods)
            assert found is not None
            assert {pod.uid for pod in pods} <= {pod.uid for pod in found.pods}
