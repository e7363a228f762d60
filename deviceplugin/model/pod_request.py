"""The request of a whole pod: each GPU container with its request, and the preferences of the pod.

In: a pod as `kube` decodes it. Out: `PodRequest`, or the RequestError or ParseError with the sentence for the user.
Containers are in the order in which kubelet admits them. Pods with equal requests have equal `shape`, so placement may
answer both from one calculation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.errors import RequestError
from deviceplugin.model.allocation import ContainerRole, PodRef
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.annotation_size import require_room
from deviceplugin.model.per_container import PerContainer, parse_per_container
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.preferences import NO_PREFERENCES, Preferences, parse_preferences
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import ResourceNames

MOST_PARTS = 16  # the capacity of the limits file (library/abi/limits.h)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container that requests GPUs; `index` is its position in its own list."""

    name: str
    role: ContainerRole
    index: int
    request: Request


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A pod without GPUs has no containers here."""

    pod: PodRef
    containers: tuple[ContainerRequest, ...]
    preferences: Preferences = NO_PREFERENCES

    @property
    def shape(self) -> tuple[object, ...]:
        """All that placement uses, without names."""
        asked = tuple((each.role, each.index, each.request) for each in self.containers)
        return (asked, self.preferences)


def pod_request(pod: Pod, names: ResourceNames = ResourceNames()) -> PodRequest:
    """`share_mode` of the node is not checked here. If there are several containers, an error names its container."""
    known = annotation_names(names.domain)
    parts = parse_parts(pod.annotations, known)
    asking = [each for each in pod.containers if each.is_gpu]
    return PodRequest(
        pod=pod.ref,
        containers=tuple(
            ContainerRequest(each.ref.name, each.role, each.index, _named(each, parts, names, alone=len(asking) == 1))
            for each in asking
        ),
        preferences=parse_preferences(pod.annotations, known),
    )


def placeable_request(pod: Pod, names: ResourceNames = ResourceNames()) -> PodRequest:
    """The same for a pod that is to be placed: its GPUs will be written to it, and it must have room for that."""
    found = pod_request(pod, names)
    asked = ((each.name, each.request) for each in found.containers)
    require_room(pod.annotation_bytes, asked, annotation_names(names.domain))
    return found


def _named(container: PodContainer, parts: PerContainer, names: ResourceNames, *, alone: bool) -> Request:
    try:
        return _request(container, parts, names)
    except RequestError as error:
        if alone:
            raise
        raise RequestError(f"container {container.ref.name}: {error.message}") from None


def container_request(
    pod: Pod, container: PodContainer, *, share_mode: bool = True, names: ResourceNames = ResourceNames()
) -> Request:
    """The request of one container."""
    parts = parse_parts(pod.annotations, annotation_names(names.domain))
    return _request(container, parts, names, share_mode)


def _request(container: PodContainer, parts: PerContainer, names: ResourceNames, share_mode: bool = True) -> Request:
    count = parts.of(container.ref.name)
    return parse_request(container.cores, container.blocks, parts=count, share_mode=share_mode, names=names)


def parse_parts(annotations: Mapping[str, str], names: AnnotationNames) -> PerContainer:
    """Over how many GPUs the share of a container is spread."""
    text = annotations.get(names.gpus)
    if text is None:
        return PerContainer(1)
    return parse_per_container(text, names.gpus, absent=1, most=MOST_PARTS, wanted="a number of GPUs")
