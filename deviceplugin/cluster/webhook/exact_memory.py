"""Memory in MiB: whole blocks to be placed by, and a limit of exactly what was asked for.

In: a pod whose containers name `vcuda-memory-mib`, over all their GPUs as `vcuda-memory` is. Out: the same pod with
`vcuda-memory`, rounded up for each GPU, and annotation `vcuda-memory-limit` where that is more than was asked for. The
node offers blocks only: kubelet keeps an ID for each unit of a resource, and MiB would be 80,000 of them for a GPU.
"""

from collections.abc import Mapping

from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.pod_json import Json, JsonContainer, annotations, append_items
from deviceplugin.cluster.webhook.resources import count, differing, drop, names_any, put
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.per_container import PerContainer, format_per_container
from deviceplugin.model.pod_limits import MOST_MIB, parse_memory_limits
from deviceplugin.model.units import BLOCK_MIB, ResourceNames


def blocks_from_mib(
    pod: Json, found: list[JsonContainer], parts: PerContainer, settings: WebhookSettings, known: KnownGpus
) -> None:
    """Raises a RequestError for a number that cannot be, and for a container that names both resources."""
    names, limits = settings.names, dict[str, int]()
    for container in found:
        if names_any(container, (names.memory_mib,)):
            gpus = parts.of(container.name)
            each = -(-_asked(container, names) // gpus)
            drop(container, (names.memory_mib,))
            if each:
                put(container, names.memory, blocks_of(each, known) * gpus)
                limits[container.name] = each
    limit_memory(pod, limits, annotation_names(names.domain), known)


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
    """Rounded up; but all of the largest GPU for a request between its whole blocks and one more.

    The memory of most GPUs is no multiple of a block, and HAMi shows its users the number of MiB to the last one.
    """
    blocks = -(-mib // BLOCK_MIB)
    return blocks - 1 if known.largest_blocks and blocks == known.largest_blocks + 1 else blocks


def limit_memory(pod: Json, limits: Mapping[str, int], names: AnnotationNames, known: KnownGpus) -> None:
    """MiB of each GPU, by container. Whole blocks need no limit, and what the user wrote stays."""
    try:
        now = parse_memory_limits(annotations(pod), names)
    except ParseError:
        return  # the user's own annotation is wrong; `validate` denies it
    wanted = {name: mib for name, mib in limits.items() if mib < blocks_of(mib, known) * BLOCK_MIB and not now.of(name)}
    if wanted:
        append_items(pod, names.memory_limit, format_per_container(wanted))
