"""One node whose pods come and go: what is free on it, brought up to date pod by pod.

In: an inventory, and what each pod holds. Out: `NodeState`s, equal to those that `node_state` would calculate from all
pods anew, at the cost of the one pod that has changed. Not here: what is not known to be anywhere in particular.
"""

from collections.abc import Collection, Iterable, Mapping

from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.candidates import Rules, is_open
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.occupancy import Occupancy, occupied
from deviceplugin.placement.snapshot import GpuView, Snapshot


class Tally:
    """A pod's containers count together, by kubelet's arithmetic; pods add up."""

    def __init__(
        self, name: str, inventory: Inventory, *, share_mode: bool = True, cordoned: frozenset[GpuUuid] = frozenset()
    ) -> None:
        self._name = name
        self._topology = inventory.topology
        self._share_mode = share_mode
        self._cordoned = cordoned
        self._empty = tuple(
            GpuView(gpu, CORES_PER_GPU, gpu.blocks, 0, inventory.health_of(gpu.uuid)) for gpu in inventory.gpus
        )
        self._open = [is_open(view, Rules(cordoned=cordoned)) for view in self._empty]
        self._places = {view.gpu.uuid: place for place, view in enumerate(self._empty)}
        self._views = list(self._empty)
        self._taken = [(0, 0)] * len(self._empty)
        self._held: dict[PodUid, Mapping[GpuUuid, Occupancy]] = {}

    def hold(self, pod: PodUid, allocations: Iterable[Allocation]) -> None:
        """Takes the place of what the pod held before."""
        self.release(pod)
        held = self._held[pod] = occupied(allocations)
        self._add(held, 1)

    def release(self, pod: PodUid) -> None:
        self._add(self._held.pop(pod, {}), -1)

    def state(self, *, without: Collection[PodUid] = ()) -> NodeState:
        """As it is, or as if some pods were not there."""
        absent = [self._held[pod] for pod in without if pod in self._held]
        for held in absent:
            self._add(held, -1)
        snapshot = Snapshot(tuple(self._views), self._topology)
        for held in absent:
            self._add(held, 1)
        return NodeState(self._name, snapshot, share_mode=self._share_mode, cordoned=self._cordoned)

    def fits(self, pod: PodUid) -> bool:
        """Whether all that the pod holds is on GPUs that work may land on, and free there but for the pod itself.

        The pod is counted already: what it holds of a GPU is free without it where all together do not hold too much.
        """
        for uuid, own in self._held[pod].items():
            place = self._places.get(uuid)
            if place is None or not self._open[place]:
                return False
            (cores, blocks), whole = self._taken[place], self._empty[place]
            if (own.cores and cores > whole.free_cores) or (own.blocks and blocks > whole.free_blocks):
                return False
        return True

    @property
    def is_overbooked(self) -> bool:
        """Whether of some GPU more is held than it has."""
        return any(
            cores > whole.free_cores or blocks > whole.free_blocks
            for (cores, blocks), whole in zip(self._taken, self._empty, strict=True)
        )

    def _add(self, held: Mapping[GpuUuid, Occupancy], sign: int) -> None:
        """GPUs that the node does not have are held of nobody."""
        for uuid, part in held.items():
            place = self._places.get(uuid)
            if place is None:
                continue
            cores, blocks = self._taken[place]
            self._taken[place] = (cores + sign * part.cores, blocks + sign * part.blocks)
            self._views[place] = _less(self._empty[place], *self._taken[place])


def _less(view: GpuView, cores: int, blocks: int) -> GpuView:
    free = (max(0, view.free_cores - cores), max(0, view.free_blocks - blocks))
    return GpuView(view.gpu, *free, view.processes, view.health)
