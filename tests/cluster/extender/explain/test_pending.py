"""How many pods wait, by reasons of a bounded set."""

from deviceplugin.cluster.extender.explain.verdicts import State
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import KNOWN, WRONG_REQUEST
from deviceplugin.model.pod import ClusterPod, ScheduledCondition
from deviceplugin.structs import replace
from tests.cluster.extender.makers import ask, bound, deleting, node, pod, refused

CORES = "insufficient vcuda-core on any one GPU"


def waiting(extender: Extender) -> dict[str, int]:
    return {reason: count for reason, count in extender.pending().items() if count}


def asked_about(extender: Extender, made: ClusterPod, *nodes: str) -> ClusterPod:
    extender.put_pod(made)
    extender.filter(ask(made, *nodes))
    return made


def test_every_state_has_a_count_before_any_pod_waits(extender: Extender) -> None:
    assert extender.pending() == {each.value: 0 for each in State}


def test_a_pod_counts_to_the_reason_of_most_nodes(extender: Extender) -> None:
    for name in ("a", "b", "c"):
        extender.put_node(node(name, 1))
    extender.put_pod(bound(pod("holder", cores=60, blocks=64), "a"))
    for name in ("b", "c"):
        extender.put_pod(bound(pod(f"holder-{name}", cores=99, blocks=1), name))
    asked_about(extender, pod("p", cores=50, blocks=8), "a", "b", "c")
    assert waiting(extender) == {CORES: 1}


def test_what_can_go_away_counts_before_what_cannot(extender: Extender) -> None:
    """Else a pod on a cluster of many nodes without GPUs would always wait for an inventory."""
    extender.put_node(node("a", 1))
    for name in ("b", "c"):
        extender.put_node(node(name, text=""))
    extender.put_pod(bound(pod("holder", cores=100, blocks=64), "a"))
    asked_about(extender, pod("p", cores=100, blocks=0), "a", "b", "c")
    assert waiting(extender) == {"insufficient whole GPUs": 1}


def test_a_wrong_request_is_one_reason_whatever_it_says(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    for at, cores in enumerate((150, 250)):
        asked_about(extender, pod(f"p{at}", cores=cores, blocks=8), "a")
    assert waiting(extender) == {WRONG_REQUEST: 2}


def test_who_was_not_refused_by_nodes_counts_to_its_state(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    gated = ScheduledCondition(is_true=False, reason="SchedulingGated", message="Scheduling is blocked")
    extender.put_pod(pod("new"))
    extender.put_pod(replace(pod("gated"), condition=gated, gates=("a/1",)))
    extender.put_pod(replace(pod("opened"), condition=gated))
    extender.put_pod(deleting(pod("going")))
    asked_about(extender, pod("placed", cores=10), "a")
    asked_about(extender, pod("lonely"))
    assert waiting(extender) == {
        State.NOT_ASKED.value: 2,
        State.GATED.value: 1,
        State.DELETING.value: 1,
        State.PLACED.value: 1,
        State.NO_NODE.value: 1,
    }


def test_a_pod_that_kube_scheduler_refused_for_another_reason_counts_to_that(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    extender.put_pod(bound(pod("holder", cores=100, blocks=64), "a"))
    waits = asked_about(extender, pod("p", cores=100, blocks=0), "a")
    later = refused(waits, "2")
    said = replace(later.condition or ScheduledCondition(is_true=False), message="0/1 nodes: untolerated taint")
    extender.put_pod(replace(later, condition=said))
    assert waiting(extender) == {State.OTHER.value: 1}


NODES = "0/9 nodes are available: "


def test_what_another_leader_was_asked_is_in_kube_schedulers_message(extender: Extender) -> None:
    """It counted as not asked, as did all but the last thousand pods, and the runbook said that nobody asks."""
    cases = {
        "nothing": ("", State.OTHER.value),
        "another plugin": (f"{NODES}9 node(s) had untolerated taint {{gpu: no}}.", State.OTHER.value),
        "similar words": (f"{NODES}9 no GPU operator of theirs.", State.OTHER.value),
        "most nodes": (f"{NODES}2 insufficient whole GPUs, 7 insufficient vcuda-core on any one GPU.", CORES),
        "what can go away": (
            f"{NODES}8 node has no vcuda GPU inventory, 1 insufficient vcuda-core on any one GPU. preemption: 0/9",
            CORES,
        ),
        "absurd": (f"{NODES}12345678901234567890 insufficient vcuda-core on any one GPU", CORES),
    }
    found = {}
    for name, (message, _) in cases.items():
        said = ScheduledCondition(is_true=False, reason="Unschedulable", message=message)
        one = replace(pod("p"), condition=said)
        extender.put_pod(one)
        found[name] = waiting(extender)
        extender.drop_pod(one.uid)
    assert found == {name: {reason: 1} for name, (_, reason) in cases.items()}


def test_a_pod_that_got_a_node_or_ended_waits_no_more(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    one, other = pod("p"), pod("q")
    extender.put_pod(one)
    extender.put_pod(other)
    extender.put_pod(bound(one, "a"))
    extender.drop_pod(other.uid)
    assert waiting(extender) == {}


def test_no_reason_has_two_meanings() -> None:
    assert [each for each in (WRONG_REQUEST, *(state.value for state in State)) if each in KNOWN] == []
