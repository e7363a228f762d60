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
from tests.e2e.installed.registry import Registry, publish_release, registry
from tests.programs import helm_program


@contextmanager
def published(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, folder: Path, *, samples: Iterable[str] = ()
) -> Iterator[Registry]:
    """`samples` are the names of further images, which become busybox."""
    helm, archive = helm_program(request), vcuda_archive(request)
    text = manifests.render(helm, "--show-only=templates/scheduler/deployment.yaml")
    (kube_scheduler,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    import_images(cluster, kube_scheduler=(kube_scheduler["image"], programs / "kube-scheduler"), samples=samples)
    with api_server_for_pods(cluster), registry(folder) as served:
        publish_release(served, folder / "dist", archive)
        yield served
