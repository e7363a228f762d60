"""Reads an OCI archive of scripts/image: the index, and of each architecture the configuration and the layers.

In: the archive. Out: what it says, decoded. Nothing is unpacked to a disk.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = dict[str, Any]


class ArchiveError(Exception):
    """The file is not an archive of one image; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Image:
    """`layers` are tar files, compressed or not, the base's first."""

    architecture: str
    document: Document
    layers: tuple[bytes, ...]


@contextmanager
def opened(path: Path) -> Iterator["OciArchive"]:
    with tarfile.open(path) as file:
        yield OciArchive(path, file)


@dataclass(frozen=True, slots=True)
class OciArchive:
    """An open archive."""

    path: Path
    file: tarfile.TarFile

    @property
    def digest(self) -> str:
        """Of what a registry will have under the tag."""
        return str(self._top()["digest"])

    @property
    def architectures(self) -> list[str]:
        """In the order of the index; empty for an image without one."""
        return [str(each["platform"]["architecture"]) for each in self._document(self._top()).get("manifests", [])]

    def images(self) -> Iterator[Image]:
        """Each is read when it is asked for; an image without an index is one."""
        top = self._document(self._top())
        for each in top.get("manifests", [self._top()]):
            manifest = self._document(each)
            configuration = self._document(manifest["config"])
            layers = tuple(self._blob(layer) for layer in manifest["layers"])
            yield Image(str(configuration["architecture"]), configuration, layers)

    def _top(self) -> Document:
        found: list[Document] = json.loads(self._read("index.json"))["manifests"]
        if len(found) != 1:
            raise ArchiveError(f"{self.path} has {len(found)} images; scripts/image makes archives of one")
        return found[0]

    def _document(self, of: Document) -> Document:
        found: Document = json.loads(self._blob(of))
        return found

    def _blob(self, of: Document) -> bytes:
        return self._read(f"blobs/{str(of['digest']).replace(':', '/')}")

    def _read(self, name: str) -> bytes:
        found = self.file.extractfile(name)
        if found is None:
            raise ArchiveError(f"{self.path} has no file {name}")
        return found.read()


def files(layer: bytes, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The wanted files of a layer by their names, and their contents."""
    with tarfile.open(fileobj=io.BytesIO(layer)) as opened_layer:
        regular = {each.name.removeprefix("./"): each for each in opened_layer if each.isreg()}
        found = {name: opened_layer.extractfile(each) for name, each in regular.items() if wanted(name)}
        return {name: content.read() for name, content in found.items() if content is not None}
