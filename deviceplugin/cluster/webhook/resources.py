"""Reads and writes the `resources` of a container.

In: one container of a pod's JSON. Out: whole numbers, or an error that names container and resource. A limit counts, or
the request where there is no limit. Kubernetes requires both to be equal for extended resources, so both are written; a
request that differs from its limit stays, and `validate` reports it.
"""

from collections.abc import Iterable

from deviceplugin.cluster.webhook.pod_json import JsonContainer, child, made_child
from deviceplugin.errors import ParseError
from deviceplugin.kube.quantity import parse_quantity
from deviceplugin.model.units import ResourceNames

_LISTS = ("limits", "requests")


def count(container: JsonContainer, name: str) -> int | None:
    """None where the container does not name it."""
    resources = child(container.json, "resources")
    for each in _LISTS:
        counts = child(resources, each)
        if counts.get(name) is not None:
            return _number(container, name, counts[name])
    return None


def names_any(container: JsonContainer, names: Iterable[str]) -> bool:
    resources = child(container.json, "resources")
    return any(child(resources, each).get(name) is not None for name in names for each in _LISTS)


def asks_any_of_vendor(container: JsonContainer, prefix: str) -> bool:
    resources = child(container.json, "resources")
    return any(name.startswith(prefix) for each in _LISTS for name in child(resources, each))


def is_gpu(container: JsonContainer, names: ResourceNames) -> bool:
    return any(count(container, name) for name in (names.core, names.memory))


def put(container: JsonContainer, name: str, number: int) -> None:
    resources = made_child(container.json, "resources")
    for each in _LISTS:
        made_child(resources, each)[name] = str(number)


def drop(container: JsonContainer, names: Iterable[str]) -> None:
    resources = child(container.json, "resources")
    for each in _LISTS:
        counts = child(resources, each)
        for name in names:
            counts.pop(name, None)


def mirror(container: JsonContainer, names: Iterable[str]) -> None:
    """Copies a limit without a request to the requests, and the reverse."""
    for name in names:
        if not names_any(container, (name,)):
            continue
        resources = made_child(container.json, "resources")
        limits, requests = (made_child(resources, each) for each in _LISTS)
        for source, target in ((limits, requests), (requests, limits)):
            if source.get(name) is not None and target.get(name) is None:
                target[name] = source[name]


def differing(container: JsonContainer, names: Iterable[str]) -> str | None:
    """The first name whose request differs from its limit."""
    resources = child(container.json, "resources")
    limits, requests = (child(resources, each) for each in _LISTS)
    for name in names:
        written = [counts[name] for counts in (limits, requests) if counts.get(name) is not None]
        if len({_number(container, name, each) for each in written}) > 1:
            return name
    return None


def _number(container: JsonContainer, name: str, written: object) -> int:
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ParseError(f"{container.what}: {name} is not a number")
    try:
        return parse_quantity(str(written))
    except ParseError as error:
        raise ParseError(f"{container.what}: {name}: {error.message}") from None
