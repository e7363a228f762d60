"""Which container does kubelet ask for? From a resource and a count to one container of one pod.

In: a `Question` and the sources in their order (`--identity`). Out: an `IdentifiedContainer`, certain or marked as a
guess, or an IdentityError that lists what each source answered. While Allocate runs, exactly one
pod in kubelet's own view wants the resource and lacks it; if a source shows several, the next exact source narrows them
down. Each source has a small time budget, because kubelet waits without a deadline and the node stands still meanwhile.
A source that exceeded its budget is skipped for 10 s, so that a dead API server costs one slow call and not all; if no
other source knows the container, it is asked anyway: a refused pod is worse than another wait.

The rule inside a pod: kubelet walks the init containers and then the app containers, and asks for each resource of one
container before it goes on to the next (kubelet 1.36, `HandlePodAdditions` -> `Allocate`). So the call is for the first
container that wants the resource and has no answer; if that container wants another count, the call is for another pod.

The sources: `PodsSource` asks kubelet's `GET /pods`. It is exact: kubelet adds a pod to this list before it admits it,
and the next pod only afterwards (verified on kubelet 1.36). `PodResourcesSource` compares the API server's watch with
kubelet's PodResources; it is exact for app and restartable init containers. `PendingSource` takes the pending pods of
the API server in the order of the scheduler's predictions. It is a guess, as in gpu-manager: kubelet may admit pods in
another order.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from deviceplugin.errors import IdentityError, KubeletError, ParseError, VcudaError
from deviceplugin.kubelet.podresources import PodDevices, PodResources
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import Allocation, ContainerRole, PodUid
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.units import Resource, ResourceNames

log = structlog.get_logger("vcuda.kubelet")
_SKIP_S = 10.0
_MAX_GETS = 8  # of the burst of 10 that all PodResources clients of the node share
Key = tuple[PodUid, str]
Pairs = list[tuple[Pod, PodContainer]]
Answered = Callable[[Key, Resource], bool]
"""Whether the ledger holds an answered call of this container for this resource."""
Recorded = Callable[[Key], bool]
"""Whether kubelet's checkpoint has the container; kubelet writes it before it asks for the next container."""


@dataclass(frozen=True, slots=True)
class IdentifiedContainer:
    """The container that a call is for; `certain` is False if it was a guess among several, `others` are the rest."""

    pod: Pod
    container: PodContainer
    source: Source
    certain: bool = True
    others: tuple[PodContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """One call from kubelet.

    `recorded`: kubelet's checkpoint has the container. `proved`: PreStartContainer has proved its grant. `guess`: the
    allocation of the previous call if its owner was a guess; kubelet asks for both resources of a container in a row.
    """

    resource: Resource
    count: int
    answered: Answered
    recorded: Recorded
    proved: Callable[[Key], bool]
    guess: Allocation | None = None

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


class IdentitySource(Protocol):
    """Something that shows pods. `exact` sources see what kubelet sees; the others only what may come next."""

    source: Source
    exact: bool
    budget_s: float

    async def candidates(self, question: Question) -> Pairs: ...

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        """Those of the pairs that this source cannot rule out."""
        ...


class Identity:
    """Asks the sources in order; the only state is which of them are skipped for now."""

    def __init__(self, sources: Sequence[IdentitySource], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._skipped_until: dict[Source, float] = {}

    async def identify(self, question: Question) -> IdentifiedContainer:
        errors: list[str] = []
        prompt = [source for source in self._sources if not self._is_skipped(source)]
        skipped = [source for source in self._sources if source not in prompt]
        for source in (*prompt, *skipped):
            pairs, error = await self._ask(source, question)
            if pairs:
                others = self._sources[self._sources.index(source) + 1 :]
                return await self._choose(source, others, question, pairs)
            errors.append(f"{source.source.value}: {error or 'shows no such container'}")
        raise IdentityError(
            f"kubelet asked for {question.count} x {question.resource.value} and no pod of this node wants that many "
            f"({'; '.join(errors) or 'no identity source is configured'}); create the pod again"
        )

    async def _ask(self, source: IdentitySource, question: Question) -> tuple[Pairs, str]:
        """Its candidates, or why there are none."""
        try:
            async with asyncio.timeout(source.budget_s):
                return await source.candidates(question), ""
        except TimeoutError:
            self._skipped_until[source.source] = self._clock() + _SKIP_S
            message = f"no answer within {source.budget_s:g} s"
        except VcudaError as error:
            message = error.message
        log.warning("identity_source_failed", source=source.source.value, error=message)
        return [], message

    def _is_skipped(self, source: IdentitySource) -> bool:
        return len(self._sources) > 1 and self._skipped_until.get(source.source, 0.0) > self._clock()

    async def _choose(
        self, source: IdentitySource, others: Sequence[IdentitySource], question: Question, pairs: Pairs
    ) -> IdentifiedContainer:
        for other in others:
            if len(pairs) < 2 or not other.exact:
                break
            pairs = await self._narrow(other, question, pairs) or pairs
        if len(pairs) > 1:
            log.warning("identity_ambiguous", source=source.source.value, pods=[str(pod.ref) for pod, _ in pairs])
        pod, container = pairs[0] if not source.exact else max(pairs, key=lambda pair: pair[0].seen_by_kubelet)
        rest = tuple(each for _, each in pairs if each is not container)
        return IdentifiedContainer(pod, container, source.source, certain=source.exact and not rest, others=rest)

    async def _narrow(self, source: IdentitySource, question: Question, pairs: Pairs) -> Pairs:
        try:
            async with asyncio.timeout(source.budget_s):
                return await source.narrow(question, pairs)
        except (TimeoutError, VcudaError):
            return []


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
        if not _is_running(container) and not question.recorded(container.ref.key):
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
    restarts.
    """
    found: Pairs = []
    for pod in pods:
        wanting = (each for each in pod.containers if each.wants(question.resource) and not _is_running(each))
        first = next((each for each in wanting if not question.recorded(each.ref.key)), None)
        if not pod.is_terminal and first is not None and first.wants(question.resource) == question.count:
            found.append((pod, first))
    return found


def _is_running(container: PodContainer) -> bool:
    return container.state is ContainerState.RUNNING


def _has_started(container: PodContainer) -> bool:
    return container.state in {ContainerState.RUNNING, ContainerState.TERMINATED}


class PodsSource:
    """Asks kubelet for all pods at each question: about 3 ms, and never stale."""

    source = Source.PODS
    exact = True

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[Pod]]], *, budget_s: float) -> None:
        self._fetch = fetch
        self.budget_s = budget_s

    async def candidates(self, question: Question) -> Pairs:
        pods = await self._fetch()
        return candidates(pods, question) or readmitted(pods, question)

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        wanted = {pod.ref.uid for pod, _ in await self.candidates(question)}
        return [pair for pair in pairs if pair[0].ref.uid in wanted]


class PodResourcesSource:
    """`known` are the watched pods; `fetch` reads one pod from the API server if the watch lags behind kubelet.

    PodResources shows a pod from the start of its admission; a refused pod disappears. It does not show plain init
    containers: such a pod counts as long as none of its app containers has the resource.
    """

    source = Source.PODRESOURCES
    exact = True

    def __init__(
        self,
        client: PodResources,
        *,
        known: Callable[[], Sequence[Pod]],
        fetch: Callable[[str, str], Awaitable[Pod | None]],
        names: ResourceNames,
        budget_s: float,
    ) -> None:
        self._client = client
        self._known = known
        self._fetch = fetch
        self._names = names
        self.budget_s = budget_s

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        fitting = candidates(known, question)
        if found := await self.narrow(question, sorted(fitting, key=_bind_order)):
            return found
        if found := await self._unwatched(question, known):
            return found
        return readmitted(known, question)

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        if not pairs:
            return []
        views = await self._views([pod for pod, _ in pairs])
        name = self._names.of(question.resource)
        return [pair for pair in pairs if (view := views.get(_name(pair[0]))) and _lacks(view, pair, name)]

    async def _views(self, pods: Sequence[Pod]) -> dict[tuple[str, str], PodDevices]:
        if len(pods) <= _MAX_GETS:
            try:
                got = [await self._client.get(pod.ref.namespace, pod.ref.name) for pod in pods]
            except KubeletError:
                pass
            else:
                return {(view.namespace, view.name): view for view in got if view is not None}
        return {(view.namespace, view.name): view for view in await self._client.list()}

    async def _unwatched(self, question: Question, known: Sequence[Pod]) -> Pairs:
        watched = {_name(pod) for pod in known}
        shown = [(view.namespace, view.name) for view in await self._client.list()]
        fetched = [await self._fetch(*name) for name in shown if name not in watched]
        return await self.narrow(question, candidates([pod for pod in fetched if pod is not None], question))


class PendingSource:
    """`predicate_time` reads the scheduler's annotation of a pod, in nanoseconds; None if the pod has none.

    The guess is marked as one; PreStartContainer proves or repairs it. A container that got its other resource in the
    previous call comes first, because kubelet asks for both before it goes on.
    """

    source = Source.APISERVER
    exact = False

    def __init__(
        self, known: Callable[[], Sequence[Pod]], *, predicate_time: Callable[[Pod], int | None], budget_s: float
    ) -> None:
        self._known = known
        self._predicate_time = predicate_time
        self.budget_s = budget_s

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        found = candidates(known, question.ignoring_records())
        if question.guess is not None:
            # The previous guess stands if it fits; otherwise the container that wants both counts was meant.
            owner = [pair for pair in found if pair[1].ref.key == question.guess.owner.key]
            found = owner or [pair for pair in found if question.completes(pair[1])] or found
        if not found:
            found = self._readmitted(question, known)
        return sorted(found, key=lambda pair: self._order(pair[0]))

    def _readmitted(self, question: Question, known: Sequence[Pod]) -> Pairs:
        """Kubelet can only have forgotten what is proved or was paired in the previous call, never another guess."""
        paired = question.guess.owner.key if question.guess is not None else None
        return [
            pair
            for pair in readmitted(known, question)
            if question.proved(pair[1].ref.key) or pair[1].ref.key == paired
        ]

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        return list(pairs)

    def _order(self, pod: Pod) -> tuple[float, str]:
        try:
            predicted = self._predicate_time(pod)
        except ParseError:
            predicted = None
        return (predicted / 1e9 if predicted is not None else pod.created, pod.ref.name)


def _name(pod: Pod) -> tuple[str, str]:
    return (pod.ref.namespace, pod.ref.name)


def _bind_order(pair: tuple[Pod, PodContainer]) -> tuple[int, float]:
    version = pair[0].resource_version
    return (int(version) if version.isdigit() else 0, pair[0].created)


def _lacks(view: PodDevices, pair: tuple[Pod, PodContainer], resource_name: str) -> bool:
    pod, container = pair
    if container.role is not ContainerRole.INIT:
        return view.lacks(container.ref.name, resource_name)
    apps = (each.ref.name for each in pod.containers if each.role is ContainerRole.APP)
    return all(view.lacks(name, resource_name) for name in apps)
