"""All that a cluster without internet needs before somebody types `helm install`.

In: the cluster, its programs. Out: a registry with the released chart and image, the images of others on the node, and
the API server at the address that pods know. Invariant: the way to the API server is gone when the context ends.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from sandbox.cluster.cluster import Cluster
from sandbox.cluster.service_address import api_server_for_pods
from scripts import manifests
from tests.e2e.installed.images import import_images, vcuda_archive
from tests.e2e.installed.registry import Registry, registry
from tests.programs import need_release_tools
from tests.scripts.released import ROOT, release_files


@contextmanager
def published(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, folder: Path, *, samples: Iterable[str] = ()
) -> Iterator[Registry]:
    """`samples` are the names of further images, which become busybox."""
    files = released_files(request)
    text = manifests.render(manifests.helm(), "--show-only=templates/scheduler/deployment.yaml")
    (kube_scheduler,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    import_images(cluster, kube_scheduler=(kube_scheduler["image"], programs / "kube-scheduler"), samples=samples)
    with api_server_for_pods(cluster), registry(folder) as served:
        done = served.publish(files)
        assert done.returncode == 0, done.stderr
        yield served


def released_files(request: pytest.FixtureRequest) -> Path:
    """Those of this tree with the image that has the emulated driver, made once for each run of pytest."""
    archive = vcuda_archive(request)
    need_release_tools(request)
    temporary: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    files = temporary.getbasetemp() / "released-files"
    if not (files / "SHA256SUMS").exists():
        done = release_files(ROOT, files, "--uncommitted", "--image", archive)
        assert done.returncode == 0, done.stderr
    return files
