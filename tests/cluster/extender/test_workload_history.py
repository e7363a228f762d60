"""The fragmentation policy plans for the pods of this cluster, and no request waits while it learns of them."""

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.watchers import EVERY_S, WorkloadHistory
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.fragmentation import ObservedWorkload, Workload
from deviceplugin.placement.nodes import NodeScorer
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, node, pod

NAMES = ResourceNames()


class Counting(NodeScorer):
    """`renewals` counts the workloads that it was given."""

    renewals = 0

    def expect(self, typical: Workload) -> None:
        self.renewals += 1
        super().expect(typical)


def planned(clock: Clock, *, enough: int = 2) -> tuple[Counting, WorkloadHistory]:
    scorer = Counting()
    return scorer, WorkloadHistory(scorer, clock=clock, observed=ObservedWorkload(enough=enough))


def test_what_was_seen_before_the_start_is_planned_for_at_once(clock: Clock) -> None:
    scorer, expectation = planned(clock)
    for _ in range(2):
        expectation.record(pod(cores=30), NAMES)
    expectation.renew()
    assert scorer.renewals == 1


def test_too_few_pods_leave_the_assumed_workload(clock: Clock) -> None:
    scorer, expectation = planned(clock, enough=3)
    expectation.record(pod(cores=30), NAMES)
    expectation.record(pod(cores=150), NAMES)  # nonsense says nothing
    expectation.record(pod(cores=30), NAMES)
    expectation.renew()
    assert scorer.renewals == 0


def test_it_is_renewed_every_so_often_and_only_where_it_has_changed(clock: Clock) -> None:
    scorer, expectation = planned(clock)
    for cores in (30, 30):
        expectation.record(pod(cores=cores), NAMES)
    expectation.renew()
    expectation.record(pod(cores=60), NAMES)
    expectation.refresh()
    assert scorer.renewals == 1, "not yet"
    clock.now += EVERY_S
    expectation.refresh()
    assert scorer.renewals == 2
    clock.now += EVERY_S
    expectation.refresh()
    assert scorer.renewals == 2, "nothing new was seen"


async def test_repeated_events_count_a_pod_once_in_the_history(clock: Clock) -> None:
    extender = Extender(MemoryApi(), PlacementSettings(node_policy=NodePolicy.FRAGMENTATION), clock=clock)
    for name in ("a", "b"):
        extender.put_node(node(name))
    waiting = pod(cores=30)
    for _ in range(3):
        extender.put_pod(waiting)
    assert extender.observed.tasks == 1
    extender.filter(ask(waiting, "a", "b"))
    extender.put_pod(waiting)
    assert extender.observed.tasks == 1
