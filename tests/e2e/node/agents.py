"""The agent of a test: one for all tests of a module, or one that a test has to itself.

In: the cluster. Out: an agent on eight emulated A100s, whose node offers them and whose ledger is empty. Not here: the
pods of the tests. Invariant: no two of them run at the same time, because kubelet knows one plugin of a resource.

Each agent has a new journal, so it first believes kubelet's checkpoint, in which the pods of earlier tests still stand;
a test begins when it has found out that they are gone.
"""

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sandbox.cluster.cluster import Cluster
from sandbox.cluster.identities import Identity
from sandbox.emulated_gpus import PROFILES, EmulatedGpus
from tests.e2e.node.agent import Agent, make_agent, shipped_rules
from tests.e2e.node.scene import everything, wait_ledger_empty, wait_offered
from tests.offered import blocks_of_each


@contextmanager
def running_agent(
    cluster: Cluster, *flags: str, without: Sequence[str] = (), mounting: bool = False
) -> Iterator[Agent]:
    """`without`: resources that it has no right to, though the manifests grant it.

    `mounting`: in a mount namespace of its own whose mounts containerd sees, as a pod with Bidirectional propagation.
    They end with containerd's namespace.
    """
    folder = (
        cluster.layout.root / f"vce-{secrets.token_hex(4)}"
    )  # short for its sockets, and a name that Kubernetes takes
    with ExitStack() as undo:
        (folder / "gpus").mkdir(parents=True)  # of its own, so that containers can be given it
        undo.callback(shutil.rmtree, folder)
        gpus = EmulatedGpus(PROFILES / "hgx-a100.json", folder / "gpus" / "state")
        identity = Identity.create(cluster.admin, f"agent-{folder.name}", shipped_rules(without=without))
        undo.callback(identity.remove)
        agent = make_agent(cluster, folder, gpus, identity, *flags)
        if mounting:
            node = f"--mount=/proc/{cluster.containerd.process.pid}/ns/mnt"
            own = ("unshare", "--mount", "--propagation", "unchanged")
            agent.process.command = ["nsenter", node, "--", *own, *agent.process.command]
        undo.callback(agent.process.stop)
        agent.start()
        wait_offered(cluster.admin, everything(blocks_of_each(gpus.profile)))
        wait_ledger_empty(agent)
        yield agent


class Agents:
    """Hands out agents, and starts one only if the last one does not serve."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._running = ExitStack()
        self._shared: Agent | None = None

    def shared(self) -> Agent:
        """As the manifests ship it."""
        if self._shared is None or not self._shared.process.is_running():
            self._shared = self.own()
        return self._shared

    def own(self, *flags: str, without: Sequence[str] = (), mounting: bool = False) -> Agent:
        self.stop()
        made = running_agent(self._cluster, *flags, without=without, mounting=mounting)
        return self._running.enter_context(made)

    def stop(self) -> None:
        self._shared = None
        self._running.close()

    def tidy(self) -> None:
        """After a test that passed and has removed its pods: nobody gets an agent that another test had to itself."""
        if self._shared is None:
            self.stop()
        else:
            wait_ledger_empty(self._shared)
