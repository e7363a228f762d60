"""Kubernetes objects from a file, as `kubectl get nodes,pods -o yaml` (or json) writes them.

In: the bytes of a file: objects, lists of them, several YAML documents. Out: each object with the words that say where
it stands, and its parts as structs. Not here: what an object means (`cluster_nodes`, `cluster_pods`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from deviceplugin.errors import ParseError

Quantities = dict[str, str | int]
_Read = TypeVar("_Read")


class Found(NamedTuple):
    """An object, and where it stands for a sentence."""

    kind: str
    where: str
    content: dict[str, Any]

    def read(self, form: type[_Read]) -> _Read:
        try:
            return msgspec.convert(self.content, form)
        except msgspec.MsgspecError as error:
            raise ParseError(f"{self.where}: {error}") from None


class _Loader(yaml.CSafeLoader):
    """Times and fractions stay the text that they are in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":float"))]
        for first, forms in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def read_objects(content: bytes, *, file: str) -> Iterator[Found]:
    for number, item in enumerate(_documents(content, file), start=1):
        yield from _flat(item, f"{file}, object {number}")


def _documents(content: bytes, file: str) -> list[Any]:
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            return [msgspec.json.decode(content)]
        return [each for each in yaml.load_all(content, Loader=_Loader) if each is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ParseError(f"{file}{place}: {error.problem or 'this is no YAML'}") from None
    except (yaml.YAMLError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from None


def _flat(item: Any, where: str) -> Iterator[Found]:  # noqa: ANN401 - as YAML and JSON have it
    if isinstance(item, list):
        yield from _each(item, where)
        return
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(kind, str):
        raise ParseError(f"{where} is no Kubernetes object; it has no kind")
    if kind.endswith("List") and isinstance(item.get("items"), list):
        for each in item["items"]:
            if isinstance(each, dict):
                each.setdefault("kind", kind.removesuffix("List") or None)
        yield from _each(item["items"], where)
        return
    meta = item.get("metadata")
    name = str(meta.get("name", "")) if isinstance(meta, dict) else ""
    yield Found(kind, f"{where} ({kind} {name[:60]})", item)


def _each(items: list[Any], where: str) -> Iterator[Found]:
    for number, each in enumerate(items, start=1):
        yield from _flat(each, f"{where}.{number}")
