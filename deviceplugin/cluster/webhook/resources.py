"""What a container asks for and what it sees: its `resources`, memory in MiB, and two environment variables.

Reads and writes the `resources` of a container.

In: one container of a pod's JSON. Out: whole numbers, or an error that names container and resource. A limit counts, or
the request where there is no limit. Kubernetes requires both to be equal for extended resources, so both are written; a
request that differs from its limit stays, and `validate` reports it.

The two environment variables that decide which GPUs a container sees.

In: a container of the pod's JSON. Out: the same container, changed in place. `LD_LIBRARY_PATH`, where the pod sets it,
must begin with the directory of vcuda's libraries. `NVIDIA_VISIBLE_DEVICES` of a GPU container is set by the agent
only. kubelet prefers the pod's own value, so a container could otherwise load the driver itself, or get all GPUs from a
container runtime that injects them. For such a runtime, a container without a GPU request gets `none`. Of a variable
written twice the last one counts. Values from `envFrom` are not visible here.

Memory in MiB: whole blocks to be placed by, and a limit of exactly what was asked for.

In: a pod whose containers name `vcuda-memory-mib`, over all their GPUs as `vcuda-memory` is. Out: the same pod with
`vcuda-memory`, rounded up for each GPU, and annotation `vcuda-memory-limit` where that is more than was asked for. The
node offers blocks only: kubelet keeps an ID for each unit of a resource, and MiB would be 80,000 of them for a GPU.
"""

from collections.abc import Iterable, Mapping

from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotations,
    append_items,
    child,
    made_child,
    objects,
)
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.kube.structs import parse_quantity
from deviceplugin.model.allocation import libraries_of, require_short_library_path
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.pod import MOST_MIB, PerContainer, format_per_container, parse_memory_limits
from deviceplugin.model.units import BLOCK_MIB, ResourceNames, format_blocks

_LISTS = ("limits", "requests")


def count(container: JsonContainer, name: str) -> int | None:
    """None if the container does not name it."""
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


LIBRARY_PATH = "LD_LIBRARY_PATH"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_COMPAT = "compat32"
_NVIDIA = "nvidia.com/"


def put_our_libraries_first(container: JsonContainer) -> None:
    written = _value(container, _COMPAT)
    ours = libraries_of(written if isinstance(written, str) else "")
    for variable in _named(container, LIBRARY_PATH):
        own = variable.get("value")
        if own is not None and not isinstance(own, str):
            continue
        if "valueFrom" in variable or (own or "").split(":")[0] == ours:
            continue
        variable["value"] = f"{ours}:{own}" if own else ours


def leave_choice_to_the_agent(container: JsonContainer) -> None:
    if _named(container, _VISIBLE):
        rest = [each for each in objects(container.json, "env") if each.get("name") != _VISIBLE]
        container.json["env"] = rest


def library_path_is_hidden(container: JsonContainer) -> bool:
    """Whether `LD_LIBRARY_PATH` has a `valueFrom`, so that vcuda's directory cannot be put first."""
    return any("valueFrom" in variable for variable in _named(container, LIBRARY_PATH)[-1:])


def require_short_path(container: JsonContainer) -> None:
    """The agent refuses it too, when the pod is on a node."""
    value = _value(container, LIBRARY_PATH)
    require_short_library_path(value if isinstance(value, str) else "", container.what)


def preloaded(container: JsonContainer) -> str:
    """`LD_PRELOAD`, as far as the pod itself has it."""
    value = _value(container, "LD_PRELOAD")
    return value if isinstance(value, str) else ""


def hide_gpus(container: JsonContainer) -> None:
    """Leaves a container alone that requests GPUs of NVIDIA's own plugin."""
    if asks_any_of_vendor(container, _NVIDIA):
        return
    found = _named(container, _VISIBLE)
    if not found:
        container.json["env"] = [*objects(container.json, "env"), {"name": _VISIBLE, "value": "none"}]
    for variable in found:
        variable.pop("valueFrom", None)
        variable["value"] = "none"


def _named(container: JsonContainer, name: str) -> list[Json]:
    return [each for each in objects(container.json, "env") if each.get("name") == name]


def _value(container: JsonContainer, name: str) -> object:
    return next((each.get("value") for each in reversed(_named(container, name))), None)


def blocks_from_mib(
    pod: Json, found: list[JsonContainer], parts: PerContainer, settings: WebhookSettings, known: KnownGpus
) -> tuple[str, ...]:
    """Returns warnings; raises a RequestError for a number that cannot be, and if a container names both resources."""
    names, limits, warnings = settings.names, dict[str, int](), tuple[str, ...]()
    for container in found:
        if names_any(container, (names.memory_mib,)):
            gpus = parts.of(container.name)
            each = -(-_asked(container, names) // gpus)
            drop(container, (names.memory_mib,))
            if each:
                put(container, names.memory, blocks_of(each, known) * gpus)
                limits[container.name] = each
                warnings += rounded_without_knowing(container, each, known)
    limit_memory(pod, limits, annotation_names(names.domain), known)
    return warnings


def _asked(container: JsonContainer, names: ResourceNames) -> int:
    if names_any(container, (names.memory,)):
        raise RequestError(f"{container.what} asks for {names.memory} and for {names.memory_mib}; use one of the two")
    if differing(container, (names.memory_mib,)):
        raise RequestError(
            f"{container.what}: {names.memory_mib} differs between requests and limits; write limits only"
        )
    mib = count(container, names.memory_mib) or 0
    if not 0 <= mib <= MOST_MIB:
        raise RequestError(f"{container.what}: {names.memory_mib}: {mib} is not possible; write MiB, 4096 for 4 GiB")
    return mib


def blocks_of(mib: int, known: KnownGpus) -> int:
    """Rounded up; but all of a GPU for a request between its whole blocks and its last MiB.

    The memory of most GPUs is no multiple of a block, and HAMi shows its users the number of MiB to the last one. What
    only one node reports does not count while another GPU has room, so that one node cannot change the memory of pods
    in the whole cluster. `known` has only GPUs that the pod accepts.
    """
    whole, rest = divmod(mib, BLOCK_MIB)
    if not rest:
        return whole
    agreed = tuple(each for each in known.kinds if each.nodes > 1)
    counted = agreed if any(each.blocks > whole for each in agreed) else known.kinds
    return whole if any(each.blocks == whole and mib <= each.mib for each in counted) else whole + 1


def rounded_without_knowing(container: JsonContainer, mib: int, known: KnownGpus) -> tuple[str, ...]:
    """The warning of a request that may be all of a GPU while no GPU is known; it is then rounded up."""
    if known.most or not mib % BLOCK_MIB:
        return ()
    blocks = format_blocks(blocks_of(mib, known))
    warning = (
        f"{container.what} asks for {mib} MiB and no GPU is known yet; they become {blocks}, for which a GPU of "
        f"exactly {mib} MiB has no room"
    )
    return (warning,)


def limit_memory(pod: Json, limits: Mapping[str, int], names: AnnotationNames, known: KnownGpus) -> None:
    """MiB of each GPU, by container. Whole blocks need no limit, and what the user wrote stays."""
    try:
        now = parse_memory_limits(annotations(pod), names)
    except ParseError:
        return  # the user's own annotation is wrong; `validate` denies it
    wanted = {name: mib for name, mib in limits.items() if mib < blocks_of(mib, known) * BLOCK_MIB and not now.of(name)}
    if wanted:
        append_items(pod, names.memory_limit, format_per_container(wanted))
