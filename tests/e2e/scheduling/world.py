"""Everybody who takes part: real nodes with agents, hollow ones, our scheduler, and a scheduler beside it.

In: the cluster, the Kubernetes programs, which of them are wanted. Out: a `World` with all of them running. Not here:
what happens in it.
"""

import json
import secrets
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.model.gpu import Inventory
from sandbox.cluster.client import Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.control_plane import Component
from sandbox.cluster.further_node import further_node
from sandbox.cluster.hollow import HollowNodes, hollow_nodes
from sandbox.cluster.identities import Identity
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.schedulers import GANGS, Plugins, scheduler_with
from sandbox.emulated_gpus import PROFILES, EmulatedGpus
from sandbox.emulator_profile import write_profile
from sandbox.inventories import made_up_inventory
from tests.e2e.node.agent import Agent, make_agent
from tests.e2e.node.scene import everything, wait_ledger_empty, wait_offered
from tests.e2e.scheduling.installation import NAME, VcudaScheduler, installed
from tests.offered import blocks_of_each

SECOND = "vcuda-node-2"
HOLLOW = ("hollow-1", "hollow-2")
GPUS = 4
"""Of each real node; hollow ones have eight."""


@dataclass(frozen=True, slots=True)
class World:
    """`kube_scheduler` asks our extender; the cluster's own kube-scheduler knows nothing of it."""

    nodes: dict[str, Cluster]
    agents: dict[str, Agent]
    hollow: HollowNodes
    ours: VcudaScheduler
    kube_scheduler: Component

    @property
    def admin(self) -> Client:
        return self.ours.admin

    @property
    def gpus_of_hollow(self) -> dict[str, Inventory]:
        return dict(self.hollow.inventories)


@contextmanager
def everybody(
    cluster: Cluster,
    programs: Path,
    *,
    real: Sequence[str] = (NODE, SECOND),
    hollow: Sequence[str] = HOLLOW,
    flags: Sequence[str] = (),
    agent_flags: Sequence[str] = (),
    plugins: Plugins | None = None,
) -> Iterator[World]:
    """`flags` are further ones of `vcuda scheduler`; with `plugins` another kube-scheduler asks it."""
    folder = cluster.layout.root / f"vcs-{secrets.token_hex(3)}"
    with ExitStack() as stack:
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        ours = stack.enter_context(installed(cluster.control_plane, folder, *flags))
        nodes = {
            name: cluster if name == NODE else stack.enter_context(further_node(cluster, programs, name))
            for name in real
        }
        inventories = {name: made_up_inventory(name) for name in hollow}
        hollow_ones = stack.enter_context(hollow_nodes(cluster.admin, inventories))
        agents = {name: _agent(node, folder / name, stack, agent_flags) for name, node in nodes.items()}
        ours.start()
        kube_scheduler = scheduler_with(
            cluster.control_plane, NAME, ours.address(), gates=() if plugins else GANGS, plugins=plugins
        )
        stack.callback(kube_scheduler.kill)
        kube_scheduler.start()
        yield World(nodes, agents, hollow_ones, ours, kube_scheduler)


def _agent(node: Cluster, folder: Path, stack: ExitStack, flags: Sequence[str]) -> Agent:
    (folder / "gpus").mkdir(parents=True)
    gpus = EmulatedGpus(profile_of(folder, node.kubelet.node), folder / "gpus" / "state")
    identity = Identity(node.admin, "vcuda-agent")  # as base/ has made it
    agent = make_agent(node, folder, gpus, identity, *flags)
    stack.callback(agent.process.stop)
    agent.start()
    wait_offered(node.admin, everything(blocks_of_each(gpus.profile)), node=node.kubelet.node)
    wait_ledger_empty(agent)
    return agent


def profile_of(folder: Path, node: str) -> Path:
    """A100s that no other node has."""
    document = json.loads((PROFILES / "hgx-a100.json").read_text())
    document["gpus"] = document["gpus"][:GPUS]
    for each in (*document["topology"]["groups"], *document["nvlink"]):
        each["gpus"] = [position for position in each["gpus"] if position < GPUS]
    document["topology"]["groups"] = [each for each in document["topology"]["groups"] if each["gpus"]]
    for minor, gpu in enumerate(document["gpus"]):
        gpu["uuid"] = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{minor}.{node}')}"
    path = folder / "profile.json"
    write_profile(document, path)
    return path
