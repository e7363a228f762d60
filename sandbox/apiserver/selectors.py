"""Field and label selectors: equality, inequality and existence, joined by commas.

In: the query text of a list or watch. Out: a predicate over objects, or a 400 for a field that the real server does
not index either.
"""

from collections.abc import Callable

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
