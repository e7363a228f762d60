"""JSON merge patch (RFC 7386). A strategic merge patch is treated as one too: its lists replace lists here."""

import copy

from tests.fakes.apiserver.status import JsonObject


def merge(item: JsonObject, change: JsonObject) -> JsonObject:
    """A new object; null in the change removes a key."""
    out = copy.deepcopy(item)
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            old = out.get(key)
            out[key] = merge(old if isinstance(old, dict) else {}, value)
        else:
            out[key] = copy.deepcopy(value)
    return out
