"""One plan for a whole pod: what no scheduler placed, what one did, and what changes between two containers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CapacityError
from deviceplugin.kubelet.pod_placement import plan
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import NodeState, node_state
from deviceplugin.placement.snapshot import occupied
from tests.examples import examples
from tests.kubelet.makers import inventory, pod

POLICY = "tencent.com/vcuda-gpu-policy"


def uuids(*minors: int) -> frozenset[GpuUuid]:
    return frozenset(GpuUuid(f"GPU-{minor}") for minor in minors)


def other(number: int, minor: int, cores: int, blocks: int) -> Allocation:
    """Of a pod that was there before."""
    owner = ContainerRef(PodRef(PodUid(f"other-{number}"), "d", f"other-{number}"), "c")
    share = GpuShare(GpuUuid(f"GPU-{minor}"), cores, blocks)
    return Allocation(owner, ContainerRole.APP, Request(cores, blocks), (share,))


def node(*others: Allocation, gpus: int = 2, cordoned: frozenset[GpuUuid] = frozenset()) -> NodeState:
    return node_state("n", inventory(gpus), others, cordoned=cordoned)


def asked(*containers: tuple[str, int, int], **fields: object) -> PodRequest:
    return pod_request(pod("p", *containers, **fields))  # type: ignore[arg-type]


def minors(found: tuple[Allocation, ...]) -> dict[str, list[int]]:
    return {each.owner.name: sorted(int(uuid[4:]) for uuid in each.uuids) for each in found}


def test_a_pod_whose_first_container_would_take_the_only_room_of_the_second_is_placed_as_a_whole() -> None:
    """By itself `main` takes the fullest GPU; only there is room for the memory of `side`."""
    state = node(other(1, 0, 50, 60), other(2, 1, 60, 0))
    found = plan(asked(("main", 20, 2), ("side", 40, 8)), state)
    assert minors(found.allocations) == {"main": [0], "side": [1]}


def test_the_second_container_gets_the_same_plan_without_stored_state() -> None:
    pod, state = asked(("main", 20, 2), ("side", 40, 8)), node(other(1, 0, 50, 60), other(2, 1, 60, 0))
    first = plan(pod, state)
    again = plan(pod, state, granted=first.allocations[:1])
    assert again.allocations == first.allocations


def test_a_pod_that_fits_in_part_only_is_refused_for_the_container_that_has_no_room() -> None:
    with pytest.raises(CapacityError, match="container side, beside the others of its pod"):
        plan(asked(("main", 20, 2), ("side", 100, 0)), node(other(1, 0, 10, 1), gpus=1))


def test_what_a_scheduler_chose_is_carried_out_on_a_cordoned_gpu_and_new_work_stays_away() -> None:
    pod, state = asked(("main", 20, 2), ("side", 20, 2)), node(cordoned=uuids(0))
    chosen = {"main": uuids(0), "side": uuids(1)}
    assert minors(plan(pod, state, scheduled=chosen).allocations) == {"main": [0], "side": [1]}
    assert minors(plan(pod, state).allocations) == {"main": [1], "side": [1]}


def test_a_cordon_between_two_containers_does_not_part_a_pod_from_what_it_holds() -> None:
    pod = asked(("main", 20, 2), ("side", 20, 2))
    first = plan(pod, node())
    then = plan(pod, node(cordoned=uuids(0)), granted=first.allocations[:1])
    assert minors(then.allocations) == {"main": [0], "side": [0]}


def test_a_gpu_that_failed_between_two_containers_is_avoided_by_the_second() -> None:
    pod = asked(("main", 20, 2), ("side", 20, 2))
    first = plan(pod, node())
    ill = node_state("n", inventory(2, unhealthy=(0,)), ())
    assert minors(plan(pod, ill, granted=first.allocations[:1]).allocations) == {"main": [0], "side": [1]}


def test_where_nothing_is_left_for_the_second_container_the_sentence_says_why() -> None:
    pod = asked(("main", 20, 2), ("side", 20, 2))
    first = plan(pod, node(gpus=1))
    ill = node_state("n", inventory(1, unhealthy=(0,)), ())
    with pytest.raises(CapacityError, match=r"side, beside the others of its pod: .* GPU 0 is unhealthy"):
        plan(pod, ill, granted=first.allocations[:1])


def test_a_choice_of_which_one_gpu_is_taken_is_kept_for_the_others() -> None:
    """The scheduler chose 1 and 2; another pod came first to 2."""
    pod, state = asked(("main", 20, 2), ("side", 50, 4)), node(other(1, 2, 60, 4), gpus=4)
    found = plan(pod, state, scheduled={"main": uuids(1), "side": uuids(2)})
    assert minors(found.allocations)["main"] == [1]
    assert minors(found.allocations)["side"] != [2]


def test_a_choice_that_stands_in_the_way_of_the_rest_is_given_up_before_the_pod_is() -> None:
    """`side` was to have GPU 1, which has no room any more; GPU 0 has, if `main` goes to GPU 1 instead."""
    pod, state = asked(("main", 30, 2), ("side", 100, 0)), node(other(1, 1, 50, 4))
    found = plan(pod, state, scheduled={"main": uuids(0), "side": uuids(1)})
    assert minors(found.allocations) == {"main": [1], "side": [0]}


def test_where_a_taken_gpu_leaves_no_room_the_sentence_names_it() -> None:
    with pytest.raises(CapacityError, match=r"at most 40 free, on GPU 0.*\(GPU 0 had been chosen by its scheduler\)"):
        plan(asked(("c", 50, 4)), node(other(1, 0, 60, 4), gpus=1), scheduled={"c": uuids(0)})


def test_a_filter_that_the_owner_writes_after_the_choice_moves_nothing() -> None:
    """The extender reckons with GPU 1, and may have given GPU 0 away already."""
    pod = asked(("c", 20, 2), annotations={"tencent.com/vcuda-avoid-gpus": "GPU-1"})
    assert minors(plan(pod, node(), scheduled={"c": uuids(1)}).allocations) == {"c": [1]}


def test_where_the_choice_is_taken_the_filter_counts_again() -> None:
    pod = asked(("c", 20, 2), annotations={"tencent.com/vcuda-avoid-gpus": "GPU-0"})
    state = node(other(1, 1, 90, 2), gpus=3)
    assert minors(plan(pod, state, scheduled={"c": uuids(1)}).allocations) == {"c": [2]}


def test_the_choice_for_one_container_tells_of_each_other_gpu() -> None:
    pod, state = asked(("main", 20, 2), ("side", 40, 8)), node(other(1, 0, 50, 60), other(2, 1, 60, 0))
    planned = plan(pod, state)
    found = planned.choice("main")
    assert [gpu.minor for gpu in found.gpus] == [0]
    assert "so that each container finds room" in found.reason
    assert [each.gpu.minor for each in found.passed_over] == [1]


sizes = st.tuples(st.integers(1, 100), st.integers(1, 64)) | st.sampled_from([(100, 0), (200, 0)])
roles = st.sampled_from(["init", "sidecar", "app"])


@examples(300)
@given(
    containers=st.lists(st.tuples(roles, sizes), min_size=1, max_size=4),
    others=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 40)), max_size=4),
    cordoned=st.frozensets(st.integers(0, 2), max_size=1),
    scheduled=st.dictionaries(st.integers(0, 3), st.integers(0, 2), max_size=4),
    policy=st.sampled_from(["binpack", "spread", "link"]),
)
def test_a_pod_that_was_let_in_finds_room_for_each_of_its_containers(
    containers: list[tuple[str, tuple[int, int]]],
    others: list[tuple[int, int, int]],
    cordoned: frozenset[int],
    scheduled: dict[int, int],
    policy: str,
) -> None:
    """Kubelet asks container by container; each time the plan is made again around what is held, as after a crash."""
    here: Inventory = inventory(3)
    there: list[Allocation] = []
    for number, (minor, cores, blocks) in enumerate(others):
        held = occupied([*there, other(number, minor, cores, blocks)])
        if all(each.cores <= 100 and each.blocks <= 64 for each in held.values()):
            there.append(other(number, minor, cores, blocks))
    named = [(f"c{at}", role, *size) for at, (role, size) in enumerate(containers)]
    inits = tuple((name, cores, blocks) for name, role, cores, blocks in named if role != "app")
    apps = tuple((name, cores, blocks) for name, role, cores, blocks in named if role == "app")
    sidecars = tuple(name for name, role, *_ in named if role == "sidecar")
    made = pod_request(pod("p", *apps, init=inits, sidecars=sidecars, annotations={POLICY: policy}))
    chosen = {f"c{at}": uuids(minor) for at, minor in scheduled.items()}
    state = node_state("n", here, there, cordoned=uuids(*cordoned))
    try:
        plan(made, state, scheduled=chosen)
    except CapacityError:
        return
    granted: list[Allocation] = []
    for container in made.containers:
        planned = plan(made, state, granted=granted, scheduled=chosen)
        planned.choice(container.name)
        granted.append(planned.allocation(container.name))
        for uuid, use in occupied([*there, *granted]).items():
            assert use.cores <= 100, uuid
            assert use.blocks <= 64, uuid
    assert not {uuid for each in granted for uuid in each.uuids} & uuids(*cordoned) or chosen
