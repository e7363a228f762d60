"""What is noted of the changes of pods, nodes and GPUs: each once, in order, and never more than is kept."""

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.recent_events import RecentEvents
from deviceplugin.model.cluster_view import ClusterEventKind
from deviceplugin.model.pod import ClusterPod, ScheduledCondition
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import allocated, ask, bound, ended, node, on_gpu, order, pod

PLACED, PENDING, ENDED = ClusterEventKind.PLACED, ClusterEventKind.PENDING, ClusterEventKind.ENDED
NODE, GPU = ClusterEventKind.NODE, ClusterEventKind.GPU


@pytest.fixture
def wall() -> Clock:
    return Clock()


@pytest.fixture
def extender(wall: Clock, api: MemoryApi) -> Extender:
    """A node with two GPUs was there before anything was noted."""
    made = Extender(api, wall=wall)
    made.put_node(node("a", 2))
    made.warm_up()
    return made


def noted(extender: Extender) -> list[tuple[ClusterEventKind, str, str, str]]:
    return [(each.kind, each.pod, each.node, each.sentence) for _, each in sorted(extender.recent_events)]


def runs(one: ClusterPod, where: str = "a") -> ClusterPod:
    return bound(one, where, allocated(one, {"main": on_gpu(where, 0, 50, 8)}))


def refused(one: ClusterPod, message: str) -> ClusterPod:
    condition = ScheduledCondition(is_true=False, reason="Unschedulable", text=hash(message), message=message)
    return replace(one, condition=condition)


def test_what_was_there_at_the_start_is_no_event(wall: Clock) -> None:
    made = Extender(MemoryApi(), wall=wall)
    made.put_node(node("a", 2, ill=[1]))
    made.put_pod(runs(pod("old")))
    made.put_pod(refused(pod("waiting"), "0/1 nodes are available"))
    made.warm_up()
    assert (noted(made), made.recent_events.since) == ([], 1000.0)


def test_a_pod_from_its_refusal_to_its_end(extender: Extender) -> None:
    one = pod("train")
    extender.put_pod(one)
    extender.put_pod(refused(one, "0/1 nodes are available:\n 1 insufficient vcuda-core."))
    extender.put_pod(runs(one))
    extender.put_pod(replace(runs(one), priority=1))
    extender.put_pod(ended(runs(one)))
    extender.drop_pod(one.uid)
    assert noted(extender) == [
        (PENDING, "train", "", "0/1 nodes are available: 1 insufficient vcuda-core."),
        (PLACED, "train", "a", "bound to node a"),
        (ENDED, "train", "a", "ended: Succeeded"),
    ]


async def test_a_pod_that_the_scheduler_bound_says_why_it_is_there(extender: Extender, api: MemoryApi) -> None:
    one = api.put(pod("train"))
    extender.put_pod(one)
    extender.filter(ask(one, "a"))
    await extender.bind(order(one, "a"))
    extender.put_pod(api.pods[one.uid])
    ((kind, name, where, sentence),) = noted(extender)
    assert (kind, name, where) == (PLACED, "train", "a")
    assert sentence.startswith("node a is the only one that fits; container main: ")


def test_a_pod_that_is_refused_again_has_one_event(extender: Extender, wall: Clock) -> None:
    one, other = pod("one"), pod("other")
    extender.put_pod(refused(one, "no room"))
    wall.now += 10
    extender.put_pod(refused(other, "no room"))
    extender.put_pod(refused(one, "no room"))
    assert [each.count for _, each in extender.recent_events] == [1, 1], "nothing has changed"
    wall.now += 10
    extender.put_pod(refused(one, "still no room"))
    _, last = max(extender.recent_events)
    assert (last.sentence, last.count, last.first, last.at) == ("still no room", 2, 1000.0, 1020.0)
    assert [name for _, name, _, _ in noted(extender)] == ["other", "one"]


def test_a_pod_that_is_deleted(extender: Extender) -> None:
    one = runs(pod("gone"))
    extender.put_pod(one)
    extender.drop_pod(one.uid)
    extender.drop_pod(one.uid)
    assert [(kind, sentence) for kind, _, _, sentence in noted(extender)] == [
        (PLACED, "bound to node a"),
        (ENDED, "deleted"),
    ]


def test_nodes_come_lose_their_agent_and_go(extender: Extender) -> None:
    extender.put_node(node("b", 1))
    extender.put_node(node("b", 1))
    extender.put_node(replace(node("b", 1), cores=0))
    extender.put_node(node("b", 1))
    extender.drop_node("b")
    extender.put_node(replace(node("plain", 0, text=""), cores=0))
    extender.drop_node("plain")
    sentences = [(kind, where, sentence) for kind, _, where, sentence in noted(extender)]
    assert sentences[0] == (NODE, "b", "available")
    assert sentences[1][2].startswith("unavailable: ")
    assert sentences[2:] == [(NODE, "b", "available"), (NODE, "b", "the node was deleted")]


def test_gpus_fall_ill_recover_and_are_cordoned(extender: Extender) -> None:
    for changed in (node("a", 2, ill=[1]), node("a", 2, ill=[1]), node("a", 2), node("a", 2, cordon=["0"])):
        extender.put_node(changed)
    assert noted(extender) == [
        (GPU, "", "a", "GPU 1 unavailable: Xid 79"),
        (GPU, "", "a", "GPU 1 available"),
        (GPU, "", "a", "GPU 0 unavailable: cordoned"),
    ]


def test_a_flood_of_one_kind_leaves_the_others_and_is_counted(wall: Clock) -> None:
    recent = RecentEvents(decision="decision", most=3, wall=wall)
    recent.begin()
    recent.pod_changed(None, runs(pod("placed")))
    for number in range(10):
        recent.pod_changed(None, refused(pod(f"p{number}"), "x" * 5000))
    kept = [each for _, each in sorted(recent)]
    assert [each.pod for each in kept] == ["placed", "p7", "p8", "p9"]
    assert (recent.dropped, len(kept[-1].sentence)) == (7, 500)
    again = refused(pod("p0", uid=kept[-1].uid), "y")
    recent.pod_changed(None, again)
    assert [each.count for _, each in recent if each.kind is PENDING] == [1, 1, 2]


def test_a_flood_of_one_namespace_leaves_those_of_others(wall: Clock) -> None:
    recent = RecentEvents(decision="decision", most=4, wall=wall)
    recent.begin()

    def in_namespace(name: str, namespace: str) -> ClusterPod:
        made = refused(pod(name), "no room")
        return replace(made, pod=replace(made.pod, ref=replace(made.pod.ref, namespace=namespace)))

    others = [in_namespace(f"o{number}", f"other-{number}") for number in range(3)]
    for each in (*others, *(in_namespace(f"g{number}", "greedy") for number in range(10))):
        recent.pod_changed(None, each)
    assert names_in(recent) == ["o0", "o1", "o2", "g9"]
    recent.pod_changed(others[1], refused(others[1], "another reason"))
    assert names_in(recent) == ["o0", "o2", "g9", "o1"]
    assert [each.count for _, each in recent if each.pod == "o1"] == [2]
    recent.pod_changed(None, in_namespace("s0", "second"))
    assert names_in(recent) == ["o2", "g9", "o1", "s0"], "all namespaces have one now"


def names_in(recent: RecentEvents) -> list[str]:
    return [each.pod for _, each in sorted(recent)]
