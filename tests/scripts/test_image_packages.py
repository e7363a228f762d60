"""The list of an image's packages: of a small archive, with what each architecture and each layer adds."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from scripts.image_packages import document
from scripts.oci_archive import ArchiveError

OLD = "Package: bash\nStatus: install ok installed\nArchitecture: {0}\nVersion: 5.1\n"
STATUS = (
    "Package: bash\nStatus: install ok installed\nArchitecture: {0}\nVersion: 5.2-1+b1\nDescription: GNU's\n shell\n\n"
    "Package: gone\nStatus: deinstall ok config-files\nArchitecture: {0}\nVersion: 1\n\n"
    "Package: tzdata\nStatus: hold ok installed\nArchitecture: all\nVersion: 2026a-0\n"
)
METADATA = "Metadata-Version: 2.4\nName: Some_Package\nVersion: 1.0\n\nName: not a field\n"


class Archive:
    """An OCI archive that is being written."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def blob(self, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def json(self, content: object) -> dict[str, object]:
        return self.blob(json.dumps(content).encode())

    def image(self, architecture: str) -> dict[str, object]:
        layers = [
            tar({"./var/lib/dpkg/status": OLD.format(architecture)}),
            tar(
                {
                    "var/lib/dpkg/status": STATUS.format(architecture),
                    "var/lib/dpkg/status.d/kmod": f"Package: kmod\nVersion: 30\nArchitecture: {architecture}\n",
                    "opt/vcuda/lib/python3.11/site-packages/some_package-1.0.dist-info/METADATA": METADATA,
                    "opt/vcuda/lib/python3.11/site-packages/some_package-1.0.dist-info/RECORD": "",
                }
            ),
        ]
        config = {
            "architecture": architecture,
            "created": "2026-11-25T08:00:00Z",
            "config": {"Env": ["PATH=/bin", "PYTHON_VERSION=3.11.15"]},
        }
        manifest = {"config": self.json(config), "layers": [self.blob(layer) for layer in layers]}
        return self.json(manifest) | {"platform": {"architecture": architecture}}

    def write(self, path: Path, images: list[dict[str, object]]) -> Path:
        self.files["index.json"] = json.dumps({"manifests": images}).encode()
        path.write_bytes(tar(self.files, compressed=False))
        return path


def tar(files: dict[str, str] | dict[str, bytes], *, compressed: bool = True) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if compressed else "w") as made:
        for name, text in files.items():
            content = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_the_packages_of_all_architectures_are_listed_once_each(tmp_path: Path) -> None:
    archive = Archive()
    index = archive.json({"manifests": [archive.image("amd64"), archive.image("arm64")]})
    path = archive.write(tmp_path / "image.tar", [index])
    text = document(path, "1.2.0")
    found = json.loads(text)
    assert [each["purl"] for each in found["components"]] == [
        "pkg:deb/debian/bash@5.2-1%2Bb1?arch=amd64",
        "pkg:deb/debian/bash@5.2-1%2Bb1?arch=arm64",
        "pkg:deb/debian/kmod@30?arch=amd64",
        "pkg:deb/debian/kmod@30?arch=arm64",
        "pkg:generic/python@3.11.15",
        "pkg:pypi/some-package@1.0",
        "pkg:deb/debian/tzdata@2026a-0?arch=all",
    ]
    described = found["metadata"]["component"]
    assert (described["name"], described["version"], described["bom-ref"]) == ("vcuda", "1.2.0", index["digest"])
    assert found["metadata"]["timestamp"] == "2026-11-25T08:00:00+00:00"
    assert document(path, "1.2.0") == text, "the same image, the same bytes"


def test_an_archive_of_several_images_is_refused(tmp_path: Path) -> None:
    archive = Archive()
    path = archive.write(tmp_path / "image.tar", [archive.image("amd64"), archive.image("arm64")])
    with pytest.raises(ArchiveError, match="has 2 images; scripts/image makes archives of one"):
        document(path, "1")
