"""The release after the one of this tree: the same image and chart, which say the next version, in the same registry.

In: the registry and its image's archive. Out: the registry with both versions. The image has one more layer for each
architecture, in which the package says its version; the chart has it in Chart.yaml. Nothing else differs: no format of
one release is unknown to the other.
"""

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.installed.registry import Registry
from tests.scripts.released import clone, release_files

_PACKAGE = "opt/vcuda/lib/python3.11/site-packages/deviceplugin"
_VERSIONS = {
    "pyproject.toml": ('\nversion = "{}"\n', 1),
    "daemonset/chart/Chart.yaml": ("ersion: {}\n", 2),
    "deviceplugin/__init__.py": ('"{}"', 1),
}
"""The files of a tree that say its version: in which words, and how often."""
_COMPILED = f"{_PACKAGE}/__pycache__/.wh.__init__.cpython-311.pyc"
"""Removes the file of the layers below, which Python would take for the changed module."""
_LAYER = "application/vnd.oci.image.layer.v1.tar"
Json = dict[str, Any]


def publish_next(registry: Registry, archive: Path, folder: Path) -> Registry:
    """The same registry with the next minor version as its version."""
    major, minor, _ = registry.version.split(".")
    following = replace(registry, version=f"{major}.{int(minor) + 1}.0")
    tree = _tree(registry.version, following.version, folder)
    layer = _tar({f"{_PACKAGE}/__init__.py": (tree / "deviceplugin/__init__.py").read_bytes(), _COMPILED: b""})
    _with_layer(archive, folder / "image.tar", layer, following.version)
    made = release_files(tree, folder / "dist", "--uncommitted", "--image", folder / "image.tar")
    assert made.returncode == 0, made.stderr
    published = following.publish(folder / "dist")
    assert published.returncode == 0, published.stderr
    return following


def _tree(version: str, following: str, folder: Path) -> Path:
    """A clone of this one that says the following version."""
    tree = clone(folder / "tree")
    for name, (says, times) in _VERSIONS.items():
        text = (tree / name).read_text()
        assert text.count(says.format(version)) == times, name
        (tree / name).write_text(text.replace(says.format(version), says.format(following)))
    return tree


def _with_layer(archive: Path, to: Path, layer: bytes, tag: str) -> None:
    """The OCI archive with this layer on top of each of its images. Blobs that nothing names any more stay in it."""
    with tarfile.open(archive) as given, tarfile.open(to, "w") as made:
        for member in given:
            if member.name.removeprefix("./") != "index.json":
                made.addfile(member, given.extractfile(member) if member.isfile() else None)
        (entry,) = _read(given, "index.json")["manifests"]
        index = _blob(given, entry)
        index["manifests"] = [_image_with_layer(given, made, each, layer) for each in index["manifests"]]
        top = {**entry, **_add_blob(made, index), "annotations": {"org.opencontainers.image.ref.name": tag}}
        _add(made, "index.json", json.dumps({"schemaVersion": 2, "manifests": [top]}).encode())


def _image_with_layer(given: tarfile.TarFile, made: tarfile.TarFile, entry: Json, layer: bytes) -> Json:
    manifest = _blob(given, entry)
    config = _blob(given, manifest["config"])
    described = {"mediaType": _LAYER, **_add_blob(made, layer)}
    config["rootfs"]["diff_ids"].append(described["digest"])
    config["history"].append({"created_by": "tests/e2e"})
    manifest["config"] |= _add_blob(made, config)
    manifest["layers"].append(described)
    return {**entry, **_add_blob(made, manifest)}


def _add_blob(made: tarfile.TarFile, content: bytes | Json) -> Json:
    """Its digest and size, as the documents that refer to it have them."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(made, f"blobs/sha256/{digest}", data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _blob(given: tarfile.TarFile, entry: Json) -> Json:
    return _read(given, f"blobs/{str(entry['digest']).replace(':', '/')}")


def _read(given: tarfile.TarFile, name: str) -> Json:
    found = given.extractfile(name)
    assert found is not None
    document: Json = json.loads(found.read())
    return document


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            _add(made, name, content)
    return buffer.getvalue()


def _add(made: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    made.addfile(member, io.BytesIO(content))
