"""The difference of two JSON values as an RFC 6902 patch.

In: before and after. Out: operations in an order in which they can be applied; none where nothing changed. Only what
differs is named, so that members unknown to us, and what other webhooks wrote, stay. Parents that are missing are made
whole with what is in them. Of lists the equal begin and end are left out and the rest is compared by place.
"""

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def difference(before: object, after: object, path: str = "") -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _members(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(before, after, path)
    elif not _same_text(before, after):
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
    end = _equal_end(before, after)
    old, new = before[: len(before) - end], after[: len(after) - end]
    shared = min(len(old), len(new))
    for place in range(shared):
        yield from difference(old[place], new[place], f"{path}/{place}")
    for _ in old[shared:]:
        yield {"op": "remove", "path": f"{path}/{shared}"}
    for place, value in enumerate(new[shared:], start=shared):
        yield {"op": "add", "path": f"{path}/{place}", "value": value}


def _equal_end(before: list[Any], after: list[Any]) -> int:
    """Only where the lengths differ; else places compare better."""
    if len(before) == len(after):
        return 0
    shortest = min(len(before), len(after))
    begin = next((place for place in range(shortest) if not _same(before[place], after[place])), shortest)
    end = 0
    while end < shortest - begin and _same(before[-1 - end], after[-1 - end]):
        end += 1
    return end


def escaped(key: str) -> str:
    """A key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _same(before: object, after: object) -> bool:
    return next(difference(before, after), None) is None


def _same_text(before: object, after: object) -> bool:
    """In Python 1 == True == 1.0; in JSON they are different texts."""
    return type(before) is type(after) and before == after
