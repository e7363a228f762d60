"""The request of a whole pod: each GPU container with its request, and the preferences of the pod.

In: a pod as `kube` decodes it. Out: `PodRequest`, or the RequestError or ParseError with the sentence for the user.
Containers are in the order in which kubelet admits them. Pods with equal requests have equal `shape`, so placement may
answer both from one calculation.

Invariant: after a decision the decision counts. The owner of a bound pod can change its annotations, so over how many
GPUs a container is spread is then read from the allocation that vcuda wrote.

Whether a pod has room for the annotations that say its GPUs, and not more to read than vcuda keeps of a pod.

In: the size of a pod's annotations, its requests. Out: a RequestError if the pod would become larger than the API
server takes, or where its user wrote more for vcuda than the scheduler and the agents keep in memory. A Binding is not
validated, so it can make a pod that is too large, and then nobody can change the pod any more: kubelet's status is
refused and it stays Pending for ever while it runs. Invariant: what `require_room` lets pass, the Binding's annotations
and their later corrections by the agent fit in.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import ContainerRole, PodRef
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.annotations import trusted_allocation
from deviceplugin.model.pod import PerContainer, Pod, PodContainer, parse_per_container
from deviceplugin.model.preferences import NO_PREFERENCES, Preferences, parse_preferences
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.structs import replace

LARGEST = 256 << 10
"""TotalAnnotationSizeLimitB (k8s.io/apimachinery, pkg/api/validation/objectmeta.go): names and values of an object."""
MOST_WRITTEN = 20 << 10
"""Bytes of all annotations that a user writes for vcuda: one list of the longest, and the others."""
_SHARE = 96  # {"uuid":"GPU-...","cores":100,"blocks":65536}, with room for another form of UUID
_CONTAINER = 24  # "NAME":{"gpus":[]},
_INDEX = 32  # the number of a container and a minor of each GPU
_FIXED = 512  # UID, name of the node, time and the rest


def size_of(annotations: Mapping[str, str]) -> int:
    return _bytes("".join([*annotations, *annotations.values()]))


def size_with(total: int, known: Mapping[str, str], added: Mapping[str, str]) -> int:
    """Of annotations of `total` bytes, of which `known` are some, when `added` are written over them."""
    replaced = {name: text for name, text in known.items() if name in added}
    return total - size_of(replaced) + size_of(added)


def room_for(asked: Iterable[tuple[str, Request]], names: AnnotationNames) -> int:
    """What requests need at most, by container. The decision, which is for people, is not counted."""
    needed = _FIXED + _bytes("".join(names.machine_written))
    for name, request in asked:
        needed += _CONTAINER + _bytes(name + names.gpu_index_prefix) + request.gpus * (_SHARE + _INDEX)
    return needed


def require_room(total: int, asked: Iterable[tuple[str, Request]], names: AnnotationNames) -> None:
    """`total`: of the annotations that the pod has."""
    needed = room_for(asked, names)
    if total + needed > LARGEST:
        raise RequestError(
            f"the pod has {total} bytes of annotations, its GPUs need up to {needed} more and Kubernetes takes "
            f"{LARGEST}; make its annotations smaller, or divide its containers among several pods"
        )


def require_short(written: int) -> None:
    """`written`: bytes of the annotations that the pod's user wrote for vcuda."""
    if written > MOST_WRITTEN:
        raise RequestError(
            f"the pod's annotations for vcuda have {written} bytes and it reads {MOST_WRITTEN}; name fewer GPUs, "
            "models or containers in them"
        )


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


MOST_PARTS = 16  # the capacity of the limits file (library/abi/limits.h)
MOST_GPU_CONTAINERS = 64
"""Of one pod, init containers and sidecars included: placement compares each with all GPUs of many nodes."""


class ContainerRequest(msgspec.Struct, frozen=True):
    """One container that requests GPUs; `index` is its position in its own list."""

    name: str
    role: ContainerRole
    index: int
    request: Request


class PodRequest(msgspec.Struct, frozen=True):
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
