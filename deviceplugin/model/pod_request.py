"""The request of a whole pod: each GPU container with its request, and the preferences of the pod.

In: a pod as `kube` decodes it. Out: `PodRequest`, or the RequestError or ParseError with the sentence for the user.
Containers are in the order in which kubelet admits them. Pods with equal requests have equal `shape`, so placement may
answer both from one calculation.

Invariant: after a decision the decision counts. The owner of a bound pod can change its annotations, so over how many
GPUs a container is spread is then read from the allocation that vcuda wrote.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import ContainerRole, PodRef
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.annotation_size import require_room, require_short
from deviceplugin.model.annotations import trusted_allocation
from deviceplugin.model.pod import PerContainer, Pod, PodContainer, parse_per_container
from deviceplugin.model.preferences import NO_PREFERENCES, Preferences, parse_preferences
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import ResourceNames

MOST_PARTS = 16  # the capacity of the limits file (library/abi/limits.h)
MOST_GPU_CONTAINERS = 64
"""Of one pod, init containers and sidecars included: placement compares each with all GPUs of many nodes."""


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

    def container(self, name: str) -> ContainerRequest:
        return next(each for each in self.containers if each.name == name)

    @property
    def shape(self) -> tuple[object, ...]:
        """All that placement uses, without names."""
        asked = tuple((each.role, each.index, each.request) for each in self.containers)
        return (asked, self.preferences)


def pod_request(pod: Pod, names: ResourceNames = ResourceNames()) -> PodRequest:
    """`share_mode` of the node is not checked here. If there are several containers, an error names its container."""
    asking = [each for each in pod.containers if each.is_gpu]
    require_few(len(asking))
    parts, preferences = _written(pod, asking, annotation_names(names.domain))
    return PodRequest(
        pod=pod.ref,
        containers=tuple(
            ContainerRequest(each.ref.name, each.role, each.index, _named(each, parts, names, alone=len(asking) == 1))
            for each in asking
        ),
        preferences=preferences,
    )


def require_few(gpu_containers: int) -> None:
    """Raises RequestError if the pod has more GPU containers than are placed together."""
    if gpu_containers > MOST_GPU_CONTAINERS:
        raise RequestError(
            f"{gpu_containers} containers of the pod request GPUs, and at most {MOST_GPU_CONTAINERS} are placed "
            "together; put them into several pods"
        )


def _written(pod: Pod, asking: Sequence[PodContainer], known: AnnotationNames) -> tuple[PerContainer, Preferences]:
    """Of a pod that is placed completely, annotations that cannot be read are a change after the decision."""
    decided = _decided(pod, asking, known)
    try:
        parts, preferences = parse_parts(pod.annotations, known), parse_preferences(pod.annotations, known)
    except ParseError:
        if len(decided) < len(asking):
            raise
        parts, preferences = PerContainer(1), NO_PREFERENCES
    if all(parts.of(name) == count for name, count in decided.items()):
        return parts, preferences
    return replace(parts, by_name={**parts.by_name, **decided}), preferences


def _decided(pod: Pod, asking: Iterable[PodContainer], known: AnnotationNames) -> dict[str, int]:
    """Of a bound pod: over how many GPUs vcuda spread each container."""
    if not pod.node or known.allocation not in pod.annotations:
        return {}
    said = trusted_allocation(pod, known)
    return {each.ref.name: count for each in asking if (count := len(said.shares_of(each)))}


def parts_of(pod: Pod, container: str, names: ResourceNames) -> int:
    """Over how many GPUs the share of one container is spread."""
    asking = [each for each in pod.containers if each.ref.name == container]
    parts, _ = _written(pod, asking, annotation_names(names.domain))
    return parts.of(container)


def placeable_request(pod: Pod, names: ResourceNames = ResourceNames()) -> PodRequest:
    """The same for a pod that is to be placed: its GPUs will be written to it, and it must have room for that."""
    require_short(pod.unread_bytes)
    found = pod_request(pod, names)
    asked = [(each.name, each.request) for each in found.containers]
    require_room(pod.annotation_bytes, asked, annotation_names(names.domain))
    return found


def _named(container: PodContainer, parts: PerContainer, names: ResourceNames, *, alone: bool) -> Request:
    try:
        count = parts.of(container.ref.name)
        return parse_request(container.cores, container.blocks, parts=count, names=names)
    except RequestError as error:
        if alone:
            raise
        raise RequestError(f"container {container.ref.name}: {error.message}") from None


def container_request(
    pod: Pod, container: PodContainer, *, share_mode: bool = True, names: ResourceNames = ResourceNames()
) -> Request:
    """The request of one container."""
    count = parts_of(pod, container.ref.name, names)
    return parse_request(container.cores, container.blocks, parts=count, share_mode=share_mode, names=names)


def parse_parts(annotations: Mapping[str, str], names: AnnotationNames) -> PerContainer:
    """Over how many GPUs the share of a container is spread."""
    text = annotations.get(names.gpus)
    if text is None:
        return PerContainer(1)
    return parse_per_container(text, names.gpus, absent=1, most=MOST_PARTS, wanted="a number of GPUs")
