"""The file system of an image as a folder, and programs of it on this machine, also those of another architecture.

In: the OCI archive of scripts/image; root's rights for chroot; Debian's qemu-user-static for the other architecture.
Out: what the programs say. Invariant: nothing of this machine is in the folder but qemu.
"""

import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox.emulated_gpus import REPOSITORY

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_PACKAGES = REPOSITORY / "sandbox" / "cluster" / "kubernetes" / "packages"
_QEMU = "/qemu"


@dataclass(frozen=True, slots=True)
class Root:
    """An unpacked image. `config` is the image's own: user, environment, labels."""

    architecture: str
    folder: Path
    created: str
    config: dict[str, Any]

    @property
    def is_foreign(self) -> bool:
        return MACHINES[self.architecture] != platform.machine()

    @property
    def emulator(self) -> str:
        """The program that runs this architecture's programs."""
        return f"qemu-{MACHINES[self.architecture]}-static"

    def run(self, *command: str) -> str:
        """What a program of the image says, in the image's environment."""
        words = (_QEMU, *command) if self.is_foreign else command
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        done = subprocess.run(
            ["chroot", str(self.folder), *words], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on_this_machine(self, program: str) -> tuple[str, ...]:
        """The words that start a program of the image among this machine's files."""
        path = str(self.folder / program.lstrip("/"))
        return (self.emulator, "-L", str(self.folder), path) if self.is_foreign else (path,)


def unpacked(archive: Path, architecture: str, folder: Path) -> Root:
    with tarfile.open(archive) as file:
        (index,) = _document(file, "index.json")["manifests"]
        found = {each["platform"]["architecture"]: each for each in _blob(file, index)["manifests"]}
        manifest = _blob(file, found[architecture])
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(_bytes(file, layer))) as files:
                files.extractall(folder, filter="fully_trusted")
        image = _blob(file, manifest["config"])
    root = Root(architecture, folder, image["created"], image["config"])
    if root.is_foreign:
        _require(root.emulator)
        shutil.copy(str(shutil.which(root.emulator)), folder / _QEMU.lstrip("/"))
    return root


def architectures(archive: Path) -> list[str]:
    with tarfile.open(archive) as file:
        (index,) = _document(file, "index.json")["manifests"]
        return [each["platform"]["architecture"] for each in _blob(file, index)["manifests"]]


def _bytes(file: tarfile.TarFile, of: dict[str, Any]) -> bytes:
    found = file.extractfile(f"blobs/{str(of['digest']).replace(':', '/')}")
    assert found is not None
    return found.read()


def _blob(file: tarfile.TarFile, of: dict[str, Any]) -> Any:
    return json.loads(_bytes(file, of))


def _document(file: tarfile.TarFile, name: str) -> Any:
    found = file.extractfile(name)
    assert found is not None
    return json.loads(found.read())


def _require(program: str) -> None:
    if not subprocess.run([_PACKAGES, f"{program}=qemu-user-static"], check=False).returncode:
        return
    cause = f"{program} is needed to run the image of another architecture: install Debian's qemu-user-static."
    if os.environ.get("CI") == "true":
        pytest.fail(cause, pytrace=False)
    pytest.skip(cause)
