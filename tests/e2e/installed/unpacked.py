"""The file system of an image as a folder, and programs of it on this machine, also those of another architecture.

In: the OCI archive of scripts/image; skopeo; root's rights for chroot; Debian's qemu-user-static for the other
architecture.
Out: what the programs say. Invariant: nothing of this machine is in the folder but qemu.
"""

import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.programs import installed

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_QEMU = "/qemu"


@dataclass(frozen=True, slots=True)
class Root:
    """An unpacked image. `config` is the image's own: user, environment, labels.

    `files`: the mode of everything in it, but for the folder itself, before any of its programs ran: Python leaves
    compiled modules behind where its environment lets it.
    """

    architecture: str
    folder: Path
    created: str
    config: dict[str, Any]
    files: Mapping[str, int]

    @property
    def is_foreign(self) -> bool:
        return MACHINES[self.architecture] != platform.machine()

    @property
    def emulator(self) -> str:
        """The program that runs this architecture's programs."""
        return f"qemu-{MACHINES[self.architecture]}-static"

    def run(self, *command: str) -> str:
        """What a program of the image says that succeeds."""
        done = self.ran(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ran(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As the image's user, in the image's environment."""
        words = (_QEMU, *command) if self.is_foreign else command
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        chroot = ["chroot", f"--userspec={self.config['User']}", str(self.folder)]
        return subprocess.run([*chroot, *words], env=environment, capture_output=True, text=True, check=False)

    def on_this_machine(self, program: str) -> tuple[str, ...]:
        """The words that start a program of the image among this machine's files."""
        path = str(self.folder / program.lstrip("/"))
        return (self.emulator, "-L", str(self.folder), path) if self.is_foreign else (path,)


def unpacked(archive: Path, architecture: str, folder: Path) -> Root:
    image = _unpack(archive, architecture, folder)
    files = {str(path.relative_to(folder)): path.lstat().st_mode for path in folder.rglob("*")}
    root = Root(architecture, folder, image["created"], image["config"], files)
    if root.is_foreign:
        installed(f"{root.emulator}=qemu-user-static")
        shutil.copy(str(shutil.which(root.emulator)), folder / _QEMU.lstrip("/"))
    return root


def architectures(archive: Path) -> list[str]:
    """In the order of the index."""
    command = ["skopeo", "inspect", "--raw", f"oci-archive:{archive}"]
    index = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return [each["platform"]["architecture"] for each in index["manifests"]]


def _unpack(archive: Path, architecture: str, folder: Path) -> dict[str, Any]:
    """The image's configuration."""
    with TemporaryDirectory() as copied:
        chosen = ("--insecure-policy", "--override-os=linux", f"--override-arch={architecture}")
        command = ["skopeo", *chosen, "copy", "--quiet", f"oci-archive:{archive}", f"dir:{copied}"]
        subprocess.run(command, check=True)
        manifest = json.loads((Path(copied) / "manifest.json").read_text())
        for layer in manifest["layers"]:
            with tarfile.open(_blob(copied, layer)) as entries:
                entries.extractall(folder, filter="fully_trusted")
        found: dict[str, Any] = json.loads(_blob(copied, manifest["config"]).read_text())
    folder.chmod(0o755)  # it is the program's /
    return found


def _blob(folder: str, named: dict[str, str]) -> Path:
    return Path(folder) / named["digest"].removeprefix("sha256:")
