"""The shipped example as a scene whose GPUs have memory, for tests that compare the simulator with what is deployed.

In: nothing, or how many nodes of each model. Out: a `Scene` whose shares ask for cores and for memory; the inventory of
a node and the annotations of a pod, as the cluster has them.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, node_state
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.trace import Scene, Task, task
from deviceplugin.structs import replace
from tests.cluster.extender.makers import NAMES

_BLOCKS = 96
_DRIVER = Driver("550.1", (12, 4))
_TRACES = Path(__file__).resolve().parents[3] / "benchmarks" / "traces"


def inventory(seen: NodeState) -> Inventory:
    """GPUs that have memory, which a table does not say."""
    views = seen.snapshot.gpus
    gpus = tuple(
        Gpu(GpuUuid(f"GPU-{seen.name}-{at}"), at, at, view.gpu.model, _BLOCKS * BLOCK_BYTES)
        for at, view in enumerate(views)
    )
    return Inventory(gpus, Topology(tuple(range(len(gpus)))), _DRIVER)


def example(most: Mapping[str, int] | None = None) -> Scene:
    """`most`: so many nodes of each model instead of all nodes with GPUs."""
    read = read_scene(_TRACES / "example-nodes.csv", _TRACES / "example-pods.csv")
    taken, nodes = Counter[str](), []
    for each in read.nodes:
        if not each.snapshot.gpus:
            continue
        model = each.snapshot.gpus[0].gpu.model
        taken[model] += 1
        if most is None or taken[model] <= most[model]:
            nodes.append(node_state(each.name, inventory(each), ()).with_spare(each.spare))
    return Scene(tuple(nodes), tuple(_with_memory(each) for each in read.tasks))


def annotations_of(asked: PodRequest) -> dict[str, str]:
    """What the pod says beside its resources."""
    gpus = asked.preferences.gpus
    said = {NAMES.use_models: ",".join(gpus.models), NAMES.avoid_models: ",".join(gpus.not_models)}
    if asked.containers and asked.containers[0].request.parts > 1:
        said[NAMES.gpus] = str(asked.containers[0].request.parts)
    return {name: text for name, text in said.items() if text}


def _with_memory(found: Task) -> Task:
    """A share asks for half as large a part of the memory as of the cores."""
    containers = tuple(
        replace(each, request=replace(each.request, blocks=max(1, each.request.cores * _BLOCKS // CORES_PER_GPU // 2)))
        for each in found.pod.containers
    )
    return task(replace(found.pod, containers=containers), found.needs)
