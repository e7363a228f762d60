"""A registry on loopback, with the image and the chart as a release has them: what a newcomer installs from.

In: cosign; what scripts/release_files made; scripts/publish. Out: a real registry (Debian's docker-registry) while the
context lasts. containerd and Helm speak plain HTTP with it, as they do with 127.0.0.1.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3

from deviceplugin import __version__
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.programs import installed

_PROGRAMS = ("docker-registry=docker-registry", "skopeo=skopeo")
PASSWORD = {"COSIGN_PASSWORD": "of the tests"}


@dataclass(frozen=True, slots=True)
class Registry:
    """`address` is HOST:PORT. `key` signs what is published."""

    address: str
    version: str
    key: Path

    @property
    def image(self) -> str:
        """The chart's value image.repository."""
        return f"{self.address}/vcuda"

    @property
    def chart(self) -> tuple[str, ...]:
        """What Helm installs, as words of its command line."""
        return f"oci://{self.address}/charts/vcuda", f"--version={self.version}", "--plain-http"

    def publish(self, dist: Path) -> subprocess.CompletedProcess[str]:
        """By scripts/publish."""
        command = [str(REPOSITORY / "scripts/publish"), str(dist), self.address, "--plain-http", "--key", str(self.key)]
        return subprocess.run(command, env=os.environ | PASSWORD, capture_output=True, text=True, check=False)


@contextmanager
def registry(folder: Path, cosign: str) -> Iterator[Registry]:
    """An empty one; what it has lies in `folder`, where the keys are."""
    installed(*_PROGRAMS)
    found = Registry(f"127.0.0.1:{_free_port()}", __version__, key_pair(cosign, folder, "cosign"))
    configuration = folder / "registry.yml"
    configuration.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\n"
        f"http: {{addr: '{found.address}'}}\nlog: {{level: error, accesslog: {{disabled: true}}}}\n"
    )
    with (
        (folder / "registry.log").open("wb") as log,
        subprocess.Popen(["docker-registry", "serve", str(configuration)], stdout=log, stderr=log) as server,
    ):
        try:
            wait_until(
                lambda: _answers(found.address), "the registry answers", evidence=(folder / "registry.log").read_text
            )
            yield found
        finally:
            server.terminate()


def key_pair(cosign: str, folder: Path, name: str) -> Path:
    """The private key, NAME.key; the public one is NAME.pub."""
    command = [cosign, "generate-key-pair", f"--output-key-prefix={name}"]
    subprocess.run(command, cwd=folder, env=os.environ | PASSWORD, check=True, capture_output=True)
    return folder / f"{name}.key"


def _answers(address: str) -> bool:
    try:
        return urllib3.request("GET", f"http://{address}/v2/", timeout=5, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
