"""The release after the one of this tree: the same image and chart, which say the next version, in the same registry.

In: the registry and its image's archive. Out: the registry with both versions, by scripts/publish. The image has one
more layer for each architecture, in which the package says its version; the chart has it in Chart.yaml. Nothing else
differs: no format of one release is unknown to the other.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import deviceplugin
from scripts import manifests, publish
from tests.e2e.installed.registry import Registry

_PACKAGE = "opt/vcuda/lib/python3.11/site-packages/deviceplugin"
_COMPILED = f"{_PACKAGE}/__pycache__/.wh.__init__.cpython-311.pyc"
"""Removes the file of the layers below, which Python would take for the changed module."""
_LAYER = "application/vnd.oci.image.layer.v1.tar"
Json = dict[str, Any]


def publish_next(registry: Registry, archive: Path, folder: Path) -> Registry:
    """The same registry with the next minor version as its version."""
    major, minor, _ = registry.version.split(".")
    following = replace(registry, version=f"{major}.{int(minor) + 1}.0")
    folder.mkdir()
    image = folder / f"vcuda-image-{following.version}.tar"
    _with_layer(archive, image, _layer(registry.version, following.version), following.version)
    _package_chart(registry.version, following.version, folder)
    publish.publish(folder, publish.Registry(registry.address, plain_http=True))
    image.unlink()
    return following


def _package_chart(version: str, following: str, folder: Path) -> None:
    chart = shutil.copytree(manifests.CHART, folder / "vcuda")
    file = chart / "Chart.yaml"
    file.write_text(_replaced(file.read_text(), f"ersion: {version}\n", f"ersion: {following}\n", times=2))
    command = [manifests.helm(), "package", str(chart), "--destination", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder / f"vcuda-{following}.tgz").rename(folder / f"vcuda-chart-{following}.tgz")


def _replaced(text: str, old: str, new: str, *, times: int) -> str:
    assert text.count(old) == times, f"{old!r}: {text.count(old)} times"
    return text.replace(old, new)


def _layer(version: str, following: str) -> bytes:
    module = _replaced(Path(deviceplugin.__file__).read_text(), f'"{version}"', f'"{following}"', times=1)
    return _tar({f"{_PACKAGE}/__init__.py": module.encode(), _COMPILED: b""})


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
