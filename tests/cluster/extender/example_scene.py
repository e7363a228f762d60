"""The shipped example as a scene whose GPUs have memory, for tests that compare the simulator with what is deployed.

In: nothing, or how many nodes of each model. Out: a `Scene` whose shares ask for cores and for memory.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, node_state
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.task import Scene, Task, task

BLOCKS = 96
DRIVER = Driver("550.1", (12, 4))
_TRACES = Path(__file__).resolve().parents[3] / "benchmarks" / "traces"


def inventory(seen: NodeState) -> Inventory:
    """GPUs that have memory, which a table does not say."""
    views = seen.snapshot.gpus
    gpus = tuple(
        Gpu(GpuUuid(f"GPU-{seen.name}-{at}"), at, at, view.gpu.model, BLOCKS * BLOCK_BYTES)
        for at, view in enumerate(views)
    )
    return Inventory(gpus, Topology(tuple(range(len(gpus)))), DRIVER)


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


def _with_memory(found: Task) -> Task:
    """A share asks for half as large a part of the memory as of the cores."""
    containers = tuple(
        replace(each, request=replace(each.request, blocks=max(1, each.request.cores * BLOCKS // CORES_PER_GPU // 2)))
        for each in found.pod.containers
    )
    return task(replace(found.pod, containers=containers), found.needs)
