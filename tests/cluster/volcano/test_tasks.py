"""Volcano places a gang member by member: each is judged with the GPUs of those before; what it takes back is free."""

from dataclasses import dataclass, field
from itertools import permutations

import pytest

from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.volcano.tasks import FITS, VolcanoTasks
from deviceplugin.cluster.volcano.wire import Code
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.structs import replace
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import (
    NAMES,
    allocated,
    ask,
    bound,
    deleting,
    ended,
    node,
    on_gpu,
    order,
    pod,
    refused,
)
from tests.cluster.volcano.makers import task


@dataclass
class Scene:
    """One extender and Volcano's verbs on its cache."""

    extender: Extender
    clock: Clock
    promised: list[PodHold] = field(default_factory=list)
    tasks: VolcanoTasks = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = VolcanoTasks(self.extender.snapshot, clock=self.clock)
        self.extender.cache.promised = self.promised.append

    def waits(self, cores: int, blocks: int = 8, *, gang: Gang | None = None) -> ClusterPod:
        made = pod(cores=cores, blocks=blocks, gang=gang)
        self.extender.put_pod(made)
        return made

    def runs(self, at: int, cores: int, where: str = "a") -> ClusterPod:
        made = pod(cores=cores, blocks=8)
        there = bound(made, where, allocated(made, {"main": on_gpu(where, at, cores, 8)}))
        self.extender.put_pod(there)
        return there

    def place(self, found: ClusterPod, where: str = "a") -> str:
        """As a session does it; why not, if it does not."""
        verdict = self.tasks.predicate(task(found), where)
        return verdict.reason or self.tasks.allocate(task(found, where))

    def gpus(self, found: ClusterPod, where: str = "a") -> set[str]:
        held = self.extender.cache.on(where, found.uid)
        return set() if held is None else {uuid for each in held.allocations for uuid in each.uuids}


def fresh() -> Scene:
    clock = Clock()
    extender = Extender(MemoryApi(), clock=clock)
    extender.put_node(node("a", 2))
    return Scene(extender, clock)


@pytest.fixture
def scene() -> Scene:
    return fresh()


@pytest.mark.parametrize(
    ("fate", "state", "said"),
    [
        (Fate.LATE, HoldState.UNCONFIRMED, "may be bound to node a already; its Binding has no answer yet"),
        (Fate.BROKEN_AFTER, HoldState.BOUND, ""),
    ],
)
async def test_what_a_binding_without_an_answer_may_take_is_kept_for_it(
    fate: Fate, state: HoldState, said: str
) -> None:
    """Found by Hypothesis: Volcano placed the same pod there, took it back, and its GPU was given to another."""
    api, clock = MemoryApi(), Clock()
    scene = Scene(Extender(api, clock=clock), clock)
    scene.extender.put_node(node("a", 1))
    unanswered = scene.waits(60)
    api.pods, api.fates = {unanswered.uid: unanswered}, [fate]
    assert scene.extender.filter(ask(unanswered, "a")).names == ("a",)
    await scene.extender.bind(order(unanswered, "a"))
    before = scene.extender.cache.on("a", unanswered.uid)
    assert before is not None
    assert before.state is state
    assert scene.place(unanswered).removeprefix(f"pod {unanswered.pod.ref} ") == said
    scene.tasks.deallocate(task(unanswered, "a"))
    assert scene.extender.cache.on("a", unanswered.uid) == before
    assert scene.place(scene.waits(60))


def test_two_halves_of_room_on_two_gpus_are_no_room_for_one_pod(scene: Scene) -> None:
    """Volcano's own sums would bind it."""
    scene.runs(0, 70)
    scene.runs(1, 70)
    verdict = scene.tasks.predicate(task(scene.waits(50)), "a")
    assert verdict.reason
    assert verdict.code is Code.UNSCHEDULABLE
    assert scene.tasks.predicate(task(scene.waits(30)), "a") == FITS


def test_members_see_what_the_members_before_were_promised(scene: Scene) -> None:
    gang = [scene.waits(60) for _ in range(3)]
    assert [scene.place(each) for each in gang[:2]] == ["", ""]
    assert scene.gpus(gang[0]) != scene.gpus(gang[1])
    assert scene.place(gang[2]), "no GPU has room for two"
    for each in reversed(gang[:2]):
        scene.tasks.deallocate(task(each, "a"))
    assert [scene.gpus(each) for each in gang] == [set(), set(), set()]
    assert scene.place(gang[2]) == ""


def test_a_mixed_gang_fits_in_whatever_order_its_members_come() -> None:
    """Two of 40 on one GPU would leave no room for one of 60."""
    for sizes in set(permutations((60, 60, 40, 40))):
        scene = fresh()
        gang = [scene.waits(cores, gang=Gang("d", "mixed")) for cores in sizes]
        assert [scene.place(each) for each in gang] == ["", "", "", ""], sizes


def test_members_that_go_to_another_node_keep_no_room_here(scene: Scene) -> None:
    gang = [scene.waits(cores, gang=Gang("d", "wide")) for cores in (40, 100, 100)]
    scene.extender.put_node(node("b", 2))
    assert scene.place(gang[0]) == "", "though both others could be here"
    assert [scene.place(each, "b") for each in gang[1:]] == ["", ""]


def test_a_gang_that_is_tried_again_gets_the_same_gpus(scene: Scene) -> None:
    """So that its annotations need not be written again each second."""
    first, second = scene.waits(60), scene.waits(60)
    assert [scene.place(each) for each in (first, second)] == ["", ""]
    before = scene.gpus(first), scene.gpus(second)
    for each in (second, first):
        scene.tasks.deallocate(task(each, "a"))
    assert [scene.place(each) for each in (second, first)] == ["", ""]
    assert (scene.gpus(first), scene.gpus(second)) == before


def test_kube_scheduler_sees_volcanos_promises_and_volcano_sees_its(scene: Scene) -> None:
    volcanos, ours = scene.waits(100), scene.waits(100)
    assert scene.place(volcanos) == ""
    assert scene.extender.filter(ask(ours, "a")).names == ("a",)
    assert scene.place(scene.waits(10))
    assert scene.gpus(ours).isdisjoint(scene.gpus(volcanos))


def test_a_binding_without_annotations_keeps_the_promised_gpus(scene: Scene) -> None:
    made = scene.waits(60)
    scene.runs(0, 30)
    scene.place(made)
    promised = scene.gpus(made)
    assert scene.promised == []
    scene.extender.put_pod(bound(made, "a"))
    held = scene.extender.cache.on("a", made.uid)
    assert held is not None
    assert scene.promised == [held]
    assert (held.state, held.unlocated, held.expires) == (HoldState.BOUND, (), float("inf"))
    assert scene.gpus(made) == promised
    scene.clock.now += 10_000
    scene.extender.expire()
    assert scene.gpus(made) == promised


def test_what_the_agent_gave_counts_from_then_on() -> None:
    for at in (0, 1):
        scene = fresh()
        made = scene.waits(60)
        scene.place(made)
        scene.extender.put_pod(bound(made, "a"))
        scene.extender.put_pod(bound(made, "a", allocated(made, {"main": on_gpu("a", at, 60, 8)})))
        assert scene.gpus(made) == {f"GPU-a-{at}"}
        held = scene.extender.cache.on("a", made.uid)
        assert held is not None
        assert not held.announced, at


def test_a_promise_ends_by_time_when_vc_scheduler_has_died(scene: Scene) -> None:
    made = scene.waits(100)
    scene.place(made)
    scene.clock.now += PlacementSettings().reservation_time - 1
    assert scene.place(scene.waits(100)) == ""
    assert scene.place(scene.waits(100))
    scene.clock.now += 1
    assert scene.place(scene.waits(100)) == ""
    assert scene.gpus(made) == set()


def test_a_promise_ends_with_its_pod(scene: Scene) -> None:
    for gone in (ended, deleting):
        made = scene.waits(100)
        assert scene.place(made) == ""
        scene.extender.put_pod(gone(made))
        assert scene.gpus(made) == set(), gone


def test_a_pod_that_is_being_deleted_gets_no_promise(scene: Scene) -> None:
    made = scene.waits(50)
    scene.extender.put_pod(deleting(made))
    assert "is being deleted" in scene.tasks.allocate(task(made, "a"))
    assert scene.gpus(made) == set()


def test_volcanos_word_that_a_pod_is_unschedulable_may_come_late(scene: Scene) -> None:
    """It is about an earlier session; what ends a promise is `deallocate`."""
    made = scene.waits(100)
    scene.place(made)
    scene.extender.put_pod(refused(made, "7"))
    assert scene.gpus(made)


def test_a_task_that_waits_for_others_to_leave_is_let_through_and_holds_nothing(scene: Scene) -> None:
    leaving = scene.runs(0, 90)
    scene.runs(1, 90)
    made = scene.waits(50)
    assert scene.place(made)
    scene.extender.put_pod(deleting(leaving))
    assert scene.tasks.predicate(task(made), "a") == FITS
    assert scene.tasks.allocate(task(made, "a", pipelined=True)) == ""
    assert scene.gpus(made) == set()
    assert scene.tasks.allocate(task(made, "a")), "it must not run beside those that leave"
    scene.extender.drop_pod(leaving.uid)
    assert scene.tasks.allocate(task(made, "a")) == ""


async def test_victims_are_those_whose_gpu_makes_room(scene: Scene) -> None:
    """By sums any two of them would do."""
    halves = [scene.runs(at, 50) for at in (0, 1, 0, 1)]
    made = scene.waits(100)
    chosen = await scene.tasks.victims(task(made), [task(each, "a") for each in halves])
    assert {each.uid for each in chosen} in ({halves[0].uid, halves[2].uid}, {halves[1].uid, halves[3].uid})
    assert await scene.tasks.victims(task(made), [task(each, "a") for each in halves[:2]]) == ()


async def test_nobody_goes_for_a_pod_that_can_never_run(scene: Scene) -> None:
    running = scene.runs(0, 50)
    assert await scene.tasks.victims(task(scene.waits(150)), [task(running, "a")]) == ()
    verdict = scene.tasks.predicate(task(scene.waits(150)), "a")
    assert (verdict.code, "write 100 or 200" in verdict.reason) == (Code.UNRESOLVABLE, True)


def test_an_unknown_node_and_a_pod_without_gpus(scene: Scene) -> None:
    assert scene.tasks.predicate(task(scene.waits(10)), "new").code is Code.UNRESOLVABLE
    plain = pod(cores=0, blocks=0)
    scene.extender.cache.waiting[plain.uid] = plain
    assert scene.tasks.predicate(task(plain), "a") == FITS
    assert scene.tasks.allocate(task(plain, "a")) == ""
    scene.extender.put_pod(bound(plain, "a"))
    assert scene.promised == []


def test_a_pod_that_is_bound_fits_its_node_only(scene: Scene) -> None:
    scene.extender.put_node(node("b", 2))
    running = scene.runs(0, 50)
    assert scene.tasks.predicate(task(running), "a") == FITS
    assert scene.tasks.predicate(task(running), "b").reason
    scene.tasks.deallocate(task(running, "a"))
    assert scene.gpus(running), "Volcano does not take back what is bound"


def test_the_fullest_node_that_fits_scores_best(scene: Scene) -> None:
    scene.extender.put_node(node("b", 2))
    scene.runs(0, 40, "b")
    scores = scene.tasks.scores(task(scene.waits(30)), ("a", "b", "new"))
    assert scores["b"] == 100
    assert scores["a"] < 100
    assert scores["new"] == 0


def test_a_pod_without_room_for_its_annotations_fits_nowhere() -> None:
    """What would be written to it once it is bound, the API server would refuse for ever."""
    scene = fresh()
    made = scene.waits(30)
    full = replace(made.pod, annotation_bytes=(256 << 10) - 100, resource_version="2")
    scene.extender.put_pod(replace(made, pod=full))
    verdict = scene.tasks.predicate(task(made), "a")
    assert (verdict.code, "make its annotations smaller" in verdict.reason) == (Code.UNRESOLVABLE, True)
    assert "make its annotations smaller" in scene.tasks.allocate(task(made, "a"))


def test_the_largest_of_a_gang_of_thousands_finds_its_gpu_last() -> None:
    """However many come before it, and whatever was created last."""
    scene = fresh()
    gang = Gang("d", "many")
    small = [scene.waits(1, 1, gang=gang) for _ in range(2_000)]
    large = scene.waits(100, 1, gang=gang)
    small += [scene.waits(1, 1, gang=gang) for _ in range(50)]
    assert [scene.place(each) for each in small[-50:]] == [""] * 50
    assert scene.place(large) == ""


def test_parts_of_many_gpus_are_no_larger_than_what_they_take_of_one(scene: Scene) -> None:
    """100 cores over two GPUs are two halves, and a share of 60 needs room first."""
    gang = Gang("d", "parts")
    spread = pod(cores=80, blocks=16, gang=gang, annotations={NAMES.gpus: "2"})
    scene.extender.put_pod(spread)
    small, large = scene.waits(40, gang=gang), scene.waits(60, gang=gang)
    assert [scene.place(each) for each in (small, spread, large)] == ["", "", ""]


def test_a_gang_takes_no_room_that_is_kept_for_a_nominated_pod(scene: Scene) -> None:
    scene.runs(1, 50)
    scene.extender.put_pod(pod(cores=100, blocks=8, priority=9, nominated="a"))
    gang = [scene.waits(cores, gang=Gang("d", "late")) for cores in (30, 40)]
    assert scene.place(gang[0]) == ""
    assert scene.gpus(gang[0]) == {"GPU-a-1"}
    assert scene.place(gang[1]), "its own place is taken, and the other one is kept"
