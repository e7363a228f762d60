"""One workload through the simulator, and through a real `vcuda scheduler` with an agent on each node.

The simulator's loop drives both. In the cluster its chooser is `LiveCluster`: a pod with GPUs is created, asked about
over TLS, bound, admitted by the node's kubelet, and what the simulator counts is the grant in the agent's ledger.
kube-scheduler stands between: the nodes that it asks about have the CPU, and it places the pods without GPUs.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deviceplugin.model.allocation import PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.fragmentation import ENOUGH
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeChoice
from deviceplugin.placement.pod import PodChoice
from deviceplugin.simulate.replay import SimulationPlan, replay
from deviceplugin.simulate.stock_scheduler import OtherPods, StockScheduler
from deviceplugin.simulate.trace import Scene
from deviceplugin.structs import replace
from sandbox.apiserver.objects import container, pod
from sandbox.station import Station, station
from tests.cluster.extender.example_scene import annotations_of, example, inventory
from tests.scheduler.scene import Json, Scheduler, cluster, node_with
from tests.scheduler.scene import Scene as Api
from tests.waiting import PATIENCE_S

NAMES = AnnotationNames()
SEED = 3
Done = TypeVar("Done")
NODES = {"A100": 2, "A10": 2, "T4": 4}


def amounts(needs: Spare) -> dict[str, str]:
    return {"cpu": f"{needs.cpu_milli}m", "memory": f"{needs.memory_mib}Mi"}


def pod_json(name: str, asked: PodRequest, needs: Spare, *, on: str = "") -> Json:
    made = [container(each.name, cores=each.request.cores, blocks=each.request.blocks) for each in asked.containers]
    first, *_ = listed = made or [container()]
    first["resources"]["requests"] = amounts(needs)
    return pod(name, *listed, node=on, annotations=annotations_of(asked))


@dataclass
class LiveCluster:
    """Chooses by asking the scheduler, and answers what the agents granted. Called from another thread than `loop`."""

    api: Api
    replica: Scheduler
    agents: Mapping[str, Station]
    loop: asyncio.AbstractEventLoop
    others: StockScheduler
    came: int = 0
    waiting: int = 0

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        self.came += 1
        if pod.containers:
            roomy = [each.name for each in states if each.spare is not None and each.spare.covers(needs)]
            return self._until_done(self._schedule(pod_json(f"pod-{self.came}", pod, needs), roomy))
        choice = self.others.choose(pod, states, needs=needs)
        if choice.node is not None:
            self._until_done(self._create(pod_json(f"pod-{self.came}", pod, needs, on=choice.node)))
        return choice

    def _until_done(self, work: Coroutine[None, None, Done]) -> Done:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _create(self, wanted: Json) -> Json:
        return self.api.api.store.create("pods", wanted)

    async def _schedule(self, wanted: Json, roomy: list[str]) -> NodeChoice:
        made = await self._create(wanted)
        await self.api.until(self.replica, "/view/pods", lambda _, view: _shows(view, made))  # and what came before
        status, answer = await self.api.filter(self.replica, made, *roomy)
        assert (status, answer["Error"]) == (200, "")
        if not answer["NodeNames"]:
            self.waiting += 1
            return NodeChoice(None, None)
        (chosen,) = answer["NodeNames"]
        assert await self.api.bind(self.replica, made, chosen) == (200, {"Error": ""})
        return await self._admit(self.api.stored(made["metadata"]["name"]))

    async def _admit(self, bound: Json) -> NodeChoice:
        """Kubelet starts it; the agent holds what the scheduler wrote."""
        uid, on = PodUid(bound["metadata"]["uid"]), bound["spec"]["nodeName"]
        agent = self.agents[on]
        agent.know(bound)
        verdict = await agent.kubelet.admit(bound)
        assert verdict.admitted, verdict
        names = [each["name"] for each in bound["spec"]["containers"]]
        held = tuple(agent.grant_of(uid, name).allocation for name in names)
        written = PodAllocation(uid, {each.owner.name: each.shares for each in held})
        assert bound["metadata"]["annotations"][NAMES.allocation] == format_allocation(written)
        return NodeChoice(on, PodChoice(held, ("granted",) * len(held)))


def _shows(view: Json, made: Json) -> bool:
    return any(each["uid"] == made["metadata"]["uid"] for each in view["items"])


@asynccontextmanager
async def agents_of(scene: Scene, folder: Path) -> AsyncIterator[dict[str, Station]]:
    async with AsyncExitStack() as stack:
        found = {}
        for each in scene.nodes:
            assert each.spare is not None
            cpus = each.spare.cpu_milli // 1000
            agent = station(folder / each.name, inventory(each), node_name=each.name, cpu_cores=cpus)
            found[each.name] = await stack.enter_async_context(agent)
        yield found


async def test_simulator_scheduler_and_agents_come_to_the_same(short_tmp: Path) -> None:
    """By a policy that is not the default; tests/cluster/extender/test_as_simulated.py tries each of them."""
    scene, policy = example(NODES), NodePolicy.SPREAD
    plan = SimulationPlan(policy, GpuPolicy.BINPACK, 130, as_scheduler=True)
    simulated = replay(scene, plan, seed=SEED)
    nodes = [node_with(each.name, inventory(each), **amounts(each.spare)) for each in scene.nodes if each.spare]
    async with agents_of(scene, short_tmp) as agents, cluster(short_tmp, *nodes) as api:
        replica = await api.replica("replica-a", "--node-policy", policy.value)
        await api.until_ready(replica)
        chooser = LiveCluster(api, replica, agents, asyncio.get_running_loop(), StockScheduler(SEED))
        by_chooser = replace(plan, other_pods=OtherPods.POLICY)  # `chooser` is asked about every pod
        live = await asyncio.to_thread(replay, scene, by_chooser, seed=SEED, chooser=chooser)
    assert [each.allocated for each in live.samples] == [each.allocated for each in simulated.samples]
    assert (live.tasks, live.waiting) == (simulated.tasks, simulated.waiting)
    assert 0 < chooser.waiting < chooser.came < ENOUGH, "the scheduler learns the mix by a clock, from so many pods on"
    assert 0.8 < live.samples[-1].allocated < 1
