"""The GPUs of a node as bare numbers, and the same after a pod: what the score of a node is calculated from.

In: a `NodeState`, a pod and a GPU policy. Out: its capacities, without names, links and processes; a GPU that takes no
work at all is not among them. Nodes with equal capacities are as good as each other for every pod. And the capacities
after the pod, as `place_pod` would take them: exact for pods of one container, and for shares of one GPU beside init
containers and sidecars, on GPUs of one model; but only if the policy orders shares by free cores and memory, since
capacities know no links and no minor numbers. For others an estimate, which orders nodes and decides nothing.

Which nodes are alike, and what was found of them for each kind of question: `NodeClasses`, `KeptAnswers`.

In: states of nodes. Out: for each what it has in common with all nodes that are alike; and for each kind of question a
table of answers by that, which the caller completes. No function is called for each of many nodes: kube-scheduler asks
about hundreds of them for every pod, and between two pods one has changed. Invariant: what answers are kept by never
changes, so none is ever stale; whatever else an answer depends on must be in the kind. Bounded: of many kinds those go
that were asked least lately. What is past goes from the answers of a kind when that is asked again, and kinds that were
not asked for long go with it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Generic, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter, GpuPolicy
from deviceplugin.placement.fit import NEVER, GpuAmount, GpuCapacity, GpuModel, NodeRejection, Sharing, demand_of
from deviceplugin.placement.node_state import NodeState, Spare, class_key
from deviceplugin.placement.snapshot import phases

Capacities = tuple[GpuCapacity, ...]
_Place = tuple[int, int, int]
"""Free cores and blocks of a GPU, negative where the emptiest come first, and its place."""


def capacities_of(state: NodeState) -> Capacities:
    """Sorted, so that nodes that are alike have equal ones."""
    gpus = [view.capacity for view in state.open_gpus.views]
    if not state.share_mode:
        gpus = [gpu._replace(model=gpu.model._replace(whole_only=True)) for gpu in gpus]
    return tuple(sorted(gpus))


def free_cores(gpus: Sequence[GpuCapacity]) -> int:
    return sum([gpu.cores for gpu in gpus])


class _Step:
    """One container of the pod. `needs` has the rule of fit as a threshold for each model that was met."""

    def __init__(self, container: ContainerRequest, wanted: GpuFilter, policy: GpuPolicy) -> None:
        self.demand = demand_of(container.request)
        self.is_init = container.role is ContainerRole.INIT
        self._wanted = wanted
        self._sign = -1 if policy.takes_emptiest and self.demand.sharing is Sharing.SHARE else 1
        self._needs: dict[GpuModel, GpuAmount] = {}

    def fitting(self, gpus: Iterable[GpuCapacity]) -> list[_Place]:
        """Those that can serve it now, unsorted; they sort as `one_gpu` orders GPUs of shares."""
        found, sign, needs = [], self._sign, self._needs
        last, need_cores, need_blocks = None, 0, 0
        for at, (model, cores, blocks) in enumerate(gpus):
            if model is not last:  # nearly all nodes have GPUs of one model, and to look it up costs most of this loop
                last, (need_cores, need_blocks) = model, needs.get(model) or self._first_need(model)
            if cores >= need_cores and blocks >= need_blocks:
                found.append((sign * cores, sign * blocks, at))
        return found

    def less(self, gpu: GpuCapacity) -> GpuCapacity:
        """What is left of a GPU that fits."""
        model, cores, blocks = gpu
        need_cores, need_blocks = self._needs[model]
        return GpuCapacity(model, cores - need_cores, blocks - need_blocks)

    def _first_need(self, model: GpuModel) -> GpuAmount:
        need = self._needs[model] = self.demand.needs(model) if self._wanted.admits_model(model.name) else NEVER
        return need


_MOST_PHASES = 64


class CapacityAfter:
    """What a pod leaves of a node's GPUs, for many nodes; None if one container after the other does not fit.

    Also None for a pod whose containers run in very many phases: the estimate would cost more than the placement.
    """

    def __init__(self, pod: PodRequest, policy: GpuPolicy) -> None:
        self._spreads = policy.takes_emptiest
        self._steps = [_Step(each, pod.preferences.gpus, policy) for each in pod.containers]
        self._phases = phases(pod.containers)
        # Of each GPU; to look at all phases of one costs several times as much as at the GPU as it is.
        self.steps = 4 * len(self._steps) + (8 * sum(map(len, self._phases)) if len(set(self._phases)) > 1 else 0)
        self._is_estimated = sum(map(len, self._phases)) <= _MOST_PHASES
        if not self._is_estimated:
            self.steps = 0

    def __call__(self, gpus: Capacities) -> Capacities | None:
        if not self._is_estimated:
            return None
        return self._together(gpus) if len(set(self._phases)) < 2 else self._by_phase(gpus)

    def of_one(self, gpus: Capacities) -> tuple[int, GpuCapacity] | None:
        """For a pod of one container that takes one GPU: which, and what is left of it; None if it fits nowhere."""
        (step,) = self._steps
        found = step.fitting(gpus)
        if not found:
            return None
        at = min(found)[2]
        return at, step.less(gpus[at])

    def _together(self, gpus: Capacities) -> Capacities | None:
        """Of containers that all run at the same time, what each takes is gone for the next."""
        left = list(gpus)
        for step in self._steps:
            found = step.fitting(left)
            count = step.demand.gpus
            if len(found) < count:
                return None
            if len(found) > count:
                found.sort()
            for _, _, at in found[:count]:
                left[at] = step.less(left[at])
            left.sort()
        return tuple(left)

    def _by_phase(self, gpus: Capacities) -> Capacities | None:
        """What an init container takes is free again for the containers after it, as kubelet counts."""
        count = 1 + max(max(running) for running in self._phases)
        left = [[gpu] * count for gpu in gpus]
        by_init, by_others = set[int](), set[int]()
        for step, running in zip(self._steps, self._phases, strict=True):
            found = step.fitting([_least(each[phase] for phase in running) for each in left])
            if len(found) < step.demand.gpus:
                return None
            # A pod's next container prefers the GPUs that the pod has (`pod.held_before`), where they suffice.
            held = by_init - by_others if self._spreads else by_init | by_others
            own = [each for each in found if each[2] in held]
            found = sorted(own if len(own) >= step.demand.gpus else found)[: step.demand.gpus]
            (by_init if step.is_init else by_others).update(at for _, _, at in found)
            for _, _, at in found:
                for phase in running:
                    left[at][phase] = step.less(left[at][phase])
        return tuple(sorted(map(_least, left)))


def _least(phases_of_one: Iterable[GpuCapacity]) -> GpuCapacity:
    """What is free of one GPU in all of these phases."""
    models, cores, blocks = zip(*phases_of_one, strict=True)
    return GpuCapacity(models[0], min(cores), min(blocks))


_MOST_KEPT = 400_000
_LEAST_UNUSED = 16
_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Kind(msgspec.Struct, Generic[_Key, _Answer]):
    """`at`: how many keys were past when it was asked last."""

    at: int
    answers: dict[_Key, _Answer] = msgspec.field(default_factory=dict)


class KeptAnswers(Generic[_Key, _Answer]):
    """`most` answers are kept, of all kinds together."""

    def __init__(self, *, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._kinds: OrderedDict[Hashable, _Kind[_Key, _Answer]] = OrderedDict()
        self._added = 0
        # To take a key from all kinds at once costs more than all else that a change of a node costs.
        self._past: list[_Key] = []
        self._gone = 0

    def of(self, kind: Hashable) -> dict[_Key, _Answer]:
        """The answers to this kind of question; the caller adds to them, and says so by `added`."""
        last = self._gone + len(self._past)
        kept = self._kinds.get(kind)
        if kept is None:
            kept = self._kinds[kind] = _Kind(last)
        elif kept.at < last:
            deque(map(kept.answers.pop, self._past[kept.at - self._gone :], repeat(None)), maxlen=0)
            kept.at = last
        self._kinds.move_to_end(kind)
        return kept.answers

    def added(self, count: int) -> None:
        """To the kind that was asked last, which is kept whatever its size."""
        self._added += count
        if self._added < self._most:
            return
        self._added = sum(len(each.answers) for each in self._kinds.values())
        while len(self._kinds) > 1 and self._added > self._most * 3 // 4:
            self._added -= len(self._kinds.popitem(last=False)[1].answers)

    def drop(self, key: _Key, most: int) -> None:
        """It is past. At most so many are remembered for kinds that are not asked."""
        self._past.append(key)
        if len(self._past) > most:
            count = -(-len(self._past) // 2)
            del self._past[:count]
            self._gone += count
            for kind in [kind for kind, kept in self._kinds.items() if kept.at < self._gone]:
                del self._kinds[kind]


Together = dict[int, NodeRejection | None]
"""By the number of the pod's shape: why its containers did not fit together, or that they did."""


class EquivalenceClass(msgspec.Struct, eq=False, weakref=True):
    """Nodes between whose GPUs neither prefilter nor score sees a difference.

    `by_spare` loses an entry with the last node that has just that much.
    """

    first: NodeState
    gpus: Capacities
    by_spare: "WeakValueDictionary[Spare | None, EqualNodes]" = msgspec.field(default_factory=WeakValueDictionary)
    together: Together = msgspec.field(default_factory=dict)


class EqualNodes(msgspec.Struct, eq=False, weakref=True):
    """Nodes of one class that have equal CPU and memory left: every pod has the same outcome on each.

    `count`: how many are so now.
    """

    eq_class: EquivalenceClass
    spare: Spare | None
    count: int = 0


class NodeClasses:
    """`states` has the last state of each node that was seen, by name, and `equal` the nodes that each of them equals.

    `dropped` gets what no node is any more, and how much of that is worth to be remembered. A part of it is kept: a
    reservation that ends makes a node again what it was.
    """

    def __init__(self, dropped: Callable[[EqualNodes, int], None]) -> None:
        self._dropped = dropped
        self.states: dict[str, NodeState] = {}
        self.equal: dict[NodeState, EqualNodes] = {}
        self._unused: OrderedDict[EqualNodes, None] = OrderedDict()
        # Weak: eight GPUs are hardly ever used in the same way twice, so the class of a past state serves nobody.
        self._classes: WeakValueDictionary[tuple[object, ...], EquivalenceClass] = WeakValueDictionary()

    def __iter__(self) -> Iterator[EquivalenceClass]:
        return iter(self._classes.values())

    def of(self, states: Sequence[NodeState]) -> list[EqualNodes]:
        """In their order."""
        found = list(map(self.equal.get, states))
        if not all(found):
            new = [at for at, each in enumerate(found) if each is None]
            self.see([states[at] for at in new])
            for at in new:
                found[at] = self.equal[states[at]]
        return cast("list[EqualNodes]", found)

    def see(self, states: Iterable[NodeState]) -> None:
        for state in states:
            if self.states.get(state.name) is not state:
                self.forget(state.name)
                self._classify(state)

    def forget(self, node: str) -> None:
        """It has changed, or left the cluster."""
        known = self.states.pop(node, None)
        if known is None:
            return
        equal = self.equal.pop(known)
        equal.count -= 1
        if not equal.count:
            self._unused[equal] = None
        if len(self._unused) > _LEAST_UNUSED + len(self.equal) // 4:
            self._dropped(self._unused.popitem(last=False)[0], _LEAST_UNUSED + len(self.equal))

    def _classify(self, state: NodeState) -> None:
        key = class_key(state)
        eq_class = self._classes.get(key)
        if eq_class is None:
            eq_class = self._classes[key] = EquivalenceClass(state, capacities_of(state))
        equal = eq_class.by_spare.get(state.spare)
        if equal is None:
            equal = eq_class.by_spare[state.spare] = EqualNodes(eq_class, state.spare)
        equal.count += 1
        self._unused.pop(equal, None)
        self.states[state.name], self.equal[state] = state, equal
