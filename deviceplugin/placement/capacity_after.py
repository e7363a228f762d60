"""The GPUs of a node as bare numbers, and the same after a pod: what the score of a node is calculated from.

In: a `NodeState`, a pod and a GPU policy. Out: its capacities, without names, links and processes; a GPU that takes no
work at all is not among them. Nodes with equal capacities are as good as each other for every pod. And the capacities
after the pod, as `place_pod` would take them: exact for pods of one container, and for shares of one GPU beside init
containers and sidecars, on GPUs of one model; but only if the policy orders shares by free cores and memory, since
capacities know no links and no minor numbers. For others an estimate, which orders nodes and decides nothing.
"""

from collections.abc import Iterable, Sequence

from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter, GpuPolicy
from deviceplugin.placement.fit import NEVER, GpuAmount, GpuCapacity, GpuModel, Sharing, demand_of
from deviceplugin.placement.node_state import NodeState
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
