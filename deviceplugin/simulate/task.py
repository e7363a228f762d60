"""One task of a workload, and the nodes on which it may run."""

from dataclasses import dataclass

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, Spare


@dataclass(frozen=True, slots=True)
class Task:
    """A pod with the CPU and memory that it needs; `demand` is what it asks for of all GPUs, in cores."""

    pod: PodRequest
    needs: Spare
    demand: int


def task(pod: PodRequest, needs: Spare) -> Task:
    """Containers that do not run at the same time are counted as if they did: a demand, not an occupancy."""
    return Task(pod, needs, sum(container.request.cores for container in pod.containers))


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster without any task, and the tasks that come to it in no order."""

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
