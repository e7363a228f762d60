"""JSON merge patch (RFC 7386), and Kubernetes' strategic one, in which some lists are merged by a key."""

import copy
from typing import Any

from sandbox.apiserver.status import ApiError, JsonObject

_MERGE_KEYS = {"webhooks": "name", "conditions": "type", "containers": "name", "initContainers": "name", "env": "name"}


def merge(item: JsonObject, change: JsonObject) -> JsonObject:
    """A new object; null in the change removes a key, a list replaces a list."""
    return _merged(item, change, {})


def merge_strategic(item: JsonObject, change: JsonObject) -> JsonObject:
    """The same, but an item of a keyed list changes the item with its key, or is added."""
    return _merged(item, change, _MERGE_KEYS)


def _merged(item: JsonObject, change: JsonObject, keys: dict[str, str]) -> JsonObject:
    out = copy.deepcopy(item)
    for name, value in change.items():
        old = out.get(name)
        if value is None:
            out.pop(name, None)
        elif isinstance(value, dict):
            out[name] = _merged(old if isinstance(old, dict) else {}, value, keys)
        elif isinstance(value, list) and isinstance(old, list) and name in keys:
            out[name] = _by_key(old, value, keys[name], keys)
        else:
            out[name] = copy.deepcopy(value)
    return out


def _by_key(old: list[Any], change: list[Any], key: str, keys: dict[str, str]) -> list[Any]:
    out = {each.get(key): each for each in old}
    for each in change:
        if key not in each:
            raise ApiError(400, f"map: {each} does not contain declared merge key: {key}")
        out[each[key]] = _merged(out.get(each[key], {}), each, keys)
    return list(out.values())
