"""Requests as HAMi writes them, put into our resources, so that such pods run unchanged.

In: a pod whose containers name `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores` (or what they are called
here). Out: the same pod in our words: the sum of its GPUs' cores and memory, and annotation `vcuda-gpus` where a share
goes over several. Not here: which pods are HAMi's (`hami_pods`), and HAMi's annotations, which `model.preferences`
reads as they are.

HAMi counts for each GPU, and what is left out means all of it: no memory is all memory, no cores no limit, neither is a
whole GPU. All memory of a share is reckoned from the smallest GPU known.
"""

from dataclasses import dataclass

from deviceplugin.cluster.webhook.hami_pods import is_for_hami, unread
from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.pod_json import Json, JsonContainer, annotate, annotations, containers
from deviceplugin.cluster.webhook.resources import count, drop, is_gpu, names_any, put
from deviceplugin.config.webhook import HamiScope, HamiSettings, WebhookSettings
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.pod_request import MOST_PARTS, format_parts, parse_parts
from deviceplugin.model.units import BLOCK_MIB, CORES_PER_GPU

_ALL = 100  # per cent of a GPU's memory
_MOST_MIB = 1 << 24  # 16 TiB: who asks more of one GPU has counted in bytes


@dataclass(frozen=True, slots=True)
class _HamiRequest:
    """Of each of `gpus`, of which there may be none; `cores` 0 is no limit, `percent` counts where `mib` is 0."""

    gpus: int
    cores: int
    mib: int
    percent: int

    @property
    def is_whole(self) -> bool:
        """All of the time by its word, or all of the memory with no limit of the time."""
        return self.cores == CORES_PER_GPU or (self.cores == 0 and self.mib == 0 and self.percent == _ALL)


def translate(pod: Json, settings: WebhookSettings, known: KnownGpus) -> tuple[str, ...]:
    """Warnings; RequestError for what has no meaning, and for a container that speaks both languages."""
    hami = settings.hami
    if hami.scope is HamiScope.OFF:
        return ()
    found = list(containers(pod))
    _refuse_both(found, hami, settings)
    if not is_for_hami(pod, hami):
        return ()
    names = annotation_names(settings.names.domain)
    translated = {each.name: _asked(each, hami) for each in found if names_any(each, hami.resources)}
    asked = {name: each for name, each in translated.items() if each.gpus}
    warnings = list(unread(pod, use_gpus=names.use_gpus)) if asked else []
    for container in found:
        if container.name in translated:
            warnings += _above_all(container, hami)
            drop(container, hami.resources)
            _write(container, translated[container.name], settings, known)
    _annotate_parts(pod, {name: 1 if each.is_whole else each.gpus for name, each in asked.items()}, names)
    others = any(each.name not in asked and is_gpu(each, settings.names) for each in found)
    return (*warnings, *_lift_limit(pod, asked, settings, others=others))


def _lift_limit(
    pod: Json, asked: dict[str, _HamiRequest], settings: WebhookSettings, *, others: bool
) -> tuple[str, ...]:
    """The soft limit is the pod's, so a share that names no cores has none only where no other container has one."""
    name = annotation_names(settings.names.domain).core_limit
    limited = others or any(each.cores and not each.is_whole for each in asked.values())
    free = [container for container, each in asked.items() if not each.cores and not each.is_whole]
    if not free or not settings.hami.unlimited_cores or name in annotations(pod):
        return ()
    if not limited:
        annotate(pod, name, str(CORES_PER_GPU))
        return ()
    return tuple(
        f"container {container} names no cores and gets {settings.default_cores} of each GPU, for another container of "
        "the pod has a limit"
        for container in free
    )


def _refuse_both(found: list[JsonContainer], hami: HamiSettings, settings: WebhookSettings) -> None:
    ours = (settings.names.core, settings.names.memory)
    for each in found:
        if names_any(each, ours) and names_any(each, hami.resources):
            raise RequestError(
                f"{each.what} asks for GPUs as {ours[0]} and as {hami.count}; write one of the two and leave the other"
            )


def _asked(container: JsonContainer, hami: HamiSettings) -> _HamiRequest:
    cores = min(CORES_PER_GPU, _counted(container, hami.cores, "cores of one GPU, at most 100"))
    mib = _counted(container, hami.memory, "the MiB of one GPU, 4096 for 4 GiB", at_most=_MOST_MIB)
    percent = _counted(container, hami.memory_percentage, f"1 to {_ALL}, in per cent of one GPU", at_most=_ALL)
    gpus = count(container, hami.count)
    if gpus is None:
        gpus = 1 if names_any(container, (hami.cores, hami.memory, hami.memory_percentage)) else 0
    if not 0 <= gpus <= MOST_PARTS:
        raise RequestError(f"{container.what}: {hami.count}: {gpus} is not possible; write 1 to {MOST_PARTS}")
    return _HamiRequest(gpus, cores, mib, percent or _ALL)


def _counted(container: JsonContainer, name: str, wanted: str, *, at_most: int | None = None) -> int:
    number = count(container, name) or 0
    if number < 0 or (at_most is not None and number > at_most):
        raise RequestError(f"{container.what}: {name}: {number} is not possible; write {wanted}")
    return number


def _above_all(container: JsonContainer, hami: HamiSettings) -> list[str]:
    """HAMi takes more than all cores for all cores."""
    cores = count(container, hami.cores) or 0
    if cores <= CORES_PER_GPU:
        return []
    return [f"{container.what}: {hami.cores}: {cores} is read as {CORES_PER_GPU}, all of each GPU"]


def _write(container: JsonContainer, asked: _HamiRequest, settings: WebhookSettings, known: KnownGpus) -> None:
    if not asked.gpus:
        return
    names = settings.names
    cores = CORES_PER_GPU if asked.is_whole else asked.cores or settings.default_cores
    if cores:
        put(container, names.core, cores * asked.gpus)
    if asked.mib:
        put(container, names.memory, -(-asked.mib // BLOCK_MIB) * asked.gpus)
    elif not asked.is_whole:
        put(container, names.memory, _part_of_memory(container, asked, settings, known) * asked.gpus)


def _part_of_memory(container: JsonContainer, asked: _HamiRequest, settings: WebhookSettings, known: KnownGpus) -> int:
    if not known.smallest_blocks:
        raise RequestError(
            f"{container.what} asks for {asked.percent} % of a GPU's memory and no GPU is known yet; write "
            f"{settings.hami.memory}, or try again when a node has its GPUs"
        )
    return max(1, known.smallest_blocks * asked.percent // 100)


def _annotate_parts(pod: Json, parts: dict[str, int], names: AnnotationNames) -> None:
    """Later items of the annotation win, so what the user wrote about other containers stays."""
    try:
        now = parse_parts(annotations(pod), names)
    except ParseError:
        return  # it is the user's, and denied with its own sentence
    wanted = format_parts({name: number for name, number in parts.items() if now.of(name) != number})
    if wanted:
        written = annotations(pod).get(names.gpus)
        annotate(pod, names.gpus, f"{written},{wanted}" if written else wanted)
