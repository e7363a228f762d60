"""The difference of two JSON values as an RFC 6902 patch.

In: before and after. Out: operations in an order in which they can be applied; none where nothing changed. Only what
differs is named, so that members unknown to us, and what other webhooks wrote, stay. Parents that are missing are made
whole with what is in them. Lists are compared by place: what is appended is appended.
"""

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def difference(before: object, after: object, path: str = "") -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _members(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(before, after, path)
    elif not _same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _members(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Operation]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": f"{path}/{escaped(key)}"}
    for key, value in after.items():
        place = f"{path}/{escaped(key)}"
        if before.get(key) is None and value is not None:
            # A null member may not be there any more when the patch is applied; `add` serves both.
            yield {"op": "add", "path": place, "value": value}
        elif key in before:
            yield from difference(before[key], value, place)
        else:
            yield {"op": "add", "path": place, "value": value}


def _items(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    for place, (old, new) in enumerate(zip(before, after, strict=False)):
        yield from difference(old, new, f"{path}/{place}")
    for place in range(len(before) - 1, len(after) - 1, -1):
        yield {"op": "remove", "path": f"{path}/{place}"}
    for value in after[len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def escaped(key: str) -> str:
    """A key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _same(before: object, after: object) -> bool:
    """In Python 1 == True == 1.0; in JSON they are different texts."""
    return type(before) is type(after) and before == after
