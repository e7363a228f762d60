"""One task of a workload, and the scene: the nodes on which tasks may run."""

from dataclasses import dataclass

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, Spare


@dataclass(frozen=True, slots=True)
class Task:
    """A pod with its CPU and memory; `demand` is its request of all GPUs, in cores."""

    pod: PodRequest
    needs: Spare
    demand: int


def task(pod: PodRequest, needs: Spare) -> Task:
    """The demand counts all containers, also those that do not run at the same time."""
    return Task(pod, needs, sum(container.request.cores for container in pod.containers))


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster without tasks, and the tasks that arrive, unordered."""

    nodes: tuple[NodeState, ...]
    tasks: tuple[Task, ...]

    @property
    def gpus(self) -> int:
        return sum(len(node.snapshot.gpus) for node in self.nodes)

    @property
    def capacity(self) -> int:
        """In cores."""
        return self.gpus * CORES_PER_GPU

    @property
    def demand(self) -> int:
        return sum(each.demand for each in self.tasks)
