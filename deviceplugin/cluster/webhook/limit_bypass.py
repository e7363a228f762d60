"""How a GPU container could bypass its limits, as far as the pod shows it.

In: the containers of a pod and their requests. Out: a RequestError where a share could not be enforced (the container
sees every device of the node, or mounts something over vcuda's libraries and limits); warnings about what weakens
isolation and may be intended. Not here: what an image or a process does (docs/enforcement.md).
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping

from deviceplugin.cluster.webhook.environment import LIBRARY_PATH, library_path_is_hidden, preloaded
from deviceplugin.cluster.webhook.pod_json import Json, JsonContainer, child, objects, spec
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.errors import RequestError
from deviceplugin.model.mount import DRIVER_MOUNT, GRANT_MOUNT
from deviceplugin.model.request import Request

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
    if settings.library_path and library_path_is_hidden(container):
        yield f"{what}: {LIBRARY_PATH} has a valueFrom; it must begin with vcuda's directory"
    if any(word in preloaded(container) for word in _DRIVERS):
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
