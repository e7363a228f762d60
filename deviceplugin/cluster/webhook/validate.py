"""Reports pods that can never run, before they wait forever.

In: the pod after `mutate`. Out: warnings about requests that no GPU known today can serve (a node may be added, so this
is not a denial); or a RequestError or ParseError of one sentence that says what to write instead.
"""

from collections.abc import Iterator

from deviceplugin.cluster.webhook.environment import require_short_path
from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.limit_bypass import exposures, exposures_beside, refuse_open_share, state_volumes
from deviceplugin.cluster.webhook.mutate import is_left_alone
from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotations,
    child,
    containers,
    objects,
    spec,
)
from deviceplugin.cluster.webhook.resources import count, differing, is_gpu
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.errors import RequestError
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.annotation_size import require_room, require_short, size_of
from deviceplugin.model.annotations import parse_core_limit, parse_socket
from deviceplugin.model.per_container import PerContainer
from deviceplugin.model.pod_limits import parse_memory_limits
from deviceplugin.model.pod_request import parse_parts
from deviceplugin.model.preferences import FOREIGN, GpuFilter, parse_preferences
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.soft_rules import AFFINITIES, SCHEDULE_ANYWAY, SPREAD, soft_warning
from deviceplugin.model.units import BLOCK_MIB, format_blocks

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def validate(pod: Json, settings: WebhookSettings, known: KnownGpus) -> tuple[str, ...]:
    if is_left_alone(pod, settings):
        return ()
    found = list(containers(pod))
    asking = [each for each in found if is_gpu(each, settings.names)]
    if not asking:
        return ()
    names = annotation_names(settings.names.domain)
    written = annotations(pod)
    require_short(size_of({name: text for name, text in written.items() if name in names.user_written | FOREIGN}))
    parts, limits = parse_parts(written, names), parse_memory_limits(written, names)
    _check_names(parts, asking, names.gpus)
    _check_names(limits, asking, names.memory_limit)
    preferences = parse_preferences(written, names)
    if names.core_limit in written:
        parse_core_limit(written[names.core_limit])
    if names.socket in written:
        parse_socket(written[names.socket])
    accepted = known.admitted_by(preferences.gpus)
    asked = [(each, _request(each, parts, settings)) for each in asking]
    if not settings.claims:
        require_room(size_of(written), ((each.name, request) for each, request in asked), names)
    of_state = state_volumes(pod, settings)
    about_each = (
        warning
        for container, request in asked
        for warning in (
            *exposures(pod, container, request, settings, of_state),
            *_beyond(container, request, accepted),
            *_no_limit(container, request, limits, names),
        )
    )
    beside = exposures_beside(each for each in found if not is_gpu(each, settings.names))
    return (*about_each, *beside, *_no_such_gpu(preferences.gpus, known, accepted), *_without_effect(pod, settings))


def _without_effect(pod: Json, settings: WebhookSettings) -> Iterator[str]:
    """Of a pod that another scheduler places, or by claims, every rule counts."""
    inside = spec(pod)
    if not settings.one_node or settings.claims or inside.get("schedulerName") != settings.scheduler_name:
        return
    affinity = child(inside, "affinity")
    kinds = zip(AFFINITIES, ("nodeAffinity", "podAffinity", "podAntiAffinity"), strict=True)
    found = [rule for rule, each in kinds if child(affinity, each).get(_PREFERRED)]
    if any(each.get("whenUnsatisfiable") == SCHEDULE_ANYWAY for each in objects(inside, "topologySpreadConstraints")):
        found.append(SPREAD)
    if found:
        yield soft_warning(found)


def _check_names(numbers: PerContainer, asking: list[JsonContainer], annotation: str) -> None:
    here = sorted(each.name for each in asking)
    for name in sorted(set(numbers.by_name) - set(here)):
        raise RequestError(
            f"annotation {annotation} names container {name}, which asks for no GPU; the containers that do are "
            f"{', '.join(here)[:200]}"
        )


def _request(container: JsonContainer, parts: PerContainer, settings: WebhookSettings) -> Request:
    names = settings.names
    cores, blocks = count(container, names.core) or 0, count(container, names.memory) or 0
    unlike = differing(container, (names.core, names.memory))
    if unlike is not None:
        raise RequestError(
            f"{container.what}: {unlike} differs between requests and limits; Kubernetes requires them to be equal, so "
            "remove it from requests"
        )
    try:
        request = parse_request(cores, blocks, parts=parts.of(container.name), names=names)
    except RequestError as error:
        raise RequestError(f"{container.what}: {error.message}") from None
    refuse_open_share(container, request, settings)
    require_short_path(container)
    return request


def _beyond(container: JsonContainer, request: Request, accepted: KnownGpus) -> Iterator[str]:
    if accepted.most and request.gpus > accepted.most:
        yield f"{container.what} asks for {request.gpus} GPUs and no node has more than {accepted.most}; the pod waits"
    if accepted.cards and request.blocks_per_gpu > accepted.largest_blocks:
        yield (
            f"{container.what} asks for {format_blocks(request.blocks_per_gpu)} of one GPU and none that the pod "
            f"accepts has more than {format_blocks(accepted.largest_blocks)}; the pod waits"
        )


def _no_limit(
    container: JsonContainer, request: Request, limits: PerContainer, names: AnnotationNames
) -> Iterator[str]:
    mib = limits.of(container.name)
    if mib and not request.is_share:
        yield f"{container.what} has whole GPUs and all their memory; annotation {names.memory_limit} is ignored"
    elif mib > request.blocks_per_gpu * BLOCK_MIB:
        yield (
            f"annotation {names.memory_limit} gives {container.what} {mib} MiB of each GPU, but it asks for "
            f"{format_blocks(request.blocks_per_gpu)}; that is its limit"
        )


def _no_such_gpu(wanted: GpuFilter, known: KnownGpus, accepted: KnownGpus) -> Iterator[str]:
    if not known.cards or accepted.cards:
        return
    named = GpuFilter(models=wanted.models)
    if not any(named.admits_model(card.model) for card in known.cards):
        yield f"no node has a GPU of model {' or '.join(wanted.models)[:100]}; the pod waits"
    else:
        yield "the pod's annotations accept no GPU of any node; the pod waits"
