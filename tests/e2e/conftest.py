"""The cluster that all e2e tests share, and the decision when they may be skipped.

In: this machine. Out: the session's cluster. Invariant: in CI (`CI=true`) a cluster that cannot be had is a failure;
elsewhere it is a skip that says why. A cluster that does not come up is a failure everywhere.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import pods
from tests.e2e.cluster.cluster import Cluster, running_cluster
from tests.e2e.cluster.prerequisites import UnavailableError, kubernetes_programs


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """The Kubernetes programs; the first time they are built, in plain sight, for it takes ten minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return kubernetes_programs()
    except UnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the e2e tests. {error}", pytrace=False)
        pytest.skip(f"NO REAL KUBERNETES WAS TESTED. {error}")


@pytest.fixture(scope="session")
def cluster(programs: Path) -> Iterator[Cluster]:
    with running_cluster(programs) as up:
        yield up


@pytest.fixture
def empty_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without pods; those of the test are removed after it, however it ended."""
    yield cluster
    pods.delete_all(cluster.admin)
