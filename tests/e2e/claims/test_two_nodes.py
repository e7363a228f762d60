"""Both ways to ask in one cluster, each on a node of its own: pods find the node that serves their way."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.further_node import further_node
from sandbox.cluster.identities import Identity
from sandbox.emulated_gpus import EmulatedGpus
from tests.e2e.claims.scene import Scene, serving_claims
from tests.e2e.node.agent import Agent, make_agent, shipped_rules
from tests.e2e.node.scene import everything, wait_ledger_empty, wait_offered
from tests.e2e.node.workload import share
from tests.e2e.scheduling.world import SECOND, profile_of
from tests.offered import blocks_of_each

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """`claims` is on the first node, `plugin` serves the second."""

    claims: Scene
    plugin: Agent
    node: Cluster


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, programs: Path) -> Iterator[TwoNodes]:
    folder = cluster.layout.root / "two-nodes"
    with ExitStack() as undo:
        claims = undo.enter_context(serving_claims(cluster))
        node = undo.enter_context(further_node(cluster, programs, SECOND))
        (folder / "gpus").mkdir(parents=True)
        undo.callback(shutil.rmtree, folder)
        gpus = EmulatedGpus(profile_of(folder, SECOND), folder / "gpus" / "state")
        identity = Identity.create(node.admin, "agent-of-two-nodes", shipped_rules())
        undo.callback(identity.remove)
        agent = make_agent(node, folder, gpus, identity)
        undo.callback(agent.process.stop)
        agent.start()
        wait_offered(node.admin, everything(blocks_of_each(gpus.profile)), node=SECOND)
        yield TwoNodes(claims, agent, node)
        pods.delete_all(cluster.admin)
        wait_ledger_empty(agent)


def test_pods_run_where_their_way_to_ask_is_served(nodes: TwoNodes) -> None:
    scene = nodes.claims
    plain = [share(f"plugin-{number}", 50, 8) for number in range(4)]
    for pod in plain:
        pods.create(scene.admin, pod.manifest())
    claiming = [f"claim-{number}" for number in range(6)]
    scene.run(*claiming)
    pods.wait_running(scene.admin, [each.name for each in plain])
    states = pods.states(scene.admin)
    assert {states[name].node for name in claiming} == {scene.cluster.kubelet.node}
    assert {states[each.name].node for each in plain} == {SECOND}
    assert {(each.pod, each.source) for each in scene.agent.usage().containers} == {(n, "claim") for n in claiming}
    assert {each.pod for each in nodes.plugin.usage().containers} == {each.name for each in plain}
    assert scene.held() == {0: (100, 40), 1: (20, 8)}
