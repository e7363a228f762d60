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

What is known of the cluster's GPUs when a pod is reviewed.

In: inventories as the nodes carry them. Out: a frozen value. It is empty until a node has reported its GPUs; then no
share of a GPU's memory is calculated, and no request is called too large.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

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
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import MOST_MIB, PerContainer, format_per_container, parse_memory_limits
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.units import BLOCK_MIB, MIB, ResourceNames, format_blocks
from deviceplugin.structs import replace


class GpuKind(msgspec.Struct, frozen=True):
    """GPUs of one model with the same memory; `nodes` is how many nodes report it."""

    model: str
    mib: int
    nodes: int = 1
    uuids: frozenset[GpuUuid] = frozenset()

    @property
    def blocks(self) -> int:
        return self.mib // BLOCK_MIB

    def is_admitted_by(self, wanted: GpuFilter) -> bool:
        """Looks through the pod's list, which is short, and not through the GPUs of the cluster."""
        if wanted.uuids:
            has_one = not self.uuids.isdisjoint(wanted.uuids - wanted.not_uuids)
        else:
            has_one = not wanted.not_uuids or not self.uuids <= wanted.not_uuids
        return has_one and wanted.admits_model(self.model)


class KnownGpus(msgspec.Struct, frozen=True):
    """What the nodes' inventories say together; `most` is the largest number of GPUs of one node.

    `smallest_blocks` decides how much memory pods get in the whole cluster, and a node's inventory is only as
    trustworthy as the node. So it is not the least of all values: see `_without_outliers`.
    """

    smallest_blocks: int = 0
    most: int = 0
    kinds: tuple[GpuKind, ...] = ()

    @classmethod
    def of(cls, inventories: Iterable[Inventory]) -> "KnownGpus":
        """Unhealthy GPUs count: they may come back, and a pod can wait for them. GPUs without a block do not."""
        counts, smallest = [0], list[int]()
        nodes, uuids = Counter[tuple[str, int]](), defaultdict[tuple[str, int], set[GpuUuid]](set)
        for inventory in inventories:
            here = dict[tuple[str, int], list[GpuUuid]]()
            for gpu in inventory.gpus:  # 40,000 in a large cluster, on the event loop
                here.setdefault((gpu.model, gpu.memory_bytes // MIB), []).append(gpu.uuid)
            counts.append(len(inventory.gpus))
            smallest += _smallest(mib // BLOCK_MIB for _, mib in here)
            for kind, found in here.items():
                nodes[kind] += 1
                uuids[kind].update(found)
        kinds = tuple(GpuKind(*kind, count, frozenset(uuids[kind])) for kind, count in sorted(nodes.items()))
        return cls(_without_outliers(smallest), max(counts), kinds)

    def admitted_by(self, wanted: GpuFilter) -> "KnownGpus":
        """The same with only those kinds that a pod accepts."""
        if wanted == ANY_GPU:
            return self
        return replace(self, kinds=tuple(each for each in self.kinds if each.is_admitted_by(wanted)))

    @property
    def largest_blocks(self) -> int:
        return max((each.blocks for each in self.kinds), default=0)


def _smallest(blocks: Iterable[int]) -> list[int]:
    """None or one."""
    return sorted(filter(None, blocks))[:1]


def _without_outliers(smallest: list[int]) -> int:
    """The smallest GPU of all nodes but a tenth of them (at least one), those with the smallest GPUs.

    Of two nodes nobody can say which one is wrong, so both count.
    """
    if not smallest:
        return 0
    ignored = min(max(1, len(smallest) // 10), (len(smallest) - 1) // 2)
    return sorted(smallest)[ignored]


_LISTS = ("limits", "requests")


def count(container: JsonContainer, name: str) -> int | None:
    """None if the container does not name it."""
    written = (counts[name] for counts in _limits_and_requests(container) if counts.get(name) is not None)
    return next((_number(container, name, each) for each in written), None)


def names_any(container: JsonContainer, names: Iterable[str]) -> bool:
    lists = _limits_and_requests(container)
    return any(counts.get(name) is not None for name in names for counts in lists)


def is_gpu(container: JsonContainer, names: ResourceNames) -> bool:
    return any(count(container, name) for name in (names.core, names.memory))


def put(container: JsonContainer, name: str, number: int) -> None:
    resources = made_child(container.json, "resources")
    for each in _LISTS:
        made_child(resources, each)[name] = str(number)


def drop(container: JsonContainer, names: Iterable[str]) -> None:
    for counts in _limits_and_requests(container):
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
    lists = _limits_and_requests(container)
    for name in names:
        written = [counts[name] for counts in lists if counts.get(name) is not None]
        if len({_number(container, name, each) for each in written}) > 1:
            return name
    return None


def _limits_and_requests(container: JsonContainer) -> tuple[Json, ...]:
    resources = child(container.json, "resources")
    return tuple(child(resources, each) for each in _LISTS)


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
    ours = libraries_of(text_of(container, _COMPAT))
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
    require_short_library_path(text_of(container, LIBRARY_PATH), container.what)


def hide_gpus(container: JsonContainer) -> None:
    """Leaves a container alone that requests GPUs of NVIDIA's own plugin."""
    if any(name.startswith(_NVIDIA) for counts in _limits_and_requests(container) for name in counts):
        return
    found = _named(container, _VISIBLE)
    if not found:
        container.json["env"] = [*objects(container.json, "env"), {"name": _VISIBLE, "value": "none"}]
    for variable in found:
        variable.pop("valueFrom", None)
        variable["value"] = "none"


def _named(container: JsonContainer, name: str) -> list[Json]:
    return [each for each in objects(container.json, "env") if each.get("name") == name]


def text_of(container: JsonContainer, name: str) -> str:
    """A variable as far as the pod itself has it; empty where it has none."""
    value = next((each.get("value") for each in reversed(_named(container, name))), None)
    return value if isinstance(value, str) else ""


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
