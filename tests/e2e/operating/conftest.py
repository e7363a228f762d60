"""One release, installed from the registry on loopback, for all modules of this folder.

In: the cluster, the released chart and image. Out: fixtures. Invariant: the release is gone after the last of them.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.emulated_gpus import PROFILES, EmulatedGpus
from tests.e2e.installed.kubectl import Kubectl
from tests.e2e.installed.published import published
from tests.e2e.installed.release import Release, released
from tests.e2e.node.scene import everything, wait_offered
from tests.offered import blocks_of_each
from tests.programs import helm_program


@pytest.fixture(scope="package")
def gpus(cluster: Cluster) -> EmulatedGpus:
    """Those of the release's agent, as this machine sees the node's folder."""
    return EmulatedGpus(PROFILES / "hgx-a100.json", cluster.layout.covers / "run-vcuda" / "emulated" / "state")


@pytest.fixture(scope="package")
def release(
    cluster: Cluster,
    programs: Path,
    gpus: EmulatedGpus,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    helm = helm_program(request)
    with ExitStack() as undo:
        undo.callback(pods.delete_all, cluster.admin)
        source = undo.enter_context(published(cluster, programs, request, tmp_path_factory.mktemp("registry")))
        installed = undo.enter_context(released(cluster, helm, source))
        installed.wait_rolled_out()
        wait_offered(cluster.admin, everything(blocks_of_each(gpus.profile)))
        undo.callback(pods.delete_all, cluster.admin)  # while the agent lives
        yield installed


@pytest.fixture(scope="package")
def kubectl(cluster: Cluster, programs: Path) -> Kubectl:
    return Kubectl(programs / "kubectl", cluster.control_plane.admin_kubeconfig)
