"""The ledger's transitions: what each does, what it refuses, and what subscribers receive."""

from pathlib import Path

import pytest

from deviceplugin.errors import CapacityError, LedgerError, OwnershipError
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.ledger import Claimant, Ledger, claimant_of
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.pod import PodContainer, PodLimits
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace
from tests.ledger.makers import BLOCKS, claimant, grant, inventory, open_ledger, owner, uuid

NODE = inventory(2)
A, B = GrantId("g-a-main"), GrantId("g-b-main")


def taken(ledger: Ledger, grant_id: GrantId) -> Grant:
    found = ledger.get(grant_id)
    assert found is not None
    return found


@pytest.fixture
def ledger(short_tmp: Path) -> Ledger:
    return open_ledger(short_tmp)


def test_a_grant_is_found_by_its_id_its_owner_and_its_pod(ledger: Ledger) -> None:
    first, second = grant("a"), grant("a", container="side")
    ledger.grant(first, NODE)
    ledger.grant(second, NODE)
    assert ledger.get(A) == first
    assert ledger.of_owner((PodUid("uid-a"), "side")) == second
    assert ledger.of_pod(PodUid("uid-a")) == (first, second)
    assert ledger.allocations() == (first.allocation, second.allocation)
    assert ledger.get(B) is None
    assert ledger.of_owner((PodUid("uid-a"), "other")) is None
    assert ledger.of_pod(PodUid("uid-b")) == ()


def test_a_grant_that_does_not_fit_is_refused_and_leaves_no_trace(short_tmp: Path, subtests: pytest.Subtests) -> None:
    ledger = open_ledger(short_tmp)
    ledger.grant(grant("a", cores=50, blocks=BLOCKS // 2), NODE)
    for asked, sentence in (
        (grant("b", cores=51, blocks=1), "has 50 cores and 8 GiB free and the request needs 51 cores"),
        (grant("b", cores=1, blocks=33), "needs 1 cores and 8.25 GiB"),
        (grant("b", cores=100, blocks=0), "needs 100 cores and 16 GiB"),
        (grant("b", cores=200, blocks=0, on=(0, 1)), "GPU 0 .GPU-0. has 50 cores"),
        (grant("b", on=(7,)), "GPU GPU-7 is not on this node any more"),
    ):
        with subtests.test(sentence=sentence):
            with pytest.raises(CapacityError, match=sentence):
                ledger.grant(asked, NODE)
            assert [each.id for each in ledger.grants()] == [A]
    ledger.close()
    assert [each.id for each in open_ledger(short_tmp).grants()] == [A]


def test_init_containers_share_the_room_of_their_pods_apps(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=80, container="init", role=ContainerRole.INIT), NODE)
    ledger.grant(grant("a", cores=80), NODE)
    with pytest.raises(CapacityError):
        ledger.grant(grant("b", cores=80, role=ContainerRole.INIT), NODE)


def test_a_container_cannot_hold_two_grants(ledger: Ledger) -> None:
    ledger.grant(grant("a"), NODE)
    with pytest.raises(LedgerError, match="default/a/main holds grant g-a-main and cannot hold g-2 as well"):
        ledger.grant(grant("a", grant_id="g-2"), NODE)
    with pytest.raises(LedgerError, match="exists already"):
        ledger.grant(grant("b", grant_id="g-a-main"), NODE)


def test_answers_are_kept_for_each_resource(ledger: Ledger) -> None:
    ledger.grant(grant("a"), NODE)
    key = (PodUid("uid-a"), "main")
    assert (ledger.answered(key, Resource.CORE), ledger.answered(key, Resource.MEMORY)) == (True, False)
    ledger.answer(A, Resource.MEMORY)
    assert ledger.answered(key, Resource.MEMORY)
    ledger.repeat(A, Resource.MEMORY)
    assert not ledger.answered(key, Resource.CORE)
    assert not ledger.answered((PodUid("uid-b"), "main"), Resource.CORE)


def test_a_transition_of_an_unknown_grant_is_refused(ledger: Ledger) -> None:
    for call in (
        lambda: ledger.answer(A, Resource.CORE),
        lambda: ledger.repeat(A, Resource.CORE),
        lambda: ledger.prove(A, frozenset()),
        lambda: ledger.reassign_to_owner(A, claimant("b"), NODE),
        lambda: ledger.reassign(grant("a"), inventory=NODE),
    ):
        with pytest.raises(LedgerError, match="g-a-main is not in the ledger"):
            call()


def test_a_grant_settles_with_the_container_that_kubelet_proves(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=50, blocks=8), NODE)
    fixed = ledger.reassign_to_owner(A, replace(claimant("b", cores=20, blocks=4), limits=PodLimits(60, 900)), NODE)
    assert fixed.proved
    assert fixed.limits == PodLimits(60, 900)
    assert fixed.allocation.owner == owner("b")
    assert [(each.uuid, each.cores, each.blocks) for each in fixed.allocation.shares] == [(uuid(0), 20, 4)]
    assert ledger.of_owner((PodUid("uid-b"), "main")) == fixed
    assert ledger.of_owner((PodUid("uid-a"), "main")) is None


def test_two_containers_that_were_taken_for_each_other_change_over(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=70), NODE)
    ledger.grant(grant("b", cores=30), NODE)
    ledger.reassign_to_owner(A, claimant("b", cores=30), NODE)
    one, other = taken(ledger, A), taken(ledger, B)
    assert (one.allocation.owner, one.allocation.request.cores, one.proved) == (owner("b"), 30, True)
    assert (other.allocation.owner, other.allocation.request.cores, other.proved) == (owner("a"), 70, False)


def test_a_change_over_to_other_gpus_sizes_both_on_the_gpus_they_have(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=100, blocks=0, on=(0,)), NODE)
    ledger.grant(grant("b", cores=30, on=(1,)), NODE)
    ledger.reassign_to_owner(A, claimant("b", cores=30), NODE)
    assert [(share.uuid, share.cores, share.blocks) for share in taken(ledger, A).allocation.shares] == [
        (uuid(0), 30, 8)
    ]
    assert [(share.uuid, share.cores, share.blocks) for share in taken(ledger, B).allocation.shares] == [
        (uuid(1), 100, BLOCKS)
    ]


def test_a_displaced_grant_that_cannot_take_the_other_request_keeps_its_size(ledger: Ledger) -> None:
    node = inventory(3)
    ledger.grant(grant("a", cores=30, on=(0,)), node)
    ledger.grant(grant("b", cores=20, on=(1,)), node)
    ledger.grant(grant("c", cores=75, on=(1,)), node)
    ledger.reassign_to_owner(A, claimant("b", cores=20), node)
    displaced = taken(ledger, B)
    assert displaced.allocation.owner == owner("a")
    assert (displaced.allocation.request.cores, displaced.proved) == (20, False)


def test_a_true_owner_that_does_not_fit_is_refused_and_nothing_changes(
    ledger: Ledger, subtests: pytest.Subtests
) -> None:
    ledger.grant(grant("a", cores=10), NODE)
    ledger.grant(grant("c", cores=50), NODE)
    before = ledger.grants()
    for to, error, sentence in (
        (claimant("b", cores=60), CapacityError, "GPU 0 .GPU-0. has 40 cores"),
        (claimant("b", cores=100, blocks=0), CapacityError, "GPU 0"),
        (claimant("b", cores=200, blocks=0), OwnershipError, "asked for 2 GPUs and kubelet gave it grant g-a-main"),
    ):
        with subtests.test(sentence=sentence):
            with pytest.raises(error, match=sentence):
                ledger.reassign_to_owner(A, to, NODE)
            assert ledger.grants() == before


def test_settling_with_the_same_owner_corrects_the_size(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=10), NODE)
    ledger.reassign_to_owner(A, claimant("a", cores=20, blocks=9), NODE)
    (share,) = taken(ledger, A).allocation.shares
    assert (share.cores, share.blocks, taken(ledger, A).proved) == (20, 9, True)


def test_reassigned_grants_are_judged_together(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=100, blocks=0, on=(0,)), NODE)
    ledger.grant(grant("b", cores=100, blocks=0, on=(1,)), NODE)
    one, other = taken(ledger, A), taken(ledger, B)
    crossed = (
        replace(one, allocation=replace(one.allocation, shares=other.allocation.shares)),
        replace(other, allocation=replace(other.allocation, shares=one.allocation.shares)),
    )
    with pytest.raises(CapacityError):
        ledger.reassign(crossed[0], inventory=NODE)
    ledger.reassign(*crossed, inventory=NODE)
    assert ledger.grants() == crossed


def test_reassigning_two_grants_to_one_container_is_refused(ledger: Ledger) -> None:
    ledger.grant(grant("a"), NODE)
    ledger.grant(grant("b"), NODE)
    both = [replace(each, allocation=replace(each.allocation, owner=owner("c"))) for each in ledger.grants()]
    with pytest.raises(LedgerError, match="cannot hold"):
        ledger.reassign(*both, inventory=NODE)


def test_release_gives_back_what_is_held_and_ignores_the_rest(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=100, blocks=0), NODE)
    assert [each.id for each in ledger.release([A, GrantId("g-unknown"), A], why="test")] == [A]
    assert ledger.release([A], why="test") == ()
    ledger.grant(grant("b", cores=100, blocks=0), NODE)


def test_a_grant_that_changed_hands_is_not_released_for_its_former_owner(ledger: Ledger) -> None:
    ledger.grant(grant("a"), NODE)
    judged = ledger.grants()
    ledger.reassign_to_owner(A, claimant("b"), NODE)
    assert ledger.release_ended(judged, why="pod a ended") == ()
    assert [each.id for each in ledger.release_ended(ledger.grants(), why="pod b ended")] == [A]


def test_what_is_true_already_is_taken_up_beyond_capacity_and_reported(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=60), NODE)
    adopted = ledger.adopt([grant("b", cores=60), grant("a", grant_id="g-x"), grant("c", grant_id="g-a-main")])
    assert [each.id for each in adopted] == [B]
    (load,) = ledger.over_commitments(NODE)
    assert str(load) == "GPU GPU-0: 120 of 100 cores and 4 of 16 GiB are allocated"


def test_an_over_committed_gpu_can_be_relieved_but_not_loaded_further(ledger: Ledger) -> None:
    ledger.adopt([grant("a", cores=80), grant("b", cores=80)])
    with pytest.raises(CapacityError, match="has 0 cores"):
        ledger.grant(grant("c", cores=1, blocks=1), NODE)
    ledger.reassign_to_owner(A, claimant("a", cores=70), NODE)
    with pytest.raises(CapacityError):
        ledger.reassign_to_owner(A, claimant("a", cores=71), NODE)
    ledger.grant(grant("d", cores=10, on=(1,)), NODE)
    ledger.release([B], why="test")
    assert ledger.over_commitments(NODE) == ()


def test_a_lost_gpu_stays_held_and_is_not_allocated(ledger: Ledger) -> None:
    ledger.grant(grant("a", on=(1,)), NODE)
    smaller = inventory(1)
    assert [load.uuid for load in ledger.over_commitments(smaller)] == [uuid(1)]
    ledger.prove(A, frozenset())
    ledger.reassign_to_owner(A, claimant("b"), smaller)
    with pytest.raises(CapacityError, match="not on this node"):
        ledger.grant(grant("c", on=(1,)), smaller)


def test_a_rebuilt_grant_learns_its_pods_name_its_role_and_its_place(ledger: Ledger) -> None:
    blank = grant("a")
    nameless = replace(blank.allocation.owner, pod=replace(blank.allocation.owner.pod, namespace="", name=""))
    ledger.adopt([replace(blank, allocation=replace(blank.allocation, owner=nameless))])
    ledger.describe(A, PodContainer(owner("a"), ContainerRole.INIT, 2), NODE)
    assert taken(ledger, A).allocation.owner == owner("a")
    assert taken(ledger, A).allocation.role is ContainerRole.INIT
    assert taken(ledger, A).allocation.index == 2
    before = ledger.grants()
    ledger.describe(A, PodContainer(owner("b"), ContainerRole.APP, 0), NODE)
    ledger.describe(B, PodContainer(owner("b"), ContainerRole.APP, 0), NODE)
    assert ledger.grants() == before


def test_role_and_place_go_with_the_owner(ledger: Ledger) -> None:
    """Two grants of one pod change hands: the sidecar after the init container has the other's, and stays after it."""
    first = grant("a", cores=60, container="init", role=ContainerRole.INIT, index=0)
    second = grant("a", cores=60, container="proxy", role=ContainerRole.SIDECAR, index=1)
    ledger.grant(first, NODE)
    ledger.grant(second, NODE)
    proxy = Claimant(second.allocation.owner, ContainerRole.SIDECAR, second.allocation.request, index=1)
    ledger.reassign_to_owner(first.id, proxy, NODE)
    places = {each.id: (each.allocation.role, each.allocation.index) for each in ledger.grants()}
    assert places == {first.id: (ContainerRole.SIDECAR, 1), second.id: (ContainerRole.INIT, 0)}
    with pytest.raises(CapacityError):
        ledger.reassign_to_owner(second.id, replace(claimant_of(taken(ledger, second.id)), index=2), NODE)


def test_a_role_is_a_fact_even_where_it_shows_too_much_to_be_held(ledger: Ledger) -> None:
    ledger.grant(grant("a", cores=80, container="init", role=ContainerRole.INIT), NODE)
    ledger.grant(grant("a", cores=80), NODE)
    assert ledger.over_commitments(NODE) == ()
    ledger.describe(GrantId("g-a-init"), PodContainer(owner("a", "init"), ContainerRole.SIDECAR, 0), NODE)
    assert [load.held.cores for load in ledger.over_commitments(NODE)] == [160]


def test_subscribers_hear_every_transition_once_and_no_change_is_none(ledger: Ledger) -> None:
    heard: list[list[bool]] = []
    ledger.subscribe(lambda: heard.append([grant.proved for grant in ledger.grants()]))
    ledger.grant(grant("a"), NODE)
    ledger.prove(A, frozenset())
    ledger.prove(A, frozenset())
    ledger.release([A], why="test")
    ledger.release([A], why="test")
    assert heard == [[False], [True], []]


def test_a_subscriber_that_fails_spoils_neither_the_change_nor_the_other_subscribers(ledger: Ledger) -> None:
    heard: list[int] = []

    def fail() -> None:
        raise ValueError("a view broke")

    ledger.subscribe(fail)
    ledger.subscribe(lambda: heard.append(len(ledger.grants())))
    ledger.grant(grant("a"), NODE)
    assert heard == [1]


def test_the_later_of_two_grants_that_damage_left_to_one_container_is_its_own(short_tmp: Path) -> None:
    ledger = open_ledger(short_tmp)
    ledger.grant(grant("a"), NODE)
    ledger.release([A], why="this line will be damaged")
    ledger.grant(grant("a", grant_id="g-2"), NODE)
    ledger.close()
    path = short_tmp / "ledger.journal"
    path.write_bytes(path.read_bytes().replace(b"will be damaged", b"XXXX XX XXXXXXX"))
    again = open_ledger(short_tmp)
    assert len(again.warnings) == 1
    assert sorted(each.id for each in again.grants()) == ["g-2", "g-a-main"]
    found = again.of_owner((PodUid("uid-a"), "main"))
    assert found is not None
    assert found.id == "g-2"


def test_limits_that_a_running_pod_changes_are_one_entry_and_tell_nobody(short_tmp: Path) -> None:
    """Security: their author sets the pace. The journal stays as short as for anything else."""
    ledger = open_ledger(short_tmp)
    for container in ("one", "two", "three"):
        ledger.grant(grant("a", container=container, cores=2, blocks=1), NODE)
    called: list[None] = []
    ledger.subscribe(lambda: called.append(None))
    lines, size = entries(short_tmp), bytes_of(short_tmp)
    ids = [each.id for each in ledger.grants()]
    changed = ledger.follow_limits(dict.fromkeys([*ids, GrantId("g-gone")], PodLimits(soft_cores=50)))
    assert [each.id for each in changed] == ids
    assert {each.limits for each in (*changed, *ledger.grants())} == {PodLimits(soft_cores=50)}
    assert ledger.follow_limits(dict.fromkeys(ids, PodLimits(soft_cores=50))) == ()
    assert entries(short_tmp) == lines + 1
    assert bytes_of(short_tmp) - size < 100 + 3 * 60, "not what the grants hold"
    for value in range(2000):
        ledger.follow_limits(dict.fromkeys(ids, PodLimits(soft_cores=value % 99 + 1)))
        assert bytes_of(short_tmp) < 300 << 10
    assert entries(short_tmp) < 2000
    assert called == []
    ledger.close()
    assert {each.limits for each in open_ledger(short_tmp).grants()} == {PodLimits(soft_cores=1999 % 99 + 1)}


def bytes_of(folder: Path) -> int:
    (journal,) = folder.glob("*journal*")
    return journal.stat().st_size


def entries(folder: Path) -> int:
    (journal,) = folder.glob("*journal*")
    return len(journal.read_bytes().splitlines())
