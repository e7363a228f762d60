"""The cluster that all e2e tests share, the agent that each test starts on it, and when all of it may be skipped.

In: this machine. Out: fixtures. Invariant: in CI (`CI=true`) a cluster that cannot be had is a failure;
elsewhere it is a skip that says why. A cluster that does not come up is a failure everywhere.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster, running_cluster
from sandbox.cluster.identities import Identity
from sandbox.cluster.prerequisites import UnavailableError, coscheduling_programs, kubernetes_programs
from sandbox.emulated_gpus import PROFILES, EmulatedGpus
from tests.e2e.node.agent import Agent, make_agent, shipped_rules
from tests.e2e.node.scene import everything, wait_ledger_empty, wait_offered

StartAgent = Callable[..., Agent]


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """The Kubernetes programs; the first time they are built, in plain sight, for it takes ten minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return kubernetes_programs()
    except UnavailableError as error:
        cause = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the e2e tests. {cause}", pytrace=False)
    pytest.skip(f"NO REAL KUBERNETES WAS TESTED. {cause}")


@pytest.fixture(scope="session")
def coscheduling(request: pytest.FixtureRequest, programs: Path) -> Path:
    """Another kube-scheduler with that plugin, and its PodGroup's definition; built once, in three to five minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        return coscheduling_programs()


@pytest.fixture(scope="session")
def cluster(programs: Path) -> Iterator[Cluster]:
    with running_cluster(programs) as up:
        yield up


@pytest.fixture
def empty_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without pods; those of the test are removed after it, however it ended."""
    yield cluster
    pods.delete_all(cluster.admin)


@pytest.fixture
def start_agent(empty_cluster: Cluster) -> Iterator[StartAgent]:
    """Starts an agent on eight emulated A100s and waits until the node offers them; ends it after the test.

    Each test's agent has a new journal, so it first believes kubelet's checkpoint, in which the pods of earlier tests
    still stand; the test begins when it has found out that they are gone.
    """
    started: list[Agent] = []
    folder = Path("/tmp") / f"vce-{secrets.token_hex(4)}"  # short for its sockets, and a name that Kubernetes takes
    (folder / "gpus").mkdir(parents=True)  # of its own, so that containers can be given it
    gpus = EmulatedGpus(PROFILES / "hgx-a100.json", folder / "gpus" / "state")

    def start(*flags: str, without: tuple[str, ...] = ()) -> Agent:
        identity = Identity.create(empty_cluster.admin, f"agent-{folder.name}", shipped_rules(without=without))
        agent = make_agent(empty_cluster, folder, gpus, identity, *flags)
        started.append(agent)
        agent.start()
        wait_offered(empty_cluster.admin, everything(gpus.blocks_of_each()))
        wait_ledger_empty(agent)
        return agent

    yield start
    pods.delete_all(empty_cluster.admin)  # while the agent lives: its end must not hold up theirs
    for agent in started:
        agent.process.stop()
        agent.identity.remove()
    shutil.rmtree(folder)
