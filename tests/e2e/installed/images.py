"""The image of the Dockerfile as an archive, and the images of others, brought into the node's containerd.

In: image/build, which carries the Dockerfile out; the kube-scheduler that was built. Out: containerd has the images of
others under the names that stand in the chart and in the samples. Not here: where our own comes from (`registry`).
"""

import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.cluster.cluster import Cluster
from sandbox.cluster.images import image_with, kube_scheduler_image
from tests.programs import built

_BUILD = Path(__file__).with_name("image") / "build"


@contextmanager
def building_in_the_background() -> Iterator[None]:
    """So that the image is there when it is asked for; `vcuda_archive` waits for it, and says what went wrong."""
    with subprocess.Popen(
        ["nice", str(_BUILD), "emulated"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as build:
        try:
            yield
        finally:
            if build.poll() is None:
                os.killpg(build.pid, signal.SIGTERM)


def vcuda_archive(request: pytest.FixtureRequest, target: str = "emulated") -> Path:
    """The first time it is made, in plain sight, for it takes minutes."""
    return Path(built(request, "The image", _BUILD, target)[-1])


def image_builder(request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables with which scripts/image builds on the base that stands for the Dockerfile's."""
    return dict(line.split("=", 1) for line in built(request, "The base image", _BUILD, "base"))


def import_images(cluster: Cluster, *, kube_scheduler: tuple[str, Path], samples: Iterable[str]) -> None:
    """Those of others, which no registry here has."""
    made = [kube_scheduler_image(*kube_scheduler), *(image_with(_full(name), ()) for name in samples)]
    for image in made:
        cluster.containerd.ctr("images", "import", "-", stdin=image, doing="importing an image")


def import_vcuda(cluster: Cluster, archive: Path, name: str, folder: Path) -> None:
    """Our own, in the place of `docker build` and `kind load`.

    Its label makes it another image: kubelet asks the registry again for one that it had to pull under another name.
    """
    plain, loaded = folder / "plain.tar", folder / "loaded.tar"
    copy = ["skopeo", "--insecure-policy", "copy", "--quiet", f"oci-archive:{archive}"]
    subprocess.run([*copy, f"docker-archive:{plain}:{_full(name)}"], check=True)
    with tarfile.open(plain) as given, tarfile.open(loaded, "w") as made:
        (manifest,) = json.loads(_read(given, "manifest.json"))
        image = json.loads(_read(given, manifest["Config"]))
        image["config"].setdefault("Labels", {})["loaded"] = "by a test"
        text = json.dumps(image).encode()
        manifest["Config"] = f"{hashlib.sha256(text).hexdigest()}.json"
        for layer in manifest["Layers"]:
            made.addfile(given.getmember(layer), given.extractfile(layer))
        _add(made, manifest["Config"], text)
        _add(made, "manifest.json", json.dumps([manifest]).encode())
    cluster.containerd.ctr("images", "import", str(loaded), doing="importing vcuda's image")


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    assert found is not None
    return found.read()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _full(name: str) -> str:
    """As containerd knows a name without a registry."""
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
