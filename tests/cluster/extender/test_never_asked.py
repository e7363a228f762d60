"""kube-scheduler may ask about a part of the nodes: the others are counted, and named where they have room."""

import json

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import NOMINATED, main_of
from deviceplugin.cluster.extender.wire import write_filter_result
from deviceplugin.model.cluster_view import ClusterEventKind
from deviceplugin.model.pod import ClusterPod, ScheduledCondition
from tests.cluster.extender.makers import ask, bound, node, pod, running
from tests.cluster.extender.rounds import AT_PERMIT, cycle, members

FULL = ("a", "b", "c")


@pytest.fixture
async def mostly_full(extender: Extender) -> Extender:
    """Three nodes of one GPU that is taken, one with a free GPU, one without GPUs, and one whose agent is down."""
    for name in (*FULL, "free"):
        extender.put_node(node(name, 1))
    extender.put_node(node("plain", 0, text=""))
    extender.put_node(node("down", 0))
    for name in FULL:
        extender.put_pod(bound(running(name, 0, 100, 64), name))
    return extender


def said(extender: Extender, wanted: ClusterPod, *names: str) -> list[str]:
    """The reasons, as kube-scheduler puts them into its sentence."""
    answer = json.loads(write_filter_result(extender.filter(ask(wanted, *names))))
    return [*answer["FailedNodes"].values(), *answer["FailedAndUnresolvableNodes"].values()]


async def test_a_refusal_says_once_how_many_nodes_were_asked_about_and_how_many_were_not(mostly_full: Extender) -> None:
    reasons = said(mostly_full, pod(cores=60), *FULL[:2])
    remarks = [each for each in reasons if "kube-scheduler asked" in each]
    assert len(reasons) == 2
    (remark,) = remarks
    assert remark.endswith(" (kube-scheduler asked about 2 nodes and not about 2 more with GPUs)")
    (alone,) = said(mostly_full, pod(cores=60), "a")
    assert alone.endswith(" (kube-scheduler asked about 1 node and not about 3 more with GPUs)")


async def test_where_all_were_asked_about_or_the_pod_fits_nothing_is_said(mostly_full: Extender) -> None:
    large = pod(cores=200, blocks=0)
    assert not any("asked" in each for each in said(mostly_full, large, *FULL, "free", "plain", "down"))
    assert said(mostly_full, pod(cores=60), "a", "free") == []


async def test_wrong_requests_and_gangs_that_yielded_say_it_with_their_reasons(busy: Extender) -> None:
    busy.put_node(node("b", 1))
    tried = members(AT_PERMIT, 3)
    assert cycle(busy, tried) == [True, True, False]
    assert busy.filter(ask(pod(cores=100, blocks=0), "a")).names == ("a",)
    (reason,) = said(busy, tried[2], "a")
    assert reason.startswith("other members of its gang yielded")
    assert reason.endswith("(kube-scheduler asked about 1 node and not about 1 more with GPUs)")


async def test_explain_names_the_node_that_has_room(mostly_full: Extender) -> None:
    waits = pod("p", cores=60)
    mostly_full.put_pod(waits)
    mostly_full.filter(ask(waits, *FULL))
    found = await mostly_full.explain("d", "p")
    assert found is not None
    assert found.sentence.startswith("the pod fits on none of the 3 nodes that kube-scheduler asked about; it has not ")
    assert "asked about 1 more with GPUs, of which node free has room on its GPUs" in found.sentence
    assert found.sentence.endswith("or it asks about a part of the nodes only (percentageOfNodesToScore)")


async def test_explain_says_where_none_of_the_others_has_room_either_or_several_have(mostly_full: Extender) -> None:
    waits = pod("p", cores=60)
    mostly_full.put_pod(waits)
    mostly_full.put_pod(bound(running("free", 0, 100, 64), "free"))
    mostly_full.filter(ask(waits, "a"))
    found = await mostly_full.explain("d", "p")
    assert found is not None
    assert found.sentence.endswith(
        "it has not asked about 3 more with GPUs, and none of these has room on its GPUs now"
    )
    for name in ("y", "x"):
        mostly_full.put_node(node(name, 1))
    found = await mostly_full.explain("d", "p")
    assert found is not None
    assert "asked about 5 more with GPUs, of which 2 have room on their GPUs, node x first by name: " in found.sentence


async def test_the_reason_is_still_read_from_kube_schedulers_sentence(mostly_full: Extender) -> None:
    (reason,) = said(mostly_full, pod(cores=60), "a")
    plain = reason.partition(" (")[0]
    assert main_of(f"0/5 nodes are available: 1 {reason}, 4 node(s) had untolerated taints.") == plain
    assert (
        main_of(f"0/5 nodes are available: 1 {NOMINATED.text} (kube-scheduler asked about 1 node).") == NOMINATED.text
    )


async def test_the_clusters_events_have_it_with_kube_schedulers_sentence(mostly_full: Extender) -> None:
    mostly_full.warm_up()
    waits = pod("p", cores=60)
    (reason,) = said(mostly_full, waits, "a")
    condition = ScheduledCondition(False, "Unschedulable", 1, f"0/5 nodes are available: 1 {reason}.")
    mostly_full.put_pod(ClusterPod(waits.pod, condition=condition))
    (event,) = [each for _, each in mostly_full.recent_events if each.kind is ClusterEventKind.PENDING]
    assert "asked about 1 node and not about 3 more" in event.sentence
