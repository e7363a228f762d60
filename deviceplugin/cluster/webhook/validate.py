"""Reports pods that can never run, before they wait forever.

In: the pod after `mutate`. Out: warnings about requests that no GPU known today can serve (a node may be added, so this
is not a denial); or a RequestError or ParseError of one sentence that says what to write instead.

How a GPU container could bypass its limits, as far as the pod shows it.

In: the containers of a pod and their requests. Out: a RequestError if a share could not be enforced (the container
sees every device of the node, or mounts something over vcuda's libraries and limits); warnings about what weakens
isolation and may be intended. Not here: what an image or a process does (docs/limits.md).
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping

from deviceplugin.cluster.webhook.mutate import is_left_alone
from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotations,
    child,
    containers,
    naming,
    objects,
    spec,
)
from deviceplugin.cluster.webhook.resources import (
    LIBRARY_PATH,
    KnownGpus,
    count,
    differing,
    is_gpu,
    library_path_is_hidden,
    require_short_path,
    text_of,
)
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import RequestError
from deviceplugin.model.allocation import DRIVER_MOUNT, GRANT_MOUNT
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.annotations import parse_core_limit
from deviceplugin.model.pod import PerContainer, parse_memory_limits
from deviceplugin.model.pod_request import parse_parts, require_room, require_short, size_of
from deviceplugin.model.preferences import (
    AFFINITIES,
    FOREIGN,
    SCHEDULE_ANYWAY,
    SPREAD,
    GpuFilter,
    parse_flag,
    parse_preferences,
    soft_warning,
)
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import BLOCK_MIB, format_blocks

_DRIVERS = ("libcuda", "libnvidia-ml", "libvgpu")
_STRONG = ("ALL", "SYS_ADMIN", "CAP_SYS_ADMIN")


def refuse_open_share(container: JsonContainer, request: Request, settings: WebhookSettings) -> None:
    if not request.is_share:
        return
    if _is_privileged(container):
        raise RequestError(
            f"{container.what} is privileged and asks for a share of a GPU, which it could bypass; "
            f"remove securityContext.privileged, or write {settings.names.core}: 100 for a whole GPU"
        )
    for path in _mounts_over_ours(container):
        raise RequestError(
            f"{container.what} mounts a volume at {ascii(path)[1:-1][:80]}, where vcuda puts the libraries and limits "
            "of a share; mount it somewhere else"
        )


def state_volumes(pod: Json, settings: WebhookSettings) -> Mapping[str, str]:
    """Volumes at, below or above vcuda's directory on the node: by name the path there.

    Collected once for the pod. A pod may have ten thousand volumes and a thousand containers.
    """
    state = settings.state_directory and _normal(settings.state_directory)
    found: dict[str, str] = {}
    for volume in objects(spec(pod), "volumes") if state else ():
        name, path = volume.get("name"), _normal(child(volume, "hostPath").get("path"))
        if isinstance(name, str) and path and (_is_at_or_below(path, state) or _is_at_or_below(state, path)):
            found.setdefault(name, ascii(path)[1:-1][:80])
    return found


def exposures(
    pod: Json, container: JsonContainer, request: Request, settings: WebhookSettings, of_state: Mapping[str, str]
) -> Iterator[str]:
    """Warnings; `of_state` are the pod's `state_volumes`."""
    what, is_share = container.what, request.is_share
    if _is_privileged(container):
        yield f"{what} is privileged and sees every GPU of its node, not only its own"
    for path in _mounted(container, of_state) if of_state else ():
        state = _normal(settings.state_directory)
        yield f"{what} mounts {path} of its node; in {state} vcuda keeps the limits of all containers there"
    if not is_share:
        for path in _mounts_over_ours(container):
            yield f"{what} mounts a volume at {ascii(path)[1:-1][:80]}, where vcuda puts the driver"
        return
    if library_path_is_hidden(container):
        yield f"{what}: {LIBRARY_PATH} has a valueFrom; it must begin with vcuda's directory"
    if any(word in text_of(container, "LD_PRELOAD") for word in _DRIVERS):
        yield f"{what}: LD_PRELOAD names a driver library, which is then loaded before vcuda's"
    if any(name in _STRONG for name in _added_capabilities(container)):
        yield f"{what} adds capability SYS_ADMIN, with which it can move vcuda's files away"
    if spec(pod).get("hostPID") is True:
        yield f"{what} asks for a share of a GPU and sees the processes of other pods, because of spec.hostPID"


def exposures_beside(others: Iterable[JsonContainer]) -> Iterator[str]:
    """Warnings about containers without a GPU in a pod that has some."""
    for each in filter(_is_privileged, others):
        yield f"{each.what} is privileged and sees every GPU of its node, beside the GPU containers of this pod"


def _is_privileged(container: JsonContainer) -> bool:
    return child(container.json, "securityContext").get("privileged") is True


def _added_capabilities(container: JsonContainer) -> list[object]:
    added = child(child(container.json, "securityContext"), "capabilities").get("add")
    return added if isinstance(added, list) else []


def _mounted(container: JsonContainer, volumes: Mapping[str, str]) -> Iterator[str]:
    """The paths of these volumes, each once."""
    mounts = (mount.get("name") for mount in objects(container.json, "volumeMounts"))
    yield from dict.fromkeys(volumes[name] for name in mounts if isinstance(name, str) and name in volumes)


def _normal(path: object) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}") if isinstance(path, str) else ""


def _is_at_or_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _mounts_over_ours(container: JsonContainer) -> Iterator[str]:
    """Mounts at or below a directory of vcuda; vcuda's own mount hides one above it."""
    for mount in objects(container.json, "volumeMounts"):
        path = _normal(mount.get("mountPath"))
        if any(_is_at_or_below(path, ours) for ours in (DRIVER_MOUNT, GRANT_MOUNT)):
            yield path


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
        parse_flag(written[names.socket], "vcuda-socket")
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
    with naming(container):
        request = parse_request(cores, blocks, parts=parts.of(container.name), names=names)
    refuse_open_share(container, request, settings)
    require_short_path(container)
    return request


def _beyond(container: JsonContainer, request: Request, accepted: KnownGpus) -> Iterator[str]:
    if accepted.most and request.gpus > accepted.most:
        what = f"{container.what} asks for {request.gpus} GPUs"
        yield f"{what} and no node has more than {accepted.most}; the pod stays Pending"
    if accepted.kinds and request.blocks_per_gpu > accepted.largest_blocks:
        yield (
            f"{container.what} asks for {format_blocks(request.blocks_per_gpu)} of one GPU and none that the pod "
            f"accepts has more than {format_blocks(accepted.largest_blocks)}; the pod stays Pending"
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
    if not known.kinds or accepted.kinds:
        return
    named = GpuFilter(models=wanted.models)
    if not any(named.admits_model(each.model) for each in known.kinds):
        yield f"no node has a GPU of model {' or '.join(wanted.models)[:100]}; the pod stays Pending"
    else:
        yield "the pod's annotations accept no GPU of any node; the pod stays Pending"
