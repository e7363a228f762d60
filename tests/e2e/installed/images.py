"""The image of the Dockerfile as an archive, and the images of others, brought into the node's containerd.

In: image/build, which carries the Dockerfile out; the kube-scheduler that was built. Out: containerd has the images of
others under the names that stand in the chart and in the samples. Not here: where our own comes from (`registry`).
Invariant: in CI (`CI=true`) an image that cannot be had is a failure; elsewhere it is a skip that says why.
"""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.cluster.cluster import Cluster
from sandbox.cluster.images import image_with, kube_scheduler_image

_BUILD = Path(__file__).with_name("image") / "build"


@contextmanager
def building_in_the_background() -> Iterator[None]:
    """So that the image is there when it is asked for; `vcuda_archive` waits for it, and says what went wrong."""
    with subprocess.Popen(
        ["nice", str(_BUILD)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as build:
        try:
            yield
        finally:
            if build.poll() is None:
                os.killpg(build.pid, signal.SIGTERM)


def vcuda_archive(request: pytest.FixtureRequest) -> Path:
    """The first time it is made, in plain sight, for it takes minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        done = subprocess.run([str(_BUILD)], stdout=subprocess.PIPE, text=True, check=False)
    if not done.returncode:
        return Path(done.stdout.strip().splitlines()[-1])
    cause = f"{_BUILD} could not make the image; its words stand above."
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must test the image. {cause}", pytrace=False)
    pytest.skip(f"THE IMAGE AND THE INSTALLED CHART WERE NOT TESTED. {cause}")


def import_images(cluster: Cluster, *, kube_scheduler: tuple[str, Path], samples: Iterable[str]) -> None:
    """Those of others, which no registry here has."""
    made = [kube_scheduler_image(*kube_scheduler), *(image_with(_full(name), ()) for name in samples)]
    for image in made:
        cluster.containerd.ctr("images", "import", "-", stdin=image, doing="importing an image")


def _full(name: str) -> str:
    """As containerd knows a name without a registry."""
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
