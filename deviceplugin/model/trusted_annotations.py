"""Which of a pod's annotations are believed: one rule for the extender and for the node's agent.

In: a pod that is bound to a node. Out: what it says that its containers hold, or were meant to hold; and a sentence
where that is not believed. The contract stands in `annotations`. A lie costs little: the extender holds a pod that is
not believed for anywhere on its node, and the agent places it as one that nobody has placed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deviceplugin.errors import ParseError
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.pod import Pod


@dataclass(frozen=True, slots=True)
class Believed:
    """`allocation` is None where the pod says nothing or is not believed; `doubt` is a sentence in the latter case."""

    allocation: text.PodAllocation | None = None
    doubt: str = ""

    def shares(self, container: str) -> tuple[GpuShare, ...]:
        return self.allocation.containers.get(container, ()) if self.allocation is not None else ()


def believed(pod: Pod, names: AnnotationNames, *, own: text.WrittenAllocation | None = None) -> Believed:
    """What `vcuda-allocation` says, if it was written for this very pod and this very node.

    `own` is what the caller wrote itself: word for word the same is not parsed again.
    """
    written = pod.annotations.get(names.allocation)
    if written is None:
        return Believed()
    if not _names_its_node(pod, names):
        return Believed(doubt=f"annotation {names.allocation} was written for another node; it is not believed")
    try:
        found = own.allocation if own is not None and own.text == written else text.parse_allocation(written)
    except ParseError as error:
        return Believed(doubt=error.message)
    if found.pod not in {pod.ref.uid, pod.api_uid}:
        return Believed(doubt=f"annotation {names.allocation} was written for another pod; it is not believed")
    return Believed(found)


def believed_minors(pod: Pod, container: int, names: AnnotationNames) -> tuple[int, ...]:
    """What the lineage's schedulers chose, who write no `vcuda-allocation`; raises ParseError.

    It carries no UID. One beside an allocation says nothing of its own, and one of a pod that says to be assigned,
    without one, was copied along: the agent writes both together.
    """
    written = pod.annotations.get(names.gpu_indices(container))
    if written is None or names.allocation in pod.annotations or not _names_its_node(pod, names):
        return ()
    said = pod.annotations.get(names.gpu_assigned)
    if said is not None and text.parse_assigned(said):
        return ()
    return text.parse_gpu_indices(written)


def stale(pod: Pod, wanted: Iterable[str], names: AnnotationNames) -> tuple[str, ...]:
    """GPU indices of containers that hold nothing, left over from another pod."""
    kept = set(wanted)
    return tuple(name for name in pod.annotations if name.startswith(names.gpu_index_prefix) and name not in kept)


def _names_its_node(pod: Pod, names: AnnotationNames) -> bool:
    return pod.annotations.get(names.predicate_node, pod.node) == pod.node
