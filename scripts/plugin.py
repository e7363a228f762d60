"""The plugin of kubectl: an archive for each platform, and the manifest by which krew installs it.

In: the wheel of a release, requirements.lock. Out: `kubectl-vcuda-X-OS-ARCH.tar.gz` and `vcuda.yaml`. An archive has
vcuda's commands for operators with the Python packages that they need, for each Python in `PYTHONS`: extension modules
of several Pythons lie side by side, because their file names differ. Packages that only nodes need are left out, and so
are extension modules that their packages can do without. Invariant: the same wheel and lock give the same bytes.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from scripts.archive import archive

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    ("linux", "amd64"): "x86_64-manylinux_2_28",
    ("linux", "arm64"): "aarch64-manylinux_2_28",
    ("darwin", "arm64"): "aarch64-apple-darwin",
}
"""By Kubernetes' words what uv calls it. Not Intel's Macs: the package cryptography has no wheel for them."""
MANIFEST = "vcuda.yaml"
_ONLY_NODES = ("grpcio", "nvidia-ml-py", "protobuf", "pyelftools", "watchdog")
_WITHOUT_EXTENSIONS = ("aiohttp", "charset_normalizer", "frozenlist", "multidict", "propcache", "yaml", "yarl")
_INSTALLER = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json")
_PROGRAM = f"""#!/bin/sh
# Starts vcuda with a Python of this machine.
find='
import os, sys
print(os.path.dirname(os.path.realpath(sys.argv[1])))
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
'
for python in python3 {" ".join(f"python{each}" for each in reversed(PYTHONS))}; do
    if here=$("$python" -c "$find" "$0" 2>/dev/null); then
        exec "$python" -I "$here/lib" "$@"
    fi
done
echo "vcuda: it needs Python {PYTHONS[0]} to {PYTHONS[-1]}, and finds none on PATH; install one" >&2
exit 1
"""
_MAIN = """import sys

sys.argv[0] = "kubectl-vcuda"
from deviceplugin.cli import main

main()
"""


def write_archives(wheel: Path, lock: Path, out: Path, version: str, at: int) -> None:
    """One for each platform; CalledProcessError where a package cannot be had. `at`: the time of all files."""
    for (system, arch), platform in PLATFORMS.items():
        with tempfile.TemporaryDirectory() as made:
            files = dict(_packages(lock, platform, Path(made)))
        files |= {f"lib/{name}": body for name, body in _wheel_files(wheel)}
        files |= {"lib/__main__.py": _MAIN.encode(), "kubectl-vcuda": _PROGRAM.encode()}
        files |= {name: (lock.parent / name).read_bytes() for name in ("LICENSE", "NOTICE")}
        archive_name(out, version, system, arch).write_bytes(archive(files, at, programs=("kubectl-vcuda",)))


def archive_name(out: Path, version: str, system: str, arch: str) -> Path:
    return out / f"kubectl-vcuda-{version}-{system}-{arch}.tar.gz"


def manifest(out: Path, version: str, url: str) -> str:
    """`url`: where the files of `out` can be fetched."""
    platforms = []
    for system, arch in PLATFORMS:
        path = archive_name(out, version, system, arch)
        platforms.append(
            {
                "selector": {"matchLabels": {"os": system, "arch": arch}},
                "uri": f"{url}/{path.name}",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bin": "kubectl-vcuda",
            }
        )
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "vcuda"},
        "spec": {
            "version": f"v{version}",
            "homepage": url.partition("/releases/")[0],
            "shortDescription": "Show shared GPUs, and why pods wait for them",
            "description": (
                "Asks vcuda's scheduler who holds which part of which GPU, what is used of it, and why a pod waits or "
                "is where it is. Checks an installation of vcuda, and gathers what support needs."
            ),
            "caveats": (
                f"It needs Python {PYTHONS[0]} to {PYTHONS[-1]}; "
                "on Linux glibc 2.28 or newer, on a Mac macOS 13 or newer."
            ),
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _packages(lock: Path, platform: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    requirements = folder / "requirements.txt"
    requirements.write_text(_for_operators(lock.read_text()))
    for python in PYTHONS:
        target = folder / python
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command += ["--python-version", python, "--python-platform", platform]
        subprocess.run([*command, "--target", str(target), "--requirement", str(requirements)], check=True)
        for path in sorted(target.rglob("*")):
            name = path.relative_to(target)
            if path.is_file() and _is_needed(name):
                yield f"lib/{name}", path.read_bytes()


def _for_operators(lock: str) -> str:
    """The lock file without what only nodes need."""
    blocks: list[str] = []
    for line in lock.splitlines(keepends=True):
        if line[0].isspace():
            blocks[-1] += line
        else:
            blocks.append(line)
    return "".join(block for block in blocks if block.partition("==")[0] not in _ONLY_NODES)


def _is_needed(name: Path) -> bool:
    if name.parts[0] == "bin" or "__pycache__" in name.parts or name.name == ".lock":
        return False
    if name.suffix == ".so":
        return name.parts[0] not in _WITHOUT_EXTENSIONS
    return not (name.parent.suffix == ".dist-info" and name.name in _INSTALLER)


def _wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as opened:
        for name in sorted(opened.namelist()):
            if not name.endswith(("/", "/RECORD")):
                yield name, opened.read(name)
