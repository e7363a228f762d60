"""Whether a pod has room for the annotations that say its GPUs, and not more to read than vcuda keeps of a pod.

In: the size of a pod's annotations, its requests. Out: a RequestError if the pod would become larger than the API
server takes, or where its user wrote more for vcuda than the scheduler and the agents keep in memory. A Binding is not
validated, so it can make a pod that is too large, and then nobody can change the pod any more: kubelet's status is
refused and it stays Pending for ever while it runs. Invariant: what `require_room` lets pass, the Binding's annotations
and their later corrections by the agent fit in.
"""

from collections.abc import Iterable, Mapping

from deviceplugin.errors import RequestError
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.request import Request

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
