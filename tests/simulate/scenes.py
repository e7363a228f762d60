"""Small scenes for the tests of the simulator."""

from hypothesis import strategies as st

from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.node_state import Spare
from deviceplugin.simulate.replay import SimulationPlan
from deviceplugin.simulate.trace import Scene, Task, task
from tests.placement.clusters import node, pod, requests, some_nodes

AMPLE = Spare(1000, 1000)
LITTLE = Spare(1, 1)


def plan(
    policy: NodePolicy = NodePolicy.BINPACK, *, percent: int = 130, gpu: GpuPolicy = GpuPolicy.BINPACK
) -> SimulationPlan:
    return SimulationPlan(policy, gpu, percent)


def shares(*cores: int) -> tuple[Task, ...]:
    return tuple(task(pod((each, 1), uid=f"{at}"), LITTLE) for at, each in enumerate(cores))


def two_nodes(*tasks: Task) -> Scene:
    """Eight GPUs."""
    return Scene((node("a", 4, spare=AMPLE), node("b", 4, spare=AMPLE)), tasks)


some_tasks = st.lists(
    st.builds(lambda asked, needs: task(pod(*asked), needs), st.lists(requests, max_size=2),
              st.sampled_from([Spare(0, 0), LITTLE])),
    min_size=1, max_size=8,
).map(tuple)  # fmt: skip
some_scenes = st.builds(Scene, some_nodes(), some_tasks).filter(
    lambda scene: scene.capacity > 0 and any(each.demand for each in scene.tasks)
)
some_plans = st.builds(SimulationPlan, st.sampled_from(NodePolicy), st.sampled_from(GpuPolicy), st.integers(1, 200))
