"""Which container does kubelet ask for? Asks the sources of `--identity` and waits for them as long as it is useful.

In: a `Question` and the sources in their order; each source shows pods, with the `AnswerRecords` of these. Out: an
`IdentifiedContainer`, certain or marked as a guess, or an IdentityError that lists what each source answered.

Kubelet 1.36 (`HandlePodAdditions` -> `Allocate`) walks the init containers and then the app containers, and asks for
each resource of one container before it goes on to the next. Two rules follow, which every source applies with
`candidates` and `readmitted`. A call is for the first container of a pod that wants the resource and has no answer; if
that container wants another count, the call is for another pod. And the call after the first one of a container is for
its other resource. While Allocate runs, exactly one pod in kubelet's own view wants the resource and lacks it; if a
source shows several, the next exact source narrows them down.

Kubelet waits without a deadline and admits no other pod meanwhile, so an answer should come soon. But a source that is
late on a busy node must not be replaced by a guess, which may give a container the GPU of another one. So an exact
source is asked alone for its budget (`--identity-budget`), then the next one is asked beside it, and the first answer
counts. A source that was late has no time alone at the next call. All are waited for up to 8 s. If none answers in that
time they count as dead: for 30 s they are waited for no longer than the budget. A guess is made only if every exact
source has failed, except one that is safe: the call after the first one of a container is for its other resource.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from deviceplugin.errors import IdentityError, VcudaError
from deviceplugin.kubelet.answers import AnswerRecords
from deviceplugin.ledger.grant import Source
from deviceplugin.log import Pace
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.units import CORES_PER_GPU, Resource

Pairs = list[tuple[Pod, PodContainer]]


class IdentifiedContainer(msgspec.Struct, frozen=True):
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


class Question(msgspec.Struct, frozen=True):
    """One call from kubelet.

    `half`: the container of the previous call, if it waits for just this resource and count. `guess`: the allocation of
    the previous call if its owner was a guess.
    """

    resource: Resource
    count: int
    half: IdentifiedContainer | None = None
    guess: Allocation | None = None

    def has_answer(self, container: PodContainer, answers: AnswerRecords) -> bool:
        return self.resource in answers.given.get(container.ref.key, ())

    def is_lost(self, container: PodContainer, answers: AnswerRecords) -> bool:
        """Whether kubelet has no record of our answer for the container, and none of its processes lives."""
        return container.ref.key in answers.lost and self.has_answer(container, answers)

    def completes(self, container: PodContainer, answers: AnswerRecords) -> bool:
        """Whether the previous call may have been for this container: same count, and no answer for it yet."""
        if self.guess is None:
            return False
        other, request = self.resource.other, self.guess.request
        asked = request.cores if other is Resource.CORE else request.blocks
        return container.wants(other) == asked and other not in answers.given.get(container.ref.key, ())


def next_container(pod: Pod, question: Question, answers: AnswerRecords) -> PodContainer | None:
    """The container of this pod that kubelet would ask for next, or None if the call cannot be for this pod.

    If a container was answered and kubelet's checkpoint does not have it, kubelet was killed before it wrote and asks
    for that container again. Then no later container of the pod can be meant (see `readmitted`).
    """
    for container in pod.containers:
        if not container.wants(question.resource):
            continue
        if not question.has_answer(container, answers):
            return container if container.wants(question.resource) == question.count else None
        if not _is_running(container) and question.is_lost(container, answers):
            return None
    return None


def candidates(pods: Iterable[Pod], question: Question, answers: AnswerRecords) -> Pairs:
    """Every pod that the call may be for.

    A container that runs or has run without an answer started before the agent registered (kubelet admits such pods
    without any Allocate); it is returned only if nothing else fits.
    """
    found = [
        (pod, container)
        for pod in pods
        if not pod.is_terminal and (container := next_container(pod, question, answers)) is not None
    ]
    waiting = [pair for pair in found if not _has_started(pair[1])]
    return waiting or found


def readmitted(pods: Iterable[Pod], question: Question, answers: AnswerRecords) -> Pairs:
    """Containers with an answer that kubelet has no record of.

    Kubelet was killed before it wrote its checkpoint, or the checkpoint was lost. Of each pod it is the first such
    container, because kubelet goes in order. Running containers are skipped: kubelet does not ask for them when it
    restarts. A status may be older than the end of the container, and a container may end after kubelet saw it run: if
    nothing else fits, it is any container that has no process.
    """
    living = [pod for pod in pods if not pod.is_terminal]
    resource, count = question.resource, question.count

    def is_lost(container: PodContainer) -> bool:
        return question.is_lost(container, answers)

    following = _firsts(living, lambda each: each.wants(resource) > 0 and not _is_running(each) and is_lost(each))
    fitting = [pair for pair in following if pair[1].wants(resource) == count]
    return fitting or _firsts(living, lambda each: each.wants(resource) == count and is_lost(each))


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


log = structlog.get_logger("vcuda.kubelet")
PATIENCE_S = 8.0
Observe = Callable[[Source | None, float], None]


class IdentitySource(Protocol):
    """Something that shows pods. `exact` sources see what kubelet sees; the others only what may come next."""

    source: Source
    exact: bool

    async def candidates(self, question: Question) -> Pairs: ...

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        """Those of the pairs that this source cannot rule out."""
        ...


class Identity:
    """Asks the sources; the only state is which of them were late or silent at their last call.

    `observe` gets the source that decided (None if none did) and the seconds that kubelet waited for it.
    """

    def __init__(
        self,
        sources: Sequence[IdentitySource],
        *,
        budget_s: float,
        patience_s: float = PATIENCE_S,
        dead_s: float = 30.0,
        observe: Observe = lambda _source, _seconds: None,
    ) -> None:
        self._exact = tuple(source for source in sources if source.exact)
        self._guessing = tuple(source for source in sources if not source.exact)
        self._budget_s = budget_s
        self._patience_s = patience_s
        self._pace = Pace()  # each start of a container asks some times
        self._dead_s = dead_s
        self._observe = observe
        self._late: set[Source] = set()
        self._dead_until: dict[Source, float] = {}

    async def identify(self, question: Question) -> IdentifiedContainer:
        began, decided = time.monotonic(), None
        try:
            found = await self._identify(question)
            decided = found.source
            return found
        finally:
            self._observe(decided, time.monotonic() - began)

    async def _identify(self, question: Question) -> IdentifiedContainer:
        errors: dict[Source, str] = {}
        if (answer := await self._first_answer(question, errors)) is not None:
            return await self._choose(*answer, question)
        if question.half is not None:
            return question.half
        for source in self._guessing:
            if pairs := await source.candidates(question):
                return _guess(source.source, pairs, pairs[0])
            errors[source.source] = "shows no such container"
        answers = "; ".join(f"{source.value}: {error}" for source, error in errors.items())
        raise IdentityError(
            f"kubelet asked for {question.count} x {question.resource.value} and no pod of this node wants that many "
            f"({answers or 'no identity source is configured'}); create the pod again"
        )

    async def _first_answer(self, question: Question, errors: dict[Source, str]) -> tuple[IdentitySource, Pairs] | None:
        """The first exact source that shows a candidate; `errors` gets what the others answered.

        None if all have failed, or if none came within the budget and `question.half` needs none.
        """
        queue, calls = list(self._exact), _Calls(question, self._pace)
        patience = max(map(self._patience, queue), default=0.0)
        began = time.monotonic()
        try:
            while queue or calls.sources:
                while queue and calls.sources <= self._late:  # no time alone beside a source that was late
                    calls.ask(queue.pop(0))
                left = began + patience - time.monotonic()
                # With nobody else to ask and no half to fall back on, it waits for as long as there is.
                done = await calls.wait(min(left, self._budget_s) if queue or question.half is not None else left)
                for source, pairs, error in done:
                    self._note_time(source.source, time.monotonic() - began)
                    if pairs:
                        return source, pairs
                    errors[source.source] = error
                if not done and time.monotonic() - began >= patience:
                    self._note_silence(calls.sources, patience, errors)
                    break
                if not done and question.half is not None:
                    break  # it is safe, so that no further source need be asked
                if not done and queue:
                    calls.ask(queue.pop(0))
        finally:
            if time.monotonic() - began >= self._budget_s:  # else who asked has given the question up
                self._late |= calls.sources  # asked and not heard: how long they would have taken, nobody knows
            calls.cancel()
        return None

    def _patience(self, source: IdentitySource) -> float:
        return self._budget_s if self._dead_until.get(source.source, 0.0) > time.monotonic() else self._patience_s

    def _note_time(self, source: Source, seconds: float) -> None:
        self._dead_until.pop(source, None)
        if seconds > self._budget_s:
            self._late.add(source)
        else:
            self._late.discard(source)

    def _note_silence(self, silent: Iterable[Source], waited_s: float, errors: dict[Source, str]) -> None:
        for source in silent:
            errors[source] = f"no answer within {waited_s:g} s"
            if waited_s > self._budget_s:
                self._dead_until[source] = time.monotonic() + self._dead_s
                log.warning("identity_source_silent", source=source.value, waited_s=waited_s)

    async def _choose(self, source: IdentitySource, pairs: Pairs, question: Question) -> IdentifiedContainer:
        half = question.half
        if half is not None and len(pairs) > 1 and any(each.ref == half.container.ref for _, each in pairs):
            return half
        if half is not None and half.is_partial and any(pod.ref == half.pod.ref for pod, _ in pairs):
            return half  # of its containers only the names are known, and the first call may have named another one
        for other in self._exact:
            if len(pairs) > 1 and other is not source:
                pairs = await self._narrow(other, question, pairs) or pairs
        if len(pairs) > 1:
            log.warning("identity_ambiguous", source=source.source.value, pods=[str(pod.ref) for pod, _ in pairs])
            # Kubelet lists a pod right before it admits it, so the call is most likely for the youngest of the list.
            return _guess(source.source, pairs, max(pairs, key=lambda pair: pair[0].seen_by_kubelet))
        return IdentifiedContainer(*pairs[0], source.source)

    async def _narrow(self, source: IdentitySource, question: Question, pairs: Pairs) -> Pairs:
        try:
            async with asyncio.timeout(self._patience(source)):
                return await source.narrow(question, pairs)
        except (TimeoutError, VcudaError):
            return []


class _Calls:
    """The sources that are asked at the moment, each in a task."""

    def __init__(self, question: Question, pace: Pace) -> None:
        self._question = question
        self._pace = pace
        self._tasks: dict[asyncio.Task[tuple[Pairs, str]], IdentitySource] = {}

    @property
    def sources(self) -> set[Source]:
        return {source.source for source in self._tasks.values()}

    def ask(self, source: IdentitySource) -> None:
        self._tasks[asyncio.create_task(_asked(source, self._question, self._pace))] = source

    async def wait(self, seconds: float) -> list[tuple[IdentitySource, Pairs, str]]:
        """What has been answered, in the order of the sources; empty if nothing was in time."""
        await asyncio.wait(self._tasks, timeout=max(seconds, 0.0), return_when=asyncio.FIRST_COMPLETED)
        return [(self._tasks.pop(task), *task.result()) for task in tuple(self._tasks) if task.done()]

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


async def _asked(source: IdentitySource, question: Question, pace: Pace) -> tuple[Pairs, str]:
    """The candidates of a source, or why there are none."""
    try:
        return await source.candidates(question), "shows no such container"
    except VcudaError as error:
        if pace.allows(source.source, error.message):
            log.warning("identity_source_failed", source=source.source.value, error=error.message)
        return [], error.message


def _guess(source: Source, pairs: Pairs, chosen: tuple[Pod, PodContainer]) -> IdentifiedContainer:
    others = tuple(pair for pair in pairs if pair is not chosen)
    return IdentifiedContainer(*chosen, source, certain=False, others=others)
