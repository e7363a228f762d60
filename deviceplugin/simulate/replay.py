"""Simulates tasks that arrive at a cluster one by one.

In: a scene, a plan with its policies, a seed. Out: a `Run`: what was allocated as tasks arrived, which tasks wait and
why. Each task with GPUs goes through `NodeScorer.choose`, as a pod does in the extender, or through another `Chooser`
for comparison; for the others the plan says who chooses (`stock_scheduler`). A task that fits nowhere waits; nothing
ends, so it waits until the end. The same seed gives the same arrivals on every machine. Invariant: no GPU gives more
than it has (`placement.node_state` would raise).
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count

import msgspec

from deviceplugin.errors import ConfigError
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.capacity_after import capacities_of
from deviceplugin.placement.fit import NodeRejection
from deviceplugin.placement.fragmentation import (
    ENOUGH,
    Fragmentation,
    ObservedWorkload,
    Workload,
    by_count,
    stranded,
    workload,
)
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeChoice, NodeScorer
from deviceplugin.placement.snapshot import occupied
from deviceplugin.simulate.stock_scheduler import Chooser, OtherPods, StockScheduler, beside_kube_scheduler
from deviceplugin.simulate.trace import Scene, Task
from deviceplugin.structs import replace

MOST_ARRIVALS = 5_000_000
LEARNT_EVERY = ENOUGH
"""Tasks; the scheduler uses a clock instead, which a simulation does not have."""


class Sample(msgspec.Struct, frozen=True):
    """State at a level of demand: allocated, free but useless to the next task, number of waiting tasks.

    Fractions of all GPUs of the cluster: 0 to 1; `asked` may be more.
    """

    asked: float
    allocated: float
    fragmented: float
    waiting: int


class Run(msgspec.Struct, frozen=True):
    """`samples` has one entry for each percent of demanded capacity; `models` the used fraction of each model.

    `seconds` is the wall time of the run; other processes cannot increase `processor_seconds`.
    """

    seed: int
    samples: tuple[Sample, ...]
    tasks: int
    waiting: int
    waiting_gpus: float
    waits_for: Mapping[str, int]
    models: Mapping[str, float]
    seconds: float
    processor_seconds: float

    def at(self, percent: int) -> Sample:
        """The state at `percent` of demand; the last state if the demand was never so high."""
        return self.samples[min(percent, len(self.samples)) - 1]


def models_used(nodes: Iterable[NodeState]) -> dict[str, float]:
    used, whole = Counter[str](), Counter[str]()
    for node in nodes:
        for view in node.snapshot.gpus:
            used[view.gpu.model] += CORES_PER_GPU - view.free_cores
            whole[view.gpu.model] += CORES_PER_GPU
    return {model: used[model] / whole[model] for model in sorted(whole)}


def arrivals(tasks: Sequence[Task], *, seed: int, until: int) -> Iterator[Task]:
    """The tasks in random order, then drawn with replacement until their demand reaches `until`.

    This is the order of the published experiment. At least one task must have a demand, or it would never end.
    """
    drawn = random.Random(seed)  # noqa: S311 - a repeatable experiment, not a secret
    first = list(tasks)
    drawn.shuffle(first)
    asked = 0
    for task in chain(first, (drawn.choice(tasks) for _ in count())):
        if asked >= until:
            return
        asked += task.demand
        yield task


def check_length(tasks: Sequence[Task], *, until: int) -> None:
    """Raises ConfigError if more than MOST_ARRIVALS tasks would have to arrive, which would take days."""
    number = until * len(tasks) // max(1, sum(task.demand for task in tasks))
    if number > MOST_ARRIVALS:
        raise ConfigError(
            f"about {number} tasks would have to arrive to reach that demand, and at most {MOST_ARRIVALS} are "
            "simulated; lower --inflate, or leave out pods that request no GPU"
        )


class SchedulerView:
    """Chooses with the knowledge of the scheduler's extender, which is a little less than the files contain.

    kube-scheduler removes nodes with too little CPU or memory; the extender knows how much the others have left. The
    expected mix of pods is the observed one, updated at intervals, and an assumed one before enough pods arrived.
    """

    def __init__(self, node_policy: NodePolicy, gpu_policy: GpuPolicy) -> None:
        self._scorer = NodeScorer(node_policy=node_policy, gpu_policy=gpu_policy, leaves_out=False)
        self._observed = ObservedWorkload()
        self._came = 0

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        self._see(pod, needs)
        shown: list[NodeState] = []
        short: list[NodeState] = []
        for state in states:
            fits = state.spare is None or state.spare.covers(needs)
            (shown if fits else short).append(state)
        choice = self._scorer.choose(pod, shown, needs=needs)
        spare = {state.name: NodeRejection.SPARE for state in short}
        return replace(choice, refusals=lambda: {**choice.refused, **spare})

    def _see(self, pod: PodRequest, needs: Spare) -> None:
        if not pod.containers:
            return  # the extender sees requests only of pods with GPUs
        self._observed.see(pod, needs)
        self._came += 1
        if self._came % LEARNT_EVERY == 0 and (typical := self._observed.workload()) is not None:
            self._scorer.expect(typical)


Progress = Callable[[int], None]


class SimulationPlan(msgspec.Struct, frozen=True):
    """What to simulate: policies for pods that name none, and the demand in percent of the capacity.

    `as_scheduler`: choose with the knowledge of the scheduler's extender (`SchedulerView`), not with all data of the
    files. `by_claims`: the cluster's own kube-scheduler chooses, and no policy (`StockScheduler`). `other_pods`: who
    places pods without GPUs.
    """

    node_policy: NodePolicy
    gpu_policy: GpuPolicy
    inflate_percent: int
    as_scheduler: bool = False
    by_claims: bool = False
    other_pods: OtherPods = OtherPods.STOCK

    @property
    def name(self) -> str:
        return "dra" if self.by_claims else self.node_policy.value

    def until(self, scene: Scene) -> int:
        return -(-scene.capacity * self.inflate_percent // 100)


def replay(
    scene: Scene,
    plan: SimulationPlan,
    *,
    seed: int,
    progress: Progress = lambda _: None,
    chooser: Chooser | None = None,
) -> Run:
    """Calls `progress` with the cores requested so far; the expected workload is the tasks of the scene.

    `chooser` stands for the plan's policies.
    """
    typical = workload((task.pod, task.needs) for task in scene.tasks)
    chooser = beside_kube_scheduler(chooser or _chooser(plan, typical, seed), plan.other_pods, seed)
    cluster = _Cluster(scene, plan, typical, chooser)
    began, worked = time.perf_counter(), time.process_time()
    for task in arrivals(scene.tasks, seed=seed, until=plan.until(scene)):
        cluster.arrive(task)
        if cluster.asked_percent > len(cluster.samples):
            cluster.sample()
            progress(cluster.asked)
    return cluster.run(seed, time.perf_counter() - began, time.process_time() - worked)


def _chooser(plan: SimulationPlan, typical: Workload, seed: int) -> Chooser:
    if plan.by_claims:
        return StockScheduler(seed, plan.other_pods.strategy)
    if plan.as_scheduler:
        return SchedulerView(plan.node_policy, plan.gpu_policy)
    return NodeScorer(typical, node_policy=plan.node_policy, gpu_policy=plan.gpu_policy)


class _Cluster:
    """The current nodes and counters."""

    def __init__(self, scene: Scene, plan: SimulationPlan, typical: Workload, chooser: Chooser) -> None:
        self._capacity = max(1, scene.capacity)
        self._plan = plan
        self._chooser = chooser
        self._nodes = {node.name: node for node in scene.nodes}
        self._stranding = _Stranding(typical, scene)
        self._used = self._placed = self._waiting = self._waiting_demand = 0
        self._waits_for: Counter[str] = Counter()
        self.asked = 0
        self.samples: list[Sample] = []

    def arrive(self, task: Task) -> None:
        self.asked += task.demand
        choice = self._chooser.choose(task.pod, self._nodes.values(), needs=task.needs)
        if choice.node is None or choice.placed is None:
            self._waiting += 1
            self._waiting_demand += task.demand
            self._waits_for[_main_reason(choice)] += 1
            return
        changed = self._nodes[choice.node].with_pod(choice.placed.allocations, needs=task.needs)
        self._nodes[choice.node] = changed
        self._stranding.changed(changed)
        self._placed += 1
        self._used += sum(held.cores for held in occupied(choice.placed.allocations).values())

    @property
    def asked_percent(self) -> int:
        return self.asked * 100 // self._capacity

    def sample(self) -> None:
        """One sample for each percent of capacity that was passed; a large task may pass several."""
        now = Sample(
            asked=self.asked / self._capacity,
            allocated=self._used / self._capacity,
            fragmented=self._stranding.part(self._capacity),
            waiting=self._waiting,
        )
        self.samples += [now] * (self.asked_percent - len(self.samples))

    def run(self, seed: int, seconds: float, processor_seconds: float) -> Run:
        return Run(
            seed=seed,
            samples=tuple(self.samples),
            tasks=self._placed + self._waiting,
            waiting=self._waiting,
            waiting_gpus=self._waiting_demand / 100,
            waits_for=dict(self._waits_for.most_common()),
            models=models_used(self._nodes.values()),
            seconds=seconds,
            processor_seconds=processor_seconds,
        )


class _Stranding:
    """The fraction of GPUs that is free and useless to the next task.

    Cached by node, so that only changes cost time.
    """

    def __init__(self, typical: Workload, scene: Scene) -> None:
        self._measure = Fragmentation(typical, weigh=by_count)
        self._by_node: dict[str, int] = {}
        self._dirty = {node.name: node for node in scene.nodes}
        self._total = 0

    def changed(self, node: NodeState) -> None:
        self._dirty[node.name] = node

    def part(self, capacity: int) -> float:
        for name, node in self._dirty.items():
            now = stranded(self._measure, capacities_of(node), node.spare)
            self._total += now - self._by_node.get(name, 0)
            self._by_node[name] = now
        self._dirty.clear()
        return self._total / (max(1, self._measure.weight) * capacity)


def _main_reason(choice: NodeChoice) -> str:
    """The most frequent rejection; of several, the first by its text."""
    counted = Counter(choice.refused.values())
    return min((-count, why.value) for why, count in counted.items())[1] if counted else "there is no node"
