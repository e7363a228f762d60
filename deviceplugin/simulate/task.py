"""One task of a workload, and the scene: the nodes on which tasks may run."""

from dataclasses import dataclass

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import demand_of
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.occupancy import peak_use


@dataclass(frozen=True, slots=True)
class Task:
    """A pod with its CPU and memory; `demand` is its request of all GPUs, in cores."""

    pod: PodRequest
    needs: Spare
    demand: int


def task(pod: PodRequest, needs: Spare) -> Task:
    """The demand is that of the phase that demands most: init containers run before the app containers."""
    asked = ((each.role, each.index, demand_of(each.request).total) for each in pod.containers)
    return Task(pod, needs, peak_use(asked).cores)


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster without tasks, and the tasks that arrive, unordered.

    `left_out`: objects of the files that cannot be read, one sentence each; the others are simulated.
    """

    nodes: tuple[NodeState, ...]
    tasks: tuple[Task, ...]
    left_out: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(len(node.snapshot.gpus) for node in self.nodes)

    @property
    def capacity(self) -> int:
        """In cores."""
        return self.gpus * CORES_PER_GPU
