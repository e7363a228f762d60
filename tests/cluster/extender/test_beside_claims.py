"""No decision depends on claims: two extenders see the same nodes and pods, and one of them claims and slices too."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.claims import Taint
from deviceplugin.model.pod import ClusterPod
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import NAMES as MARKS
from tests.cluster.extender.makers import ask, ask_room, node, order, pod, running
from tests.cluster.view.claims import BLOCKS, NAMES, allocated, claiming, offer
from tests.examples import examples

NODES = ("a", "b", "of claims alone")


@dataclass
class Side:
    api: MemoryApi = field(default_factory=MemoryApi)
    answers: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.extender = Extender(self.api, clock=lambda: 0.0, wall=lambda: 5.0)

    def put(self, each: ClusterPod) -> None:
        self.extender.put_pod(self.api.put(each))

    def schedule(self, each: ClusterPod) -> None:
        """As kube-scheduler does it: preemption where nothing fits, and the Binding where something does."""
        self.put(each)
        victims: dict[str, list[ClusterPod]] = {name: [] for name in NODES}
        found = self.extender.filter(ask(each, *NODES))
        self.answers += [found, self.extender.prioritize(ask(each, *NODES))]
        if found.names:
            self.answers.append(asyncio.run(self.extender.bind(order(each, found.names[0]))))
            self.extender.put_pod(self.api.pods[each.uid])
        else:
            self.answers.append(asyncio.run(self.extender.preempt(ask_room(each, victims))))

    @property
    def seen(self) -> object:
        """Everything on which a later decision depends."""
        cache = self.extender.cache
        holds = {uid: held for info in cache.nodes.values() for uid, held in info.holds.items()}
        usable_nodes = (info.state for info in cache.nodes.values() if info.problem is None)
        states = {state.name: (state.snapshot, state.cordoned, state.spare) for state in usable_nodes}
        usable = sorted(self.extender.snapshot.usable_but(()))
        problems = {name: cache.problem(name) for name in NODES}
        return (self.answers, holds, states, usable, problems, set(map(_written, self.api.pods.values())))


def _written(each: ClusterPod) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Without the time at which it was written."""
    said = ((name, text) for name, text in each.pod.annotations.items() if name != MARKS.predicate_time)
    return (each.uid, each.pod.node, tuple(sorted(said)))


Step = Callable[[Side], None]


def on_both(draw: st.DrawFn) -> Step:
    name, cores, blocks = draw(st.sampled_from("ab")), draw(st.sampled_from([30, 60, 100])), draw(st.integers(1, 64))
    asks = pod(cores=cores, blocks=0 if cores == 100 else blocks, priority=draw(st.integers(0, 2)))
    there = running(name, draw(st.integers(0, 1)), min(cores, 90), blocks)
    known = node(name, draw(st.integers(1, 2)), ill=draw(st.lists(st.just(0), max_size=1)))
    choices: list[Step] = [
        *[lambda side: side.schedule(asks)] * 3,
        lambda side: side.put(there),
        lambda side: side.extender.put_node(known),
        lambda side: side.extender.drop_node(name),
    ]
    return draw(st.sampled_from(choices))


def on_one(draw: st.DrawFn) -> Step:
    """On every node; also of GPUs that the device plugin has, and by pods that hold shares too."""
    name, at = draw(st.sampled_from(NODES)), draw(st.integers(0, 1))
    held = draw(st.sampled_from("cd"))
    taints = {at: Taint(NAMES.unhealthy, "xid-79")} if draw(st.booleans()) else None
    user = claiming("user", held, on=draw(st.sampled_from(["", name])))
    both = replace(running(name, at, 10, 1), claims=user.claims)
    choices: list[Step] = [
        lambda side: side.extender.cache.claims.put_offer(offer(name, range(2), taints=taints)),
        lambda side: side.extender.cache.claims.drop_offer(name),
        lambda side: side.extender.cache.claims.put_claim(
            allocated(held, name, (at, 100, BLOCKS), for_pods=[user, both])
        ),
        lambda side: side.extender.cache.claims.drop_claim(("d", held)),
        lambda side: side.extender.cache.claims.put_pod(user),
        lambda side: side.extender.cache.claims.put_pod(both),
        lambda side: side.extender.cache.claims.drop_pod(user.uid),
    ]
    return draw(st.sampled_from(choices))


@st.composite
def courses(draw: st.DrawFn) -> list[tuple[Step, bool]]:
    """Steps, and whether each is one of both."""
    return [
        (on_both(draw) if both else on_one(draw), both)
        for both in draw(st.lists(st.booleans(), min_size=5, max_size=25))
    ]


@given(steps=courses())
@examples(400)
def test_every_answer_is_the_same_with_and_without_claims(steps: list[tuple[Step, bool]]) -> None:
    bare, beside = Side(), Side()
    for name in "ab":
        beside.extender.cache.claims.put_offer(offer(name))
        beside.extender.cache.claims.put_claim(allocated(f"on-{name}", name, (0, 100, BLOCKS)))
        for side in (bare, beside):
            side.extender.put_node(node(name))
    for step, is_of_both in steps:
        for side in (bare, beside) if is_of_both else (beside,):
            step(side)
        assert bare.seen == beside.seen


def test_a_pod_is_never_placed_on_gpus_that_only_claims_get() -> None:
    side = Side()
    side.extender.cache.claims.put_offer(offer("of claims alone", range(8)))
    side.schedule(asks := pod(cores=100, blocks=0))
    assert (tuple(side.extender.cache.holds(asks.uid)), side.extender.cache.usable) == ((), {})
    side.extender.put_node(node("a", 1))
    side.extender.cache.claims.put_offer(offer("a", range(1, 8)))
    side.extender.cache.claims.put_claim(allocated("c", "a", (0, 100, BLOCKS)))
    side.schedule(first := pod(cores=100, blocks=0))
    side.schedule(second := pod(cores=100, blocks=0))
    holds = [
        [one.uuids for held in side.extender.cache.holds(each.uid) for one in held.allocations]
        for each in (first, second)
    ]
    assert holds == [[{"GPU-a-0"}], []], "the device plugin's GPU alone, whatever a claim says of it"
