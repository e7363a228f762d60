"""The cluster that all e2e tests share, the agents that tests start on it, and when all of it may be skipped.

In: this machine. Out: fixtures. Invariant: a cluster that cannot be had is treated as tests/programs.py says; one that
does not come up is a failure everywhere.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster, running_cluster
from sandbox.cluster.prerequisites import (
    UnavailableError,
    containerd_programs,
    coscheduling_programs,
    kubernetes_programs,
    kueue_programs,
    volcano_programs,
)
from sandbox.cluster.reset import reset
from tests.e2e.installed.images import building_in_the_background
from tests.e2e.node.agent import Agent
from tests.e2e.node.agents import Agents
from tests.programs import unavailable

StartAgent = Callable[..., Agent]
FAILED = pytest.StashKey[bool]()
CLUSTER = pytest.StashKey[Cluster]()
LAST = pytest.StashKey[tuple[Path, int]]()
"""The scene of the test before, and how many tests had failed when its first one began."""


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """The Kubernetes programs; the first time they are built, in plain sight, for it takes ten minutes."""
    return _built(request, kubernetes_programs)


@pytest.fixture(scope="session")
def containerd(request: pytest.FixtureRequest, programs: Path) -> Path:
    """The folder of containerd, its shim and `ctr`; built once, in two minutes."""
    return _built(request, containerd_programs)


def _built(request: pytest.FixtureRequest, build: Callable[[], Path]) -> Path:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return build()
    except UnavailableError as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def coscheduling(request: pytest.FixtureRequest, programs: Path) -> Path:
    """Another kube-scheduler with that plugin, and its PodGroup's definition; built once, in three to five minutes."""
    return _built(request, coscheduling_programs)


@pytest.fixture(scope="session")
def volcano(request: pytest.FixtureRequest, programs: Path) -> Path:
    """Volcano's scheduler and controllers, and the definitions of its kinds; built once, in five minutes."""
    return _built(request, volcano_programs)


@pytest.fixture(scope="session")
def kueue(request: pytest.FixtureRequest, programs: Path) -> Path:
    """Kueue's controllers and its chart; built once, in five minutes."""
    return _built(request, kueue_programs)


@pytest.fixture(scope="session")
def cluster(programs: Path, containerd: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with ExitStack() as undo:
        if any("release" in getattr(item, "fixturenames", ()) for item in request.session.items):
            undo.enter_context(building_in_the_background())
        found = request.session.stash[CLUSTER] = undo.enter_context(running_cluster(programs, containerd))
        yield found
        del request.session.stash[CLUSTER]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A scene that follows one in which a test failed begins on a node that remembers nothing: `sandbox.cluster.reset`.

    Here, because the fixtures of the scene before are gone, and none of this one is there yet.
    """
    stash, scene = item.session.stash, scene_of(item.path)
    before, failed = stash.get(LAST, (scene, item.session.testsfailed))
    if before == scene:
        stash[LAST] = before, failed
        return
    stash[LAST] = scene, item.session.testsfailed
    if item.session.testsfailed > failed and CLUSTER in stash:
        reset(stash[CLUSTER])


def scene_of(path: Path) -> Path:
    """A module, or the folder whose modules share an installation."""
    is_shared = path.parent.name != "e2e" and (path.parent / "conftest.py").exists()
    return path.parent if is_shared else path


@pytest.fixture
def empty_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without pods; those of the test are removed after it, however it ended."""
    yield cluster
    pods.delete_all(cluster.admin)


@pytest.fixture(scope="module")
def agents(cluster: Cluster) -> Iterator[Agents]:
    found = Agents(cluster)
    yield found
    found.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def start_agent(empty_cluster: Cluster, agents: Agents, request: pytest.FixtureRequest) -> Iterator[StartAgent]:
    """Finds or starts the agent that the module's tests share; with flags, without rights, or `own`, another one.

    It ends with the module, or with the test if nobody else can use it. `mounting`: what it mounts is seen on the node.
    """

    def start(*flags: str, without: tuple[str, ...] = (), own: bool = False, mounting: bool = False) -> Agent:
        is_own = flags or without or own or mounting
        return agents.own(*flags, without=without, mounting=mounting) if is_own else agents.shared()

    yield start
    pods.delete_all(empty_cluster.admin)  # while the agent lives: its end must not hold up theirs
    if request.node.stash.get(FAILED, False):
        agents.stop()  # who knows in what state it is
    else:
        agents.tidy()
