"""Lists the packages of an image, those of Debian and those of Python, as CycloneDX.

In: the OCI archive of scripts/image. Out: one document for all its architectures. What dpkg installed stands in its
status, what the Dockerfile took out of packages in status.d, Python packages in their dist-info, and the Python of the
base image in its environment. Invariant: the same image gives the same bytes.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from email.parser import HeaderParser
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from scripts.oci_archive import Image, files, opened

_STATUS = "var/lib/dpkg/status"
_NEVER = "1970-01-01T00:00:00Z"
_DIST_INFO = re.compile(r"^(?:usr|opt)/.*\.dist-info/METADATA$")


def document(archive: Path, version: str) -> str:
    """In the order of the names; its time is that of the image, its number that of the digest."""
    with opened(archive) as image:
        root = Component(type=ComponentType.CONTAINER, name="vcuda", version=version, bom_ref=image.digest)
        images = list(image.images())
    components = {_component(each) for one in images for each in _packages(one)}
    bom = Bom(components=components, serial_number=uuid5(NAMESPACE_OID, str(root.bom_ref)))
    bom.metadata.component = root
    bom.metadata.timestamp = max(datetime.fromisoformat(each.document.get("created", _NEVER)) for each in images)
    bom.register_dependency(root, components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(package: PackageURL) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=package,
        bom_ref=package.to_string(),
    )


def _packages(image: Image) -> Iterator[PackageURL]:
    """A file of a later layer replaces that of an earlier one."""
    found: dict[str, bytes] = {}
    for layer in image.layers:
        found |= files(layer, _is_wanted)
    for name, content in found.items():
        text = content.decode(errors="replace")
        yield from (_of_python(text),) if name.endswith("METADATA") else _of_debian(text)
    for variable in image.document["config"].get("Env", ()):
        if variable.startswith("PYTHON_VERSION="):
            yield PackageURL("generic", None, "python", variable.partition("=")[2])


def _is_wanted(name: str) -> bool:
    return name == _STATUS or name.startswith(f"{_STATUS}.d/") or _DIST_INFO.match(name) is not None


def _of_python(metadata: str) -> PackageURL:
    fields = HeaderParser().parsestr(metadata)
    return PackageURL("pypi", None, fields["Name"], fields["Version"])


def _of_debian(status: str) -> Iterator[PackageURL]:
    """Those that are installed; a file of status.d says nothing about that."""
    for paragraph in status.strip().split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields.get("Status", "install ok installed").endswith(" installed"):
            qualifiers = {"arch": fields["Architecture"]}
            yield PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
