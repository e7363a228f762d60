"""What a container gets that names only one of cores and memory.

In: a container and over how many GPUs its share goes. Out: the container with both written, or as it was, where the
operator wants it said or where nothing can be reckoned; `validate` then denies it. Whole GPUs need no memory.
"""

from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.pod_json import JsonContainer
from deviceplugin.cluster.webhook.resources import count, put
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.model.units import CORES_PER_GPU


def complete(container: JsonContainer, parts: int, settings: WebhookSettings, known: KnownGpus) -> None:
    names = settings.names
    cores, blocks = count(container, names.core) or 0, count(container, names.memory) or 0
    if cores == 0 and blocks > 0 and settings.default_cores:
        put(container, names.core, settings.default_cores * parts)
    elif 0 < cores < CORES_PER_GPU * parts and blocks == 0 and cores % parts == 0:
        each = _blocks_for(cores // parts, settings, known)
        if each:
            put(container, names.memory, each * parts)


def _blocks_for(cores: int, settings: WebhookSettings, known: KnownGpus) -> int:
    """Of one GPU; 0 where nothing is to be given."""
    if not settings.share_memory.proportional:
        return settings.share_memory.blocks
    return max(1, known.smallest_blocks * cores // CORES_PER_GPU) if known.smallest_blocks else 0
