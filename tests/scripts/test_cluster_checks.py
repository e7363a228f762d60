"""The demo notices every promise about a cluster that does not hold."""

from typing import Any

from scripts.demonstration import cluster_checks
from scripts.demonstration.cluster_inspect import Gang, Placed, PolicyRun, Share, Survivor
from scripts.demonstration.output import Check
from scripts.demonstration.pods import Json
from scripts.demonstration.volcano_steps import Abandoned, Tried
from tests.scripts.judged import misjudged

ONE, OTHER = Share("GPU-1", 60, 64), Share("GPU-2", 60, 64)
LIMITS = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "32"}


def placed(pod: str = "a", **changes: Any) -> Placed:
    return Placed(pod, "node-a", "Running", (ONE,), (ONE,), ("GPU-1",))._replace(**changes)


def test_an_agent_that_does_something_else_is_noticed() -> None:
    both = placed(chosen=(ONE, OTHER), granted=(ONE, OTHER), visible=("GPU-1", "GPU-2"))
    cases = [
        (placed(), ""),
        (both, ""),
        (placed(phase="Failed"), "a is Failed"),
        (placed(chosen=(), granted=(), visible=()), "a has no allocation in its annotation"),
        (placed(granted=(OTHER,)), "the agent on node-a allocated something else"),
        (placed(granted=(Share("GPU-1", 61, 64),)), "a was allocated 60 cores of GPU-1"),
        (placed(granted=()), "the agent on node-a allocated something else"),
        (placed(visible=("GPU-2",)), "a was allocated 60 cores of GPU-1 and sees GPU-2"),
        (placed(visible=("GPU-1", "GPU-2")), "sees GPU-1, GPU-2"),
        (placed(visible=()), "sees nothing"),
    ]
    assert misjudged((cluster_checks.agents_obey([[placed("b")], [one]]), said) for one, said in cases) == []


def test_a_gpu_that_is_chosen_twice_at_one_moment_is_noticed() -> None:
    twice = "cores of GPU-1 are allocated"
    cases: list[tuple[list[list[Placed]], str | bool]] = [
        ([[placed("a")], [placed("b")]], True),
        ([[placed("a"), placed("b", chosen=(OTHER,))]], True),
        ([[placed("a"), placed("b", chosen=(Share("GPU-1", 40, 1),))]], True),
        ([[placed("a"), placed("b", chosen=(Share("GPU-1", 41, 1),))]], twice),
        ([[placed("a")], [placed("a"), placed("b")]], twice),
    ]
    assert misjudged((cluster_checks.nothing_is_chosen_twice(moments), must) for moments, must in cases) == []


def test_an_untrusted_ca_is_noticed() -> None:
    cases = [("A", "B\nA\n", True), ("A", "B", False), ("A", "", False), ("", "B", False)]
    assert misjudged((cluster_checks.ca_is_trusted(ca, bundle), held) for ca, bundle, held in cases) == []


def reviewed(limits: dict[str, str], requests: dict[str, str], parts: str = "main=2") -> Json:
    container = {"name": "main", "resources": {"limits": limits, "requests": requests}}
    metadata = {"annotations": {"tencent.com/vcuda-gpus": parts}} if parts else {}
    return {"metadata": metadata, "spec": {"containers": [container], "schedulerName": "vcuda-scheduler"}}


def test_a_pod_of_hami_that_became_something_else_is_noticed() -> None:
    cases = [
        (reviewed(LIMITS, LIMITS), ""),
        (reviewed({**LIMITS, "nvidia.com/gpu": "2"}, LIMITS), "its limits are"),
        (reviewed(LIMITS, {}), "its requests are {}"),
        (reviewed(LIMITS, LIMITS, parts="main=1"), "is 'main=1', not 'main=2'"),
        (reviewed(LIMITS, LIMITS, parts=""), "is None"),
    ]
    assert misjudged((cluster_checks.hami_is_translated(one), said) for one, said in cases) == []


def test_a_pod_for_another_scheduler_is_noticed() -> None:
    good = {"metadata": {"name": "a"}, "spec": {"schedulerName": "vcuda-scheduler"}}
    assert cluster_checks.sent_to_vcuda_scheduler([good]).passed
    bad = {"metadata": {"name": "b"}, "spec": {"schedulerName": "default-scheduler"}}
    assert cluster_checks.sent_to_vcuda_scheduler([good, bad]).found == "b is for default-scheduler"


def test_a_refusal_without_its_sentence_is_noticed() -> None:
    cases = {"write 100 or 200": True, "": False, "no": False, "write 100 or 200\nTraceback": False}
    checks = {each: cluster_checks.refused_in_words("typo", each, words="100 or 200") for each in cases}
    assert misjudged((checks[each], cases[each]) for each in cases) == []


def by_policy(policy: str, *, large: str = "", nodes: tuple[str, ...] = ("rack-1",)) -> PolicyRun:
    return PolicyRun(policy, nodes, large)


def test_policies_that_do_not_differ_are_noticed() -> None:
    spread, fragmentation = by_policy("spread"), by_policy("fragmentation")
    runs = {
        (spread, fragmentation._replace(large="rack-1")): True,
        (spread._replace(large="rack-1"), fragmentation._replace(large="rack-1")): False,
        (spread, fragmentation): False,
        (spread,): False,
    }
    assert misjudged((cluster_checks.fragmentation_keeps_a_node_whole(list(each)), runs[each]) for each in runs) == []


def test_an_arrival_without_a_place_is_noticed() -> None:
    assert cluster_checks.every_arrival_runs([by_policy("binpack")]).passed
    check = cluster_checks.every_arrival_runs([by_policy("binpack"), by_policy("spread", nodes=("", "rack-1", ""))])
    assert (check.passed, check.found) == (False, "2 pods found no place with spread")


def test_an_explanation_that_leaves_something_out_is_noticed() -> None:
    missing = {
        "node a: GPU 0 must become free": "",
        "node b: GPU 0 must become free": "'node a'",
        "node a: GPU 1 must become free": "'GPU 0'",
        "node a: GPU 0 is taken": "'must become free'",
    }
    checks = {each: cluster_checks.is_explained("llm", each, nodes=["a"], gpus=["GPU 0"]) for each in missing}
    assert misjudged((checks[each], missing[each]) for each in missing) == []


def test_a_pod_that_goes_on_waiting_is_noticed() -> None:
    cases = [
        ("0/2 nodes are available", "Running", True),
        ("0/2 nodes are available", "Pending", False),
        ("0/2 nodes are available", "", False),
        ("not looked at", "Running", False),
    ]
    assert misjudged((cluster_checks.runs_when_there_is_room("llm", *seen), held) for *seen, held in cases) == []


def test_what_is_lost_or_doubled_by_the_kill_is_noticed() -> None:
    cases = [
        (Survivor("w", "a", "a", 1, "Running"), ""),
        (Survivor("w", "a", "a", 1, "Pending"), "w is Pending"),
        (Survivor("w", "a", "", 0, ""), "w is not there"),
        (Survivor("w", "a", "b", 1, "Running"), "filter named a for w, and it is on b"),
        (Survivor("w", "a", "a", 2, "Running"), "w was bound 2 times"),
        (Survivor("w", "a", "a", 0, "Running"), "w was bound 0 times"),
    ]
    other = Survivor("v", "a", "a", 1, "Running")
    assert misjudged((cluster_checks.nothing_is_lost([other, one]), said) for one, said in cases) == []


LARGE = Gang(size=5, found=4, reserved=4, left=0, bound=(), why="no room")


def test_what_a_gang_leaves_behind_is_noticed() -> None:
    cases = [
        (LARGE, ""),
        (LARGE._replace(left=3), "3 reservations are left"),
        (LARGE._replace(bound=("g-1", "g-2")), "g-1, g-2 were bound"),
        (LARGE._replace(found=5), "5 of 5 members found a node"),
        (LARGE._replace(reserved=0), "with 0 reservations"),
    ]
    assert misjudged((cluster_checks.leaves_nothing_behind(gang), said) for gang, said in cases) == []


def test_a_gang_in_pieces_is_noticed() -> None:
    whole = Gang(size=2, found=2, reserved=2, left=0, bound=("g-1", "g-2"), why="")
    assert cluster_checks.is_bound_whole(whole).passed
    assert not cluster_checks.is_bound_whole(whole._replace(bound=("g-1",))).passed


def test_what_a_gang_too_large_for_volcano_leaves_is_noticed() -> None:
    cases = [
        (Tried(5, (), 0), ""),
        (Tried(5, ("g-1",), 0), "g-1 were bound"),
        (Tried(5, (), 2), "2 reservations are left"),
    ]
    assert misjudged((cluster_checks.sums_are_not_enough(one), said) for one, said in cases) == []


def test_a_mixed_gang_that_leaves_gaps_is_noticed() -> None:
    cases = [
        (("a", "b"), Share("GPU-1", 40, 1), ""),
        (("a",), Share("GPU-1", 40, 1), "1 of 2 pods are bound"),
        (("a", "b"), Share("GPU-1", 30, 1), "of 1 GPUs 90 cores are allocated"),
        (("a", "b"), Share("GPU-2", 40, 1), "of 2 GPUs 60, 40 cores are allocated"),
    ]

    def check(bound: tuple[str, ...], small: Share) -> Check:
        seen = [placed("a"), placed("b", chosen=(small,))]
        return cluster_checks.mixed_gang_fills_gpus(Tried(2, bound, 0), seen, gpus=1)

    assert misjudged((check(bound, small), said) for bound, small, said in cases) == []


def test_what_a_dead_volcano_scheduler_keeps_is_noticed() -> None:
    lost = Abandoned(size=4, reserved=4, left=0, seconds=2.0, bound=0)
    cases = [
        (lost, 4, ""),
        (lost._replace(left=1), 4, "4 had reservations, and 1 are left"),
        (lost._replace(reserved=3), 4, "of 4 pods 3 had reservations"),
        (lost._replace(bound=1), 4, "1 pods were bound"),
        (lost, 3, "afterwards 3 of 4 pods were bound"),
    ]
    check = cluster_checks.promises_of_the_dead_end
    assert misjudged((check(one, Tried(4, tuple("abcd"[:bound]), 0)), said) for one, bound, said in cases) == []


def test_another_policy_that_allocates_more_is_noticed() -> None:
    check = cluster_checks.fragmentation_allocates_most
    better, worse = {"fragmentation": 99.0, "binpack": 98.0}, {"fragmentation": 99.0, "binpack": 99.1}
    assert misjudged([(check(better), True), (check(worse), False), (check({}), False)]) == []
