"""Which container of which pod an Allocate may be for: the rule, without any I/O.

Kubelet walks a pod's init containers and then its app containers, and asks for each resource of one container before
it goes on to the next (kubelet 1.36, `HandlePodAdditions` -> `Allocate`). So inside a pod the claim is the first
container that wants the resource and has not been answered; if that one wants another count, the call is not for
this pod. Sources (`identity`) differ only in the pods that they show.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.units import Resource

Answered = Callable[[tuple[PodUid, str], Resource], bool]
"""Whether the ledger holds an answered call of this container for this resource."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A container that a call was identified with; `certain` is False where it was a guess among several.

    `others` are the rest of those that it may have been.
    """

    pod: Pod
    container: PodContainer
    source: Source
    certain: bool = True
    others: tuple[PodContainer, ...] = ()


def next_container(pod: Pod, resource: Resource, count: int, answered: Answered) -> PodContainer | None:
    """The container of this pod that kubelet would ask for next, or None when the call cannot be for this pod."""
    for container in pod.containers:
        if container.wants(resource) and not answered(container.ref.key, resource):
            return container if container.wants(resource) == count else None
    return None


def candidates(
    pods: Iterable[Pod], resource: Resource, count: int, answered: Answered
) -> list[tuple[Pod, PodContainer]]:
    """Every pod that the call may be for.

    A container that runs or has run without an answer of ours started before the agent registered (kubelet admits such
    pods without any Allocate); it is taken only when nothing else fits.
    """
    found = [
        (pod, container)
        for pod in pods
        if not pod.is_terminal and (container := next_container(pod, resource, count, answered)) is not None
    ]
    waiting = [pair for pair in found if not _has_started(pair[1])]
    return waiting or found


def again(
    pods: Iterable[Pod], resource: Resource, count: int, recorded: Callable[[tuple[PodUid, str]], bool]
) -> list[tuple[Pod, PodContainer]]:
    """Containers that were answered before but that kubelet has forgotten: its checkpoint was lost (research 1.11).

    `recorded` says whether kubelet's checkpoint still has the container. Running ones are skipped: kubelet does not ask
    for them while it restarts.
    """
    return [
        (pod, container)
        for pod in pods
        if not pod.is_terminal
        for container in pod.containers
        if container.wants(resource) == count
        and container.state is not ContainerState.RUNNING
        and not recorded(container.ref.key)
    ]


def _has_started(container: PodContainer) -> bool:
    return container.state in {ContainerState.RUNNING, ContainerState.TERMINATED}
