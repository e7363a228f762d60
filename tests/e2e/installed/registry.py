"""A registry on loopback, with the image and the chart as a release has them: what a newcomer installs from.

In: what scripts/release_files made; scripts/publish. Out: a real registry (Debian's docker-registry) while the
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


@dataclass(frozen=True, slots=True)
class Registry:
    """`address` is HOST:PORT."""

    address: str
    version: str

    @property
    def image(self) -> str:
        """The chart's value image.repository."""
        return f"{self.address}/vcuda"

    @property
    def chart(self) -> tuple[str, ...]:
        """What Helm installs, as words of its command line."""
        return f"oci://{self.address}/charts/vcuda", f"--version={self.version}", "--plain-http"

    def publish(self, dist: Path, *signing: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """By scripts/publish; unsigned where `signing` says nothing else."""
        command = [str(REPOSITORY / "scripts/publish"), str(dist), self.address, "--plain-http"]
        command += signing or ("--unsigned",)
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """An empty one; what it has lies in `folder`."""
    installed(*_PROGRAMS)
    found = Registry(f"127.0.0.1:{_free_port()}", __version__)
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


def _answers(address: str) -> bool:
    try:
        return urllib3.request("GET", f"http://{address}/v2/", timeout=5, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
