"""filter: one node, chosen and reserved; reasons for the others."""

from itertools import product

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import PREFERRED
from deviceplugin.config.scheduler import NodeChooser, PlacementSettings
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import Gang
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.placement.budget import AT_ONCE, Budget
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import NAMES, allocated, ask, bound, deleting, ended, node, on_gpu, pod, refused


def free_cores(extender: Extender, name: str) -> list[int]:
    return [view.free_cores for view in extender.cache.nodes[name].state.snapshot.gpus]


async def test_one_node_is_answered_and_reserved(extender: Extender) -> None:
    for name in ("a", "b"):
        extender.put_node(node(name))
    asked = ask(pod(), "a", "b")
    answer = extender.filter(asked)
    assert answer.names == ("a",)
    assert answer.failed == {}, "nothing speaks against the other one"
    last = extender.verdicts.of(asked.pod.uid)
    assert last is not None
    assert last.refused == {"b": PREFERRED}
    assert free_cores(extender, "a") == [50, 100]


async def test_that_containers_do_not_fit_together_is_said_only_where_all_was_tried(
    api: MemoryApi, clock: Clock
) -> None:
    sentences = {
        (60, 60, 60): "the pod's containers do not fit together",
        (42, 12, 35, 10, 19, 9, 13, 32, 21, 17, 24, 42, 12, 17, 43, 52): (
            "no room found for the pod's containers together, though not every combination was tried"
        ),
    }
    for choice, (cores, said) in product(NodeChooser, sentences.items()):
        extender = Extender(api, PlacementSettings(node_choice=choice), clock=clock)
        extender.put_node(node("a", 2 if len(cores) == 3 else 4))
        first, *others = cores
        more = [(f"c{at}", ContainerRole.APP, each, 1) for at, each in enumerate(others)]
        answer = extender.filter(ask(pod(cores=first, blocks=1, more=more), "a"))
        assert (answer.names, answer.failed) == ((), {"a": said}), choice


async def test_the_same_pod_again_has_one_reservation(extender: Extender) -> None:
    for name in ("a", "b"):
        extender.put_node(node(name))
    one = pod()
    for offered in (("a", "b"), ("b", "a"), ("a",)):
        assert extender.filter(ask(one, *offered)).names == ("a",)
    assert extender.filter(ask(one, "b")).names == ("b",)
    assert (free_cores(extender, "a"), free_cores(extender, "b")) == ([100, 100], [50, 100])


async def test_a_pod_filtered_again_stays_where_it_was_although_another_node_became_better(extender: Extender) -> None:
    for name in ("a", "b"):
        extender.put_node(node(name))
    one, other = pod(), pod(cores=70)
    extender.filter(ask(one, "b"))
    extender.put_pod(bound(other, "a", allocated(other, {"main": on_gpu("a", 0, 50, 8)})))
    assert extender.filter(ask(one, "a", "b")).names == ("b",)


async def test_a_reservation_ends_after_its_time_and_is_refreshed_by_asking_again(
    extender: Extender, clock: Clock
) -> None:
    extender.put_node(node("a", 1))
    one = pod(cores=100, blocks=0)
    extender.filter(ask(one, "a"))
    clock.now += 50
    extender.filter(ask(one, "a"))
    clock.now += 50
    assert extender.filter(ask(pod(), "a")).names == ()
    clock.now += 11
    assert extender.filter(ask(pod(), "a")).names == ("a",)


async def test_a_gang_that_waits_at_permit_keeps_its_reservations_longer(extender: Extender, clock: Clock) -> None:
    extender.put_node(node("permit", 1))
    extender.put_node(node("cycle", 1))
    for name in ("permit", "cycle"):
        gang = Gang("d", name, waits=name == "permit")
        extender.filter(ask(pod(cores=100, blocks=0, gang=gang), name))

    def free() -> list[str]:
        return [name for name in ("permit", "cycle") if extender.filter(ask(pod(cores=10), name)).names]

    clock.now += 500
    assert free() == ["cycle"]
    clock.now += 101
    assert free() == ["permit", "cycle"]


async def test_members_of_a_gang_see_each_others_reservations(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    gang = Gang("d", "g")
    members = [pod(cores=100, blocks=0, gang=gang) for _ in range(3)]
    assert [extender.filter(ask(each, "a")).names for each in members] == [("a",), ("a",), ()]


async def test_a_reservation_ends_with_the_pod(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    for end in ("deleted", "terminal", "deleting", "refused"):
        one = pod(cores=100, blocks=0)
        extender.put_pod(one)
        assert extender.filter(ask(one, "a")).names == ("a",)
        match end:
            case "deleted":
                extender.drop_pod(one.uid)
            case "terminal":
                extender.put_pod(ended(one, "Failed"))
            case "deleting":
                extender.put_pod(deleting(one))
            case _:
                extender.put_pod(refused(one, "2"))
        assert free_cores(extender, "a") == [100], end


async def test_the_refusal_of_an_earlier_cycle_does_not_end_a_reservation(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    one = refused(pod(cores=100, blocks=0), "5")
    assert extender.filter(ask(one, "a")).names == ("a",)
    extender.put_pod(one)
    assert free_cores(extender, "a") == [0]


async def test_reasons_are_constant_and_lasting_ones_are_apart(extender: Extender) -> None:
    extender.put_node(node("full", 1))
    extender.put_node(node("small", 1, blocks=4))
    extender.put_node(node("broken", text="{"))
    extender.filter(ask(pod(cores=100, blocks=0), "full"))
    answer = extender.filter(ask(pod(cores=50, blocks=8), "full", "small", "broken", "unknown"))
    assert answer.names == ()
    assert answer.failed == {"full": "insufficient vcuda-core on any one GPU"}
    assert answer.unresolvable == {
        "small": "memory request larger than any GPU",
        "broken": "node has a GPU inventory that this vcuda cannot read",
        "unknown": "node is not in the GPU scheduler's cache yet",
    }


async def test_a_pod_without_gpus_may_go_anywhere(extender: Extender) -> None:
    assert extender.filter(ask(pod(cores=0, blocks=0), "x", "y")).names == ("x", "y")


async def test_what_no_node_can_serve_is_said_in_a_sentence(extender: Extender) -> None:
    extender.put_node(node("a"))
    pods = {
        "150": pod(cores=150, blocks=0),
        "vcuda-memory": pod(cores=50, blocks=0),
        "vcuda-node-policy": pod(annotations={NAMES.node_policy: "best"}),
        "vcuda-gpus": pod(annotations={NAMES.gpus: "0"}),
    }
    answers = {word: extender.filter(ask(each, "a")) for word, each in pods.items()}
    assert {word: answer.names for word, answer in answers.items()} == dict.fromkeys(pods, ())
    said = {word: answer.unresolvable["a"] for word, answer in answers.items()}
    assert [each for each in said.items() if each[0] not in each[1]] == []


async def test_a_pod_that_is_bound_already_stays_on_its_node(extender: Extender) -> None:
    for name in ("a", "b"):
        extender.put_node(node(name))
    one = pod()
    extender.put_pod(bound(one, "b", allocated(one, {"main": on_gpu("b", 0, 50, 8)})))
    assert extender.filter(ask(one, "a", "b")).names == ("b",)
    assert extender.filter(ask(one, "a")).names == ()
    extender.drop_pod(one.uid)
    assert extender.filter(ask(one, "a", "b")).names == ()
    assert free_cores(extender, "a") == [100, 100]


async def test_room_for_a_nominated_pod_is_kept_from_pods_of_no_higher_priority(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    vip = pod(cores=100, blocks=0, priority=10, nominated="a")
    extender.put_pod(vip)
    assert extender.filter(ask(pod(priority=10), "a")).names == ()
    assert extender.filter(ask(pod(priority=11), "a")).names == ("a",)


async def test_a_nominated_pod_does_not_stand_in_its_own_way_and_is_counted_once(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    vip = pod(cores=100, blocks=0, priority=10, nominated="a")
    extender.put_pod(vip)
    assert extender.filter(ask(vip, "a")).names == ("a",)
    assert extender.filter(ask(pod(cores=100, blocks=0), "a")).names == ("a",)


async def test_no_pod_gets_what_victims_leave_before_all_of_them_have_ended(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    victim = pod(cores=50)
    extender.put_pod(bound(victim, "a", allocated(victim, {"main": on_gpu("a", 0, 50, 8)})))
    extender.put_pod(pod(cores=100, blocks=0, priority=10, nominated="a"))
    answer = extender.filter(ask(pod(cores=10), "a"))
    assert answer.failed == {"a": "GPUs are reserved for a nominated pod of the same or a higher priority"}


async def test_what_a_pod_has_ends_when_it_asks_what_cannot_be_read_or_does_not_fit_there_any_more(
    extender: Extender,
) -> None:
    extender.put_node(node("a", 1))
    extender.put_node(node("b", 2))
    one = pod(cores=50)
    assert extender.filter(ask(one, "a", "b")).names == ("a",)
    wrong = replace(one, pod=replace(one.pod, annotations={NAMES.gpus: "x"}, resource_version="2"))
    assert extender.filter(ask(wrong, "a", "b")).names == ()
    assert free_cores(extender, "a") == [100]
    assert extender.filter(ask(one, "a")).names == ("a",)
    more = replace(one, pod=replace(pod(cores=200, blocks=0).pod, api_uid=one.uid, ref=one.pod.ref))
    assert extender.filter(ask(more, "a", "b"), Budget(1, is_last=False)).names == ()
    assert free_cores(extender, "a") == [100], "else each turn would try it there again"
    assert extender.filter(ask(more, "a", "b")).names == ("b",)


async def test_the_work_that_finds_a_node_is_the_last_whatever_it_took(extender: Extender) -> None:
    """What is begun is ended: to throw it away would be to do it again in each turn."""
    extender.put_node(node("a", 8))
    dear = pod(cores=200, blocks=0, more=[(f"i{at}", ContainerRole.INIT, 200, 0) for at in range(40)])
    for _ in range(2):
        budget = Budget(AT_ONCE, is_last=False)
        assert extender.filter(ask(dear, "a"), budget).names == ("a",)
        assert budget.spent > budget.most
        assert not budget.goes_on


async def test_all_containers_of_a_pod_get_their_gpus(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    one = pod(cores=100, blocks=0, more=[("side", ContainerRole.APP, 50, 8), ("setup", ContainerRole.INIT, 30, 8)])
    assert extender.filter(ask(one, "a")).names == ("a",)
    held = extender.cache.on("a", one.uid)
    assert held is not None
    assert {each.owner.name for each in held.allocations} == {"main", "side", "setup"}


async def test_kube_scheduler_may_choose_among_all_that_fit(api: MemoryApi, clock: Clock) -> None:
    extender = Extender(api, PlacementSettings(node_choice=NodeChooser.SCHEDULER), clock=clock)
    for name in ("a", "b", "c"):
        extender.put_node(node(name, 1))
    first = pod(cores=100, blocks=0)
    extender.put_pod(bound(first, "c", allocated(first, {"main": on_gpu("c", 0, 100, 64)})))
    one = pod()
    answer = extender.filter(ask(one, "a", "b", "c"))
    assert answer.names == ("a", "b")
    assert answer.failed == {"c": "insufficient vcuda-core on any one GPU"}
    assert not list(extender.cache.holds(one.uid))


async def test_nodes_are_scored_from_ten_to_nothing_in_the_order_of_the_policy(api: MemoryApi, clock: Clock) -> None:
    for policy, best in ((NodePolicy.BINPACK, "full"), (NodePolicy.SPREAD, "empty")):
        extender = Extender(api, PlacementSettings(node_choice=NodeChooser.SCHEDULER, node_policy=policy), clock=clock)
        for name in ("full", "half", "empty"):
            extender.put_node(node(name, 1))
        for name, cores in (("full", 60), ("half", 30)):
            other = pod(cores=cores)
            extender.put_pod(bound(other, name, allocated(other, {"main": on_gpu(name, 0, cores, 8)})))
        scores = dict(extender.prioritize(ask(pod(cores=20), "full", "half", "empty", "unknown")))
        assert scores[best] == 10
        assert scores["half"] == 5
        assert scores["unknown"] == 0
        assert sorted(scores.values()) == [0, 0, 5, 10]
