"""When a grant ends, whose it is and what is missing: each rule, and that nothing follows from what cannot be read."""

import pytest

from deviceplugin.ledger.grant import Checkpoint, Grant, GrantId, Source
from deviceplugin.ledger.reconcile import Evidence, PodsView, ReconcileActions, decide
from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace
from tests.ledger.makers import grant, inventory, pod
from tests.ledger.test_rebuild import recorded

NODE = inventory(4)
BOTH = frozenset(Resource)
HELD = replace(grant("a", proved=True), answered=BOTH)
WRITTEN = Checkpoint(recorded(HELD))
EMPTY = Checkpoint()

RUNS = pod("a")
STOPS = pod("a", deleting=True)
FINISHED = pod("a", phase="Succeeded", state=ContainerState.TERMINATED)
FAILED_BUT_RUNS = pod("a", phase="Failed")
REFUSED = pod("a", phase="Failed", state=ContainerState.UNKNOWN)
OTHER = pod("other")
STATIC = replace(pod("static"), is_static=True)


def kubelet(*pods: Pod) -> PodsView:
    return PodsView.of_kubelet(pods)


def api(*pods: Pod) -> PodsView:
    return PodsView.of(pods)


def rounds_to_end(checkpoint: Checkpoint | None, kubelet: PodsView | None, api: PodsView | None, *of: Grant) -> int:
    """In which round the grant ends when every round shows the same; 0: never."""
    grants = of or (HELD,)
    suspects: dict[GrantId, int] = {}
    for number in range(1, 6):
        found = decide(Evidence(grants, checkpoint, kubelet, api, suspects), NODE, now=9.0)
        if found.ended:
            assert found.ended == grants
            assert found.suspects == {}
            return number
        suspects = dict(found.suspects)
    return 0


def test_a_grant_ends_when_its_pod_surely_has() -> None:
    cases: list[tuple[int, Checkpoint | None, PodsView | None, PodsView | None]] = [
        # Kubelet shows the pod: its word alone counts.
        (0, WRITTEN, kubelet(RUNS), api(RUNS)),
        (0, EMPTY, kubelet(RUNS), api()),
        (0, WRITTEN, kubelet(STOPS), api(STOPS)),
        (0, WRITTEN, kubelet(STOPS), api()),
        (0, WRITTEN, kubelet(FAILED_BUT_RUNS), api(FINISHED)),
        (1, WRITTEN, kubelet(FINISHED), api(RUNS)),
        (1, WRITTEN, kubelet(FINISHED), None),
        (1, WRITTEN, kubelet(REFUSED), None),
        # Kubelet shows it no longer.
        (1, WRITTEN, kubelet(OTHER), api(OTHER)),
        (1, WRITTEN, kubelet(OTHER), api(FINISHED)),
        (0, WRITTEN, kubelet(OTHER), api(RUNS)),
        (2, WRITTEN, kubelet(OTHER), None),
        (2, None, kubelet(OTHER), None),
        # Kubelet has just started and shows nothing of the API server's, or only static pods.
        (0, WRITTEN, kubelet(), None),
        (0, WRITTEN, kubelet(STATIC), api(OTHER)),
        (0, WRITTEN, kubelet(STATIC), api(RUNS)),
        (2, WRITTEN, kubelet(STATIC), api(FINISHED)),
        (2, WRITTEN, kubelet(), api()),
        (2, WRITTEN, kubelet(STATIC), api(STATIC)),
        (2, EMPTY, kubelet(), api(OTHER)),
        # Kubelet does not answer.
        (0, WRITTEN, None, api(RUNS)),
        (0, EMPTY, None, api(RUNS)),
        (0, WRITTEN, None, api()),
        (2, EMPTY, None, api()),
        (0, Checkpoint(exists=False), None, api()),
        (0, None, None, api()),
        (2, WRITTEN, None, api(FINISHED)),
        (0, WRITTEN, None, api(FAILED_BUT_RUNS)),
        # Nobody answers.
        (0, WRITTEN, None, None),
        (0, EMPTY, None, None),
        (0, None, None, None),
    ]
    assert [case for case in cases if rounds_to_end(*case[1:]) != case[0]] == []


def test_one_round_that_shows_the_pod_again_clears_the_suspicion() -> None:
    first = decide(Evidence((HELD,), WRITTEN, kubelet(OTHER), None), NODE, now=9.0)
    assert first.suspects == {HELD.id: 1}
    second = decide(Evidence((HELD,), WRITTEN, kubelet(RUNS), None, first.suspects), NODE, now=9.0)
    assert (second.ended, second.suspects) == ((), {})


def test_an_unproved_grant_is_judged_by_the_container_that_kubelet_shows_it_in() -> None:
    guessed = grant("b", grant_id=HELD.id)
    ended_guess = pod("b", phase="Failed", state=ContainerState.TERMINATED)
    assert rounds_to_end(WRITTEN, kubelet(RUNS, ended_guess), api(RUNS), guessed) == 0
    assert rounds_to_end(WRITTEN, kubelet(FINISHED, pod("b")), api(), guessed) == 1


def test_an_unproved_grant_that_kubelet_has_not_recorded_is_judged_slowly_and_only_with_the_checkpoint() -> None:
    unproved = replace(HELD, proved=False)
    assert rounds_to_end(EMPTY, kubelet(REFUSED), api(), unproved) == 2
    assert rounds_to_end(None, kubelet(REFUSED), api(), unproved) == 0
    assert rounds_to_end(Checkpoint(exists=False), kubelet(REFUSED), api(), unproved) == 0
    assert rounds_to_end(EMPTY, kubelet(RUNS), api(RUNS), unproved) == 0


def test_a_grant_whose_container_kubelet_recorded_with_another_one_is_an_orphan() -> None:
    for proved in (True, False):
        orphan = grant("a", grant_id="g-old", proved=proved)
        assert rounds_to_end(WRITTEN, kubelet(RUNS), api(RUNS), orphan) == 2, proved


def decided(*grants: Grant, checkpoint: Checkpoint | None = WRITTEN, seen: PodsView | None = None) -> ReconcileActions:
    return decide(Evidence(grants, checkpoint, seen, None), NODE, now=9.0)


def test_the_checkpoint_proves_an_owner_or_disproves_it() -> None:
    unproved = replace(HELD, proved=False)
    assert decided(unproved).proved == ((HELD.id, BOTH),)
    assert decided(HELD).proved == ()
    wrong = grant("b", grant_id=HELD.id)
    found = decided(wrong, seen=kubelet(RUNS, pod("b")))
    assert found.disproved == ((wrong, (PodUid("uid-a"), "main")),)
    assert (found.proved, found.described, found.adopt) == ((), (), ())
    assert decided(wrong, checkpoint=None).disproved == ()
    assert decided(wrong, checkpoint=EMPTY).disproved == ()


def test_the_checkpoint_says_again_which_resources_were_answered() -> None:
    """A power cut may take the record of the second answer; the checkpoint may be written between the two."""
    core, memory = recorded(HELD)
    half = replace(HELD, answered=frozenset({Resource.CORE}))
    assert decided(half).proved == ((HELD.id, BOTH),)
    assert decided(half, checkpoint=Checkpoint((core,))).proved == ()
    assert decided(half, checkpoint=Checkpoint((memory,))).proved == ()
    assert decided(half, checkpoint=Checkpoint()).proved == ()


def test_a_container_with_two_grants_disproves_none_and_is_no_owner_beside_another_one() -> None:
    """Faults D1: the ledger exchanged the two grants of such a container at every round."""
    core, _ = recorded(HELD)
    other = grant("b", grant_id="g-other")
    _, memory = recorded(replace(other, allocation=replace(other.allocation, owner=HELD.allocation.owner)))
    split = Checkpoint((core, replace(memory, answer=recorded(other)[0].answer)))
    assert decided(HELD, other, checkpoint=split).disproved == ()
    both = Checkpoint((*split.entries, *recorded(other)))
    assert both.owner_of_grant(other.id) == other.allocation.owner.key
    assert decided(HELD, other, checkpoint=both).proved == ((other.id, BOTH),)
    assert decided(other, HELD, checkpoint=Checkpoint(both.entries[::-1])).proved == ((other.id, BOTH),)


@pytest.mark.parametrize("proved", [True, False])
def test_a_grant_that_two_containers_were_given_stays_with_its_owner(proved: bool) -> None:
    """After a lost checkpoint the soak saw one change hands at each round, and a container runs with it."""
    other = grant("other", grant_id=HELD.id)
    owned = replace(HELD, proved=proved)
    for entries in ((*recorded(owned), *recorded(other)), (*recorded(other), *recorded(owned))):
        found = decided(owned, checkpoint=Checkpoint(entries), seen=kubelet(RUNS, OTHER))
        assert found.disproved == ()
        assert found.proved == (() if proved else ((HELD.id, BOTH),))
        over = pod("other", phase="Succeeded", state=ContainerState.TERMINATED)
        assert rounds_to_end(Checkpoint(entries), kubelet(RUNS, over), api(RUNS, over), owned) == 0


def test_a_rebuilt_grant_gets_name_role_and_index_when_the_pod_is_seen() -> None:
    allocation = HELD.allocation
    nameless = replace(allocation.owner, pod=replace(allocation.owner.pod, namespace="", name=""))
    rebuilt = replace(HELD, allocation=replace(allocation, owner=nameless))
    initial = pod("a", role=ContainerRole.INIT, index=3)
    for evidence in (
        Evidence((rebuilt,), WRITTEN, kubelet(initial), None),
        Evidence((rebuilt,), WRITTEN, None, api(initial)),
        Evidence((rebuilt,), None, kubelet(initial), api(RUNS)),
    ):
        found = decide(evidence, NODE, now=9.0)
        assert found.described == ((rebuilt.id, initial.containers[0]),)
    assert decided(HELD, seen=kubelet(RUNS)).described == ()
    later = pod("a", index=1)
    assert decided(HELD, seen=kubelet(later)).described == ((HELD.id, later.containers[0]),)


def test_a_container_that_the_ledger_lost_comes_back_while_its_pod_lives() -> None:
    (adopted,) = decided(seen=kubelet(RUNS)).adopt
    assert adopted.id == HELD.id
    assert adopted.allocation == HELD.allocation
    assert adopted.created == 9.0
    assert decided(seen=kubelet(FINISHED)).adopt == ()
    assert decided(seen=kubelet(OTHER)).adopt == ()
    assert decided(seen=None).adopt == ()
    assert decided(checkpoint=None, seen=kubelet(RUNS)).adopt == ()
    assert decided(grant("b", grant_id=HELD.id), seen=kubelet(RUNS, pod("b"))).adopt == ()


def test_a_kubelet_that_just_started_does_not_hide_the_pods_of_the_api_server() -> None:
    found = decide(Evidence((), WRITTEN, kubelet(STATIC), api(RUNS)), NODE, now=9.0)
    assert [each.id for each in found.adopt] == [HELD.id]
    stale = decide(Evidence((), WRITTEN, kubelet(OTHER), api(RUNS)), NODE, now=9.0)
    assert stale.adopt == ()


def named(*names: str) -> set[tuple[str, str]]:
    return {("default", name) for name in names}


def test_pod_resources_stand_in_for_a_kubelet_that_refuses_its_pods() -> None:
    newer = replace(RUNS, ref=replace(RUNS.ref, uid=PodUid("newer")))
    cases: list[tuple[int, set[tuple[str, str]], PodsView | None]] = [
        (0, named("a", "other"), api(RUNS, OTHER)),
        (0, named("a", "other"), api(OTHER)),
        (1, named("a", "other"), api(FINISHED, OTHER)),
        (1, named("other"), api(OTHER)),
        (1, named("other"), api(FINISHED, OTHER)),
        (0, named("other"), api(RUNS, OTHER)),
        (1, named("a", "other"), api(newer, OTHER)),
        (0, named("static"), api(STATIC, OTHER)),
        (2, named(), api()),
        (0, named("a"), None),
        (0, named("other"), None),
    ]
    found = [rounds_to_end(WRITTEN, PodsView.of_names(names, told, (HELD,)), told) for _, names, told in cases]
    assert [(case, rounds) for case, rounds in zip(cases, found, strict=True) if rounds != case[0]] == []


@pytest.mark.parametrize("known_as", [PodRef(PodUid("default/p"), "default", "p"), PodRef(PodUid("uid-a"), "", "")])
def test_a_pod_in_the_checkpoint_that_nobody_has_named_holds_its_grant_while_kubelet_shows_names(
    known_as: PodRef,
) -> None:
    """Faults D3: without an API server nobody tells of a static pod both its name and its UID."""
    allocation = HELD.allocation
    unnamed = replace(HELD, allocation=replace(allocation, owner=replace(allocation.owner, pod=known_as)))
    by_name = PodsView.of_names(named("p", "other"), api(OTHER), (unnamed,))
    assert rounds_to_end(WRITTEN, by_name, api(OTHER), unnamed) == 0
    assert rounds_to_end(WRITTEN, kubelet(OTHER), api(OTHER), unnamed) == 1
    assert rounds_to_end(WRITTEN, by_name, api(OTHER), replace(unnamed, source=Source.CHECKPOINT)) == 1


def test_what_cannot_be_rebuilt_is_said() -> None:
    (core, memory) = recorded(HELD)
    assert core.answer is not None
    blank = replace(core, answer=replace(core.answer, gpus=()))
    found = decided(checkpoint=Checkpoint((blank, memory)), seen=kubelet(RUNS))
    assert found.adopt == ()
    assert len(found.failures) == 1
