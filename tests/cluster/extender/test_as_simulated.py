"""The extender chooses like the simulator: for the arrivals of the shipped example, by node and GPU."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.wire import ExtenderArgs
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.node import ClusterNode, format_inventory
from deviceplugin.model.pod import ClusterPod, PlainPod, Pod, PodContainer
from deviceplugin.model.pod_request import PodRequest, pod_request
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import MIB, Compute
from deviceplugin.placement.fragmentation import Workload, workload
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeChoice, NodeScorer
from deviceplugin.simulate.replay import LEARNT_EVERY, SchedulerView, SimulationPlan, replay
from deviceplugin.simulate.stock_scheduler import Chooser, OtherPods, beside_kube_scheduler
from deviceplugin.simulate.trace import Scene
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.example_scene import annotations_of, example, inventory
from tests.cluster.extender.makers import NAMES, bound

Took = tuple[str | None, tuple[tuple[GpuShare, ...], ...]]


@dataclass
class Heard:
    """Chooses with another chooser, and writes down what."""

    chooser: Chooser
    asked: list[tuple[PodRequest, Spare]] = field(default_factory=list)
    took: list[Took] = field(default_factory=list)

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        choice = self.chooser.choose(pod, states, needs=needs)
        self.asked.append((pod, needs))
        self.took.append((choice.node, _shares(choice.placed.allocations if choice.placed else ())))
        return choice


def _shares(allocations: Iterable[Allocation]) -> tuple[tuple[GpuShare, ...], ...]:
    return tuple(each.shares for each in allocations)


class Deployed:
    """An extender with the watch beside it, and kube-scheduler, which leaves out nodes with too little CPU."""

    def __init__(self, scene: Scene, policy: NodePolicy, typical: Workload | None) -> None:
        settings = PlacementSettings(node_policy=policy)
        self.extender = (
            Extender(MemoryApi(), settings) if typical is None else Extender(MemoryApi(), settings, typical=typical)
        )
        self._learns = typical is None
        self._seen = 0
        self._left = {each.name: each.spare or Spare(0, 0) for each in scene.nodes}
        for each in scene.nodes:
            assert each.spare is not None
            text = format_inventory(inventory(each), share_mode=True)
            offered = Compute(each.spare.cpu_milli, each.spare.memory_mib * MIB)
            self.extender.put_node(
                ClusterNode(each.name, each.name, inventory=text, ready=True, cores=1, allocatable=offered)
            )

    def arrive(self, asked: PodRequest, needs: Spare, number: int, *, where: str | None) -> Took:
        """`where` kube-scheduler puts a pod without GPUs."""
        names = tuple(name for name, left in self._left.items() if left.covers(needs))
        taken = Compute(needs.cpu_milli, needs.memory_mib * MIB)
        if not asked.containers:
            if where is not None:
                assert where in names
                self.extender.put_plain(PlainPod(PodUid(f"plain-{number}"), where, taken))
                self._left[where] -= needs
            return (where, ())
        found = _cluster_pod(asked, taken, number)
        self.extender.put_pod(found)
        self._seen += 1
        if self._learns and self._seen % LEARNT_EVERY == 0:
            self.extender.warm_up()
        answer = self.extender.filter(ExtenderArgs(found, names))
        if not answer.names:
            return (None, ())
        (node,) = answer.names
        held = self.extender.cache.on(node, found.uid)
        assert held is not None
        said = PodAllocation(found.uid, {each.owner.name: each.shares for each in held.allocations})
        self.extender.put_pod(bound(found, node, {NAMES.allocation: format_allocation(said)}))
        self._left[node] -= needs
        return (node, _shares(held.allocations))


def _cluster_pod(asked: PodRequest, taken: Compute, number: int) -> ClusterPod:
    ref = PodRef(PodUid(f"uid-{number}"), "d", f"pod-{number}")
    containers = tuple(
        PodContainer(ContainerRef(ref, each.name), ContainerRole.APP, at, each.request.cores, each.request.blocks)
        for at, each in enumerate(asked.containers)
    )
    found = Pod(ref, containers, annotations=annotations_of(asked), resource_version="1", api_uid=ref.uid)
    assert pod_request(found).shape == asked.shape
    return ClusterPod(found, needs=taken)


@pytest.mark.parametrize("learns", [False, True], ids=["told the workload", "learning it"])
@pytest.mark.parametrize("policy", NodePolicy)
def test_every_arrival_gets_the_node_and_the_gpus_that_the_simulator_gives_it(policy: NodePolicy, learns: bool) -> None:
    scene = example()
    typical = workload((each.pod, each.needs) for each in scene.tasks)
    ours = SchedulerView(policy, GpuPolicy.BINPACK) if learns else NodeScorer(typical, node_policy=policy)
    heard = Heard(beside_kube_scheduler(ours, OtherPods.STOCK, 3))
    plan = SimulationPlan(policy, GpuPolicy.BINPACK, 130, other_pods=OtherPods.POLICY)  # `heard` chooses for all
    replay(scene, plan, seed=3, chooser=heard)
    deployed = Deployed(scene, policy, None if learns else typical)
    told = zip(heard.asked, heard.took, strict=True)
    took = [deployed.arrive(*asked, at, where=node) for at, (asked, (node, _)) in enumerate(told)]
    assert took == heard.took
    assert {node for node, _ in took} > {None}, "some wait, and most do not"
