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
from deviceplugin.model.units import BLOCK_MIB, ResourceNames, format_blocks


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
    agreed = tuple(card for card in known.cards if card.nodes > 1)
    counted = agreed if any(card.blocks > whole for card in agreed) else known.cards
    return whole if any(card.blocks == whole and mib <= card.mib for card in counted) else whole + 1


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
