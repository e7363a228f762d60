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


Recorded = Callable[[tuple[PodUid, str]], bool]
"""Whether kubelet's checkpoint has the container; kubelet writes it before it asks for the next container."""


def _everything(_key: tuple[PodUid, str]) -> bool:
    return True


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


def next_container(
    pod: Pod, resource: Resource, count: int, answered: Answered, recorded: Recorded = _everything
) -> PodContainer | None:
    """The container of this pod that kubelet would ask for next, or None when the call cannot be for this pod.

    One that we have answered and that kubelet's checkpoint does not have is being asked for again: kubelet was killed
    before it wrote. Then no later container of the pod can be meant (see `again`).
    """
    for container in pod.containers:
        if not container.wants(resource):
            continue
        if not answered(container.ref.key, resource):
            return container if container.wants(resource) == count else None
        if not _is_running(container) and not recorded(container.ref.key):
            return None
    return None


def candidates(
    pods: Iterable[Pod], resource: Resource, count: int, answered: Answered, recorded: Recorded = _everything
) -> list[tuple[Pod, PodContainer]]:
    """Every pod that the call may be for.

    A container that runs or has run without an answer of ours started before the agent registered (kubelet admits such
    pods without any Allocate); it is taken only when nothing else fits.
    """
    found = [
        (pod, container)
        for pod in pods
        if not pod.is_terminal and (container := next_container(pod, resource, count, answered, recorded)) is not None
    ]
    waiting = [pair for pair in found if not _has_started(pair[1])]
    return waiting or found


def again(pods: Iterable[Pod], resource: Resource, count: int, recorded: Recorded) -> list[tuple[Pod, PodContainer]]:
    """Containers that were answered before but that kubelet does not know of: it was killed before it wrote its
    checkpoint, or the checkpoint was lost (research 1.11).

    Of each pod the first one that kubelet has no record of, for it goes in order. Running ones are skipped: kubelet
    does not ask for them while it restarts.
    """
    found: list[tuple[Pod, PodContainer]] = []
    for pod in pods:
        wanting = (each for each in pod.containers if each.wants(resource) and not _is_running(each))
        first = next((each for each in wanting if not recorded(each.ref.key)), None)
        if not pod.is_terminal and first is not None and first.wants(resource) == count:
            found.append((pod, first))
    return found


def _is_running(container: PodContainer) -> bool:
    return container.state is ContainerState.RUNNING


def _has_started(container: PodContainer) -> bool:
    return container.state in {ContainerState.RUNNING, ContainerState.TERMINATED}
