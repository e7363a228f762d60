"""Which containers may a call of kubelet be for? The two rules of kubelet 1.36 that every identity source applies.

In: pods as a source shows them, and a `Question`. Out: pairs of pod and container. Pure.

Kubelet (`HandlePodAdditions` -> `Allocate`) walks the init containers and then the app containers, and asks for each
resource of one container before it goes on to the next. So a call is for the first container of a pod that wants the
resource and has no answer; if that container wants another count, the call is for another pod. And the call after the
first one of a container is for its other resource.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, OwnerKey, PodRef, PodUid
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.units import CORES_PER_GPU, Resource

Pairs = list[tuple[Pod, PodContainer]]
Answered = Callable[[OwnerKey, Resource], bool]
"""Whether the ledger holds an answered call of this container for this resource."""
Recorded = Callable[[OwnerKey], bool]
"""Whether kubelet's checkpoint has the container; kubelet writes it before it asks for the next container."""


@dataclass(frozen=True, slots=True)
class IdentifiedContainer:
    """The container that a call is for; `certain` is False if it was a guess among several, `others` are the rest."""

    pod: Pod
    container: PodContainer
    source: Source
    certain: bool = True
    others: tuple[tuple[Pod, PodContainer], ...] = ()

    @property
    def is_partial(self) -> bool:
        """Whether only the pod's name and this one count are known (`unread_pod`)."""
        return self.pod.ref.is_only_named

    def instead(self) -> "Iterator[IdentifiedContainer]":
        """The same guess with each of the others in turn; nothing if it was certain."""
        for pair in self.others:
            rest = ((self.pod, self.container), *(each for each in self.others if each is not pair))
            yield IdentifiedContainer(*pair, self.source, certain=False, others=rest)


@dataclass(frozen=True, slots=True)
class Question:
    """One call from kubelet.

    `recorded`: kubelet's checkpoint has the container. `proved`: PreStartContainer has proved its grant. `half`: the
    container of the previous call, if it waits for just this resource and count. `guess`: the allocation of the
    previous call if its owner was a guess. `runs`: processes of the container live, whatever its status says yet;
    kubelet that starts again does not ask for them.
    """

    resource: Resource
    count: int
    answered: Answered
    recorded: Recorded
    proved: Callable[[OwnerKey], bool]
    half: "IdentifiedContainer | None" = None
    guess: Allocation | None = None
    runs: Callable[[OwnerKey], bool] = lambda _key: False

    def lost(self, container: PodContainer) -> bool:
        """Whether kubelet asks for the container again, as far as its status and its processes show."""
        return not _is_running(container) and self.forgot(container)

    def forgot(self, container: PodContainer) -> bool:
        """Whether kubelet has no record of our answer for the container, and none of its processes lives."""
        key = container.ref.key
        return self.answered(key, self.resource) and not self.recorded(key) and not self.runs(key)

    def completes(self, container: PodContainer) -> bool:
        """Whether the previous call may have been for this container: same count, and no answer for it yet."""
        if self.guess is None:
            return False
        other, request = self.resource.other, self.guess.request
        asked = request.cores if other is Resource.CORE else request.blocks
        return container.wants(other) == asked and not self.answered(container.ref.key, other)

    def ignoring_records(self) -> "Question":
        """For pods that kubelet may not have seen yet: there a missing record proves nothing."""
        return replace(self, recorded=lambda _key: True)


def next_container(pod: Pod, question: Question) -> PodContainer | None:
    """The container of this pod that kubelet would ask for next, or None if the call cannot be for this pod.

    If a container was answered and kubelet's checkpoint does not have it, kubelet was killed before it wrote and asks
    for that container again. Then no later container of the pod can be meant (see `readmitted`).
    """
    for container in pod.containers:
        if not container.wants(question.resource):
            continue
        if not question.answered(container.ref.key, question.resource):
            return container if container.wants(question.resource) == question.count else None
        if question.lost(container):
            return None
    return None


def candidates(pods: Iterable[Pod], question: Question) -> Pairs:
    """Every pod that the call may be for.

    A container that runs or has run without an answer started before the agent registered (kubelet admits such pods
    without any Allocate); it is returned only if nothing else fits.
    """
    found = [
        (pod, container)
        for pod in pods
        if not pod.is_terminal and (container := next_container(pod, question)) is not None
    ]
    waiting = [pair for pair in found if not _has_started(pair[1])]
    return waiting or found


def readmitted(pods: Iterable[Pod], question: Question) -> Pairs:
    """Containers with an answer that kubelet has no record of.

    Kubelet was killed before it wrote its checkpoint, or the checkpoint was lost. Of each pod it is the first such
    container, because kubelet goes in order. Running containers are skipped: kubelet does not ask for them when it
    restarts. A status may be older than the end of the container, and a container may end after kubelet saw it run: if
    nothing else fits, it is any container that has no process.
    """
    living = [pod for pod in pods if not pod.is_terminal]
    resource, count = question.resource, question.count
    following = _firsts(living, lambda each: each.wants(resource) > 0 and question.lost(each))
    fitting = [pair for pair in following if pair[1].wants(resource) == count]
    return fitting or _firsts(living, lambda each: each.wants(resource) == count and question.forgot(each))


def _firsts(pods: Iterable[Pod], fits: Callable[[PodContainer], bool]) -> Pairs:
    """Of each pod the first container that fits."""
    found = ((pod, next(filter(fits, pod.containers), None)) for pod in pods)
    return [(pod, container) for pod, container in found if container is not None]


def unread_pod(namespace: str, name: str, container: str, question: Question, annotations: Mapping[str, str]) -> Pod:
    """A pod that kubelet admits while nobody shows its UID or its spec.

    The name stands in for the UID and 1 for the count of the other resource, until the call for that resource tells it,
    and PreStartContainer the UID. Whole GPUs need no memory count.
    """
    is_core = question.resource is Resource.CORE
    cores = question.count if is_core else 1
    blocks = question.count if not is_core else int(cores < CORES_PER_GPU)
    pod = PodRef(PodUid(f"{namespace}/{name}"), namespace, name)
    made = PodContainer(ContainerRef(pod, container), ContainerRole.UNKNOWN, 0, cores, blocks)
    return Pod(pod, (made,), annotations=annotations)


def _is_running(container: PodContainer) -> bool:
    return container.state is ContainerState.RUNNING


def _has_started(container: PodContainer) -> bool:
    return container.state in {ContainerState.RUNNING, ContainerState.TERMINATED}
