"""Who holds what by claims, in whatever order the watches deliver it."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

from deviceplugin.cluster.view.claim_books import ClaimBooks, ClaimUser
from tests.cluster.view.claims import FIFTH, NAMES, allocated, claim, claiming, offer

Step = Callable[[ClaimBooks], None]


def books(*steps: Step) -> ClaimBooks:
    made = ClaimBooks(NAMES)
    for step in steps:
        step(made)
        made.node("a")  # what is asked between two events must not be kept
    return made


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
        assert part.users == (ClaimUser(ONE.pod.ref, "main"),), "it is reserved for one of the pods that name it"
        assert [each.uid for each in found.pods] == [ONE.uid], order
        assert [each.pod.ref.name for each in made.waiting()] == ["two"], order


def test_what_ends_leaves_nothing() -> None:
    made = books(*STEPS)
    made.drop_pod(ONE)
    found = made.node("a")
    assert found is not None
    assert (found.pods, found.parts[0].users) == ((), ()), "the claim is still allocated"
    made.drop_claim(HELD)
    made.drop_offer(offer("a"))
    made.drop_pod(claiming("two", "c"))
    assert (made.node("a"), list(made.waiting()), made.offering()) == (None, [], ())


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


def test_of_two_slices_of_a_node_the_newer_counts() -> None:
    made = books(
        lambda made: made.put_offer(offer("a", [0], generation=2)),
        lambda made: made.put_offer(offer("a", [0, 1], generation=1)),
    )
    found = made.node("a")
    assert found is not None
    assert [each.gpu.minor for each in found.gpus] == [0]
    made.drop_offer(offer("a", generation=2))
    again = made.node("a")
    assert again is not None
    assert [each.gpu.minor for each in again.gpus] == [0, 1]


def test_a_pod_waits_until_its_claim_is_reserved_for_it() -> None:
    made = books(lambda made: made.put_claim(claim("c")), lambda made: made.put_pod(claiming("one", "c")))
    assert [each.pod.ref.name for each in made.waiting()] == ["one"]
    made.put_claim(allocated("c", "a", (0, 20, 8), for_pods=[claiming("one", "c")]))
    assert list(made.waiting()) == []
    found = made.node("a")
    assert found is not None
    assert [part.is_bound for part in found.parts] == [False]
    assert made.place(claiming("one", "c")) == "a"


def test_pods_of_other_drivers_are_not_ours() -> None:
    theirs = replace(claim("c"), requests=(replace(FIFTH[0], alternatives=()),))
    made = books(lambda made: made.put_claim(theirs), lambda made: made.put_pod(claiming("one", "c")))
    assert list(made.waiting()) == []
    for name, pod in (("a", claiming("a", whole_gpus=2)), ("b", claiming("b", templates=["vcuda-1x20c8b"]))):
        made.put_pod(pod)
        assert [each.pod.ref.name for each in made.waiting()] == [name]
        made.drop_pod(pod)


def test_missing_claims_are_named() -> None:
    made = books(lambda made: made.put_claim(claim("here")))
    assert made.missing(claiming("one", "here", "gone", templates=["fifth"])) == (
        "ResourceClaim d/gone does not exist; create it",
        "the pod's claim t0 is not made yet from ResourceClaimTemplate d/fifth; check that the template exists",
    )
