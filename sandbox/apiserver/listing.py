"""What a list or watch shows: field and label selectors, and pages.

In: the query text; the whole list at one version. Out: a predicate over objects, or a 400 for a field that the real
server does not index either; one page as a List object. Invariant: all pages of one list show the same version; a
`continue` token from before a compaction is answered with 410, as etcd would.
"""

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.apiserver.kinds import ResourceKind
from sandbox.apiserver.status import ApiError, JsonObject

Selector = Callable[[JsonObject], bool]

_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.schedulerName",
        "spec.restartPolicy",
        "status.phase",
    ),
    "nodes": ("metadata.name",),
    "resourceslices": ("metadata.name", "spec.driver", "spec.nodeName"),
    "events": (
        "metadata.name",
        "metadata.namespace",
        "reason",
        "type",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
    ),
}


def selector(resource: str, *, fields: str = "", labels: str = "") -> Selector:
    """Both selectors of one request as one predicate."""
    tests = [_field_test(resource, term) for term in _terms(fields)] + [_label_test(term) for term in _terms(labels)]
    return lambda item: all(test(item) for test in tests)


def _terms(text: str) -> list[str]:
    return [term.strip() for term in text.split(",") if term.strip()]


def _split(term: str) -> tuple[str, bool, str]:
    for operator, equal in (("!=", False), ("==", True), ("=", True)):
        if operator in term:
            key, _, value = term.partition(operator)
            return key.strip(), equal, value.strip()
    raise ApiError(400, f"invalid selector: {term!r}; can't understand it")


def _field_test(resource: str, term: str) -> Selector:
    path, equal, value = _split(term)
    if path not in _FIELDS.get(resource, ("metadata.name", "metadata.namespace")):
        raise ApiError(400, f'field label not supported: "{path}"')
    return lambda item: (_field(item, path) == value) is equal


def _field(item: JsonObject, path: str) -> str:
    found: object = item
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def _label_test(term: str) -> Selector:
    if "=" not in term:
        absent, key = term.startswith("!"), term.lstrip("!")
        return lambda item: (key in _labels(item)) is not absent
    key, equal, value = _split(term)
    return lambda item: (_labels(item).get(key) == value) is equal


def _labels(item: JsonObject) -> dict[str, str]:
    return item.get("metadata", {}).get("labels") or {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one list showed, kept for its later pages."""

    version: int
    items: list[JsonObject]


class Pages:
    """Open snapshots of lists that were asked for in pages."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._count = 0

    def first(self, kind: ResourceKind, snapshot: Snapshot, limit: int) -> JsonObject:
        if not limit or len(snapshot.items) <= limit:
            return _list(kind, snapshot.version, snapshot.items)
        self._count += 1
        self._snapshots[self._count] = snapshot
        return self._page(kind, self._count, 0, limit)

    def following(self, kind: ResourceKind, token: str, limit: int) -> JsonObject:
        try:
            number, start = json.loads(base64.urlsafe_b64decode(token))
        except (binascii.Error, ValueError) as error:
            raise ApiError(400, f"continue key is not valid: {error}") from None
        if number not in self._snapshots:
            raise ApiError(410, "The provided continue parameter is too old to display a consistent list result.")
        return self._page(kind, number, start, limit or len(self._snapshots[number].items))

    def forget(self) -> None:
        """A compaction: every open token is too old now."""
        self._snapshots.clear()

    def _page(self, kind: ResourceKind, number: int, start: int, limit: int) -> JsonObject:
        snapshot = self._snapshots[number]
        end = start + limit
        page = _list(kind, snapshot.version, snapshot.items[start:end])
        if end < len(snapshot.items):
            page["metadata"]["continue"] = base64.urlsafe_b64encode(json.dumps([number, end]).encode()).decode()
            page["metadata"]["remainingItemCount"] = len(snapshot.items) - end
        return page


def _list(kind: ResourceKind, version: int, items: list[JsonObject]) -> JsonObject:
    meta = {"resourceVersion": str(version)}
    return {"kind": f"{kind.word}List", "apiVersion": kind.api_version, "metadata": meta, "items": items}
