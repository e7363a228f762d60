"""Translates requests in HAMi's resources into vcuda's, so that such pods run unchanged.

In: a pod whose containers name `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores` (or the names of this
cluster). Out: the same pod with vcuda's resources: the sum of cores and memory over its GPUs, and annotation
`vcuda-gpus` where a share spans several GPUs. `model.preferences` reads HAMi's annotations as they are.

HAMi counts for each GPU, and a missing resource means all of it: without memory all memory, without cores no limit,
without both a whole GPU. All memory of a share is calculated from the smallest known GPU.

A number of GPUs alone does not mark a pod as HAMi's, because NVIDIA's device plugin has the same resource: unless
`scope` is `all`, the pod must also carry something that only HAMi reads. The webhook's matchConditions in the chart say
the same to the API server, and a test holds the two together.
"""

import msgspec

from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotate,
    annotations,
    append_items,
    containers,
    spec,
)
from deviceplugin.cluster.webhook.resources import (
    KnownGpus,
    blocks_of,
    count,
    drop,
    is_gpu,
    limit_memory,
    names_any,
    put,
    rounded_without_knowing,
)
from deviceplugin.config.scheduler import HamiResources, HamiScope, HamiSettings, WebhookSettings
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.pod import MOST_MIB, format_per_container
from deviceplugin.model.pod_request import MOST_PARTS, parse_parts
from deviceplugin.model.preferences import FOREIGN
from deviceplugin.model.units import CORES_PER_GPU, blocks_for

_ALL = 100  # per cent of a GPU's memory
HAMI_SCHEDULER = "hami-scheduler"
HAMI_PREFIX = "hami.io/"
_MODE, _OUR_MODE = "nvidia.com/vgpu-mode", "hami-core"
_BY_INDEX = ("nvidia.com/use-gpuindexes", "nvidia.com/nouse-gpuindexes")
_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_WITHOUT_EFFECT = ("hami.io/device-scoring-weights", "hami.io/numa-alignment")
_IGNORED_POLICIES = (
    ("mutex", "ask for a whole GPU where no other pod may share it"),
    ("numa", "nvidia.com/numa-bind keeps the GPUs of a container on one NUMA node"),
)
HAMI_ANNOTATIONS = tuple(sorted(each for each in (*FOREIGN, _MODE, *_BY_INDEX) if not each.startswith(HAMI_PREFIX)))
"""Named one by one, because the prefix `nvidia.com/` has others."""


class _HamiRequest(msgspec.Struct, frozen=True):
    """Amounts for each of `gpus` (0 or more); `cores` 0 is no limit, `percent` counts where `mib` is 0."""

    gpus: int
    cores: int
    mib: int
    percent: int

    @property
    def is_whole(self) -> bool:
        """All cores by its request, or all memory without a limit of cores."""
        return self.cores == CORES_PER_GPU or (self.cores == 0 and self.mib == 0 and self.percent == _ALL)


def translate(pod: Json, settings: WebhookSettings, known: KnownGpus) -> tuple[str, ...]:
    """Returns warnings; raises a RequestError for a wrong request, and for a container with both kinds of resources."""
    if settings.hami.scope is HamiScope.OFF:
        return ()
    hami = settings.hami.resources
    found = list(containers(pod))
    _refuse_both(found, hami, settings)
    if not is_for_hami(pod, settings.hami):
        return ()
    names = annotation_names(settings.names.domain)
    translated = {each.name: _asked(each, hami) for each in found if names_any(each, hami.all)}
    asked = {name: each for name, each in translated.items() if each.gpus}
    warnings = list(_ignored_annotations(pod, use_gpus=names.use_gpus)) if asked else []
    for container in found:
        if container.name in translated:
            warnings += _above_all(container, hami)
            if names_any(container, (hami.priority,)):
                warnings.append(f"{container.what}: {hami.priority} is ignored; vcuda has no priorities within a GPU")
            warnings += rounded_without_knowing(container, translated[container.name].mib, known)
            drop(container, hami.all)
            _write(container, translated[container.name], settings, known)
    _annotate_parts(pod, {name: 1 if each.is_whole else each.gpus for name, each in asked.items()}, names)
    limit_memory(pod, {name: each.mib for name, each in asked.items() if not each.is_whole}, names, known)
    others = any(each.name not in asked and is_gpu(each, settings.names) for each in found)
    return (*warnings, *_lift_limit(pod, asked, settings, others=others))


def _lift_limit(
    pod: Json, asked: dict[str, _HamiRequest], settings: WebhookSettings, *, others: bool
) -> tuple[str, ...]:
    """The soft limit is an annotation of the pod, so it is lifted only if no other container has a core limit."""
    name = annotation_names(settings.names.domain).core_limit
    limited = others or any(each.cores and not each.is_whole for each in asked.values())
    free = [container for container, each in asked.items() if not each.cores and not each.is_whole]
    if not free or not settings.hami.unlimited_cores or name in annotations(pod):
        return ()
    if not limited:
        annotate(pod, name, str(CORES_PER_GPU))
        return ()
    return tuple(
        f"container {container} names no cores and gets {settings.default_cores} of each GPU, because another "
        "container of the pod has a limit"
        for container in free
    )


def _refuse_both(found: list[JsonContainer], hami: HamiResources, settings: WebhookSettings) -> None:
    ours = (settings.names.core, settings.names.memory)
    for each in found:
        if names_any(each, ours) and names_any(each, hami.all):
            raise RequestError(f"{each.what} asks for GPUs as {ours[0]} and as {hami.count}; use only one of the two")


def _asked(container: JsonContainer, hami: HamiResources) -> _HamiRequest:
    cores = min(CORES_PER_GPU, _counted(container, hami.cores, "cores of one GPU, at most 100"))
    mib = _counted(container, hami.memory, "the MiB of one GPU, 4096 for 4 GiB", at_most=MOST_MIB)
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


def _above_all(container: JsonContainer, hami: HamiResources) -> list[str]:
    """HAMi reads more than 100 cores as 100."""
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
        put(container, names.memory, blocks_of(asked.mib, known) * asked.gpus)
    elif not asked.is_whole:
        put(container, names.memory, _part_of_memory(container, asked, settings, known) * asked.gpus)


def _part_of_memory(container: JsonContainer, asked: _HamiRequest, settings: WebhookSettings, known: KnownGpus) -> int:
    if not known.smallest_blocks:
        raise RequestError(
            f"{container.what} asks for {asked.percent} % of a GPU's memory and no GPU is known yet; write "
            f"{settings.hami.resources.memory}, or try again when a node has its GPUs"
        )
    return blocks_for(asked.percent, known.smallest_blocks)


def _annotate_parts(pod: Json, parts: dict[str, int], names: AnnotationNames) -> None:
    """Later items of the annotation win, so the user's items for other containers stay."""
    try:
        now = parse_parts(annotations(pod), names)
    except ParseError:
        return  # the user's own annotation is wrong; `validate` denies it
    wanted = format_per_container({name: number for name, number in parts.items() if now.of(name) != number})
    if wanted:
        append_items(pod, names.gpus, wanted)


def is_for_hami(pod: Json, hami: HamiSettings) -> bool:
    found = list(containers(pod))
    if any(names_any(each, hami.resources.marks) for each in found):
        return True
    asks = any(names_any(each, (hami.resources.count,)) for each in found)
    return asks and (hami.scope is HamiScope.ALL or _is_marked(pod))


def _is_marked(pod: Json) -> bool:
    if spec(pod).get("schedulerName") == HAMI_SCHEDULER:
        return True
    return any(name in HAMI_ANNOTATIONS or name.startswith(HAMI_PREFIX) for name in annotations(pod))


def _ignored_annotations(pod: Json, *, use_gpus: str) -> tuple[str, ...]:
    """Warnings about annotations that vcuda ignores; a RequestError if the pod would get something else."""
    written = annotations(pod)
    mode = written.get(_MODE)
    if mode is not None and _OUR_MODE not in mode:
        raise RequestError(
            f"annotation {_MODE} is {ascii(mode)[:40]}, but vcuda shares GPUs as {_OUR_MODE} does; write "
            f"{_OUR_MODE} or leave it out"
        )
    by_index = [name for name in _BY_INDEX if name in written]
    words = {word.strip().lower() for word in written.get(_GPU_POLICY, "").split(",")}
    return (
        *(f"annotation {name} is ignored; name GPUs by UUID in {use_gpus}" for name in by_index),
        *(f"annotation {name} is ignored; vcuda has no such setting" for name in _WITHOUT_EFFECT if name in written),
        *(f"annotation {_GPU_POLICY}: {word} is ignored; {why}" for word, why in _IGNORED_POLICIES if word in words),
    )
