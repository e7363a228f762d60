"""Who is asking? From a resource and a count to the one container that kubelet asks for.

In: a question and the sources in their order (`--identity`). Out: a `Claim`, certain or a marked guess, or an
IdentityError that lists what each source said. While Allocate runs, exactly one pod in kubelet's own view wants the
resource and lacks it (design 3.2); a source that shows several is asked to be narrowed down by the next one. Each
source has its own small budget, because kubelet waits for us without any deadline and the node stands still meanwhile.
A source that ran into its budget is left out for a while, so that a dead API server costs one slow call and not all;
where no other knows the container it is asked all the same, for a refused pod is worse than another wait.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from deviceplugin.errors import IdentityError, VcudaError
from deviceplugin.kubelet.claims import Answered, Claim
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import Resource

log = structlog.get_logger(__name__)
_REST_S = 10.0
Key = tuple[PodUid, str]


@dataclass(frozen=True, slots=True)
class Question:
    """One call from kubelet.

    `recorded`: kubelet's checkpoint has the container. `proved`: PreStartContainer has proved its grant. `guess`: what
    the call before was taken for, if that was a guess: kubelet asks for both resources of a container in a row.
    """

    resource: Resource
    count: int
    answered: Answered
    recorded: Callable[[Key], bool]
    proved: Callable[[Key], bool]
    guess: Allocation | None = None

    def completes(self, container: PodContainer) -> bool:
        """Whether the container may be the one of the call before: it wanted that count and has no answer for it."""
        if self.guess is None:
            return False
        other, request = self.resource.other, self.guess.request
        asked = request.cores if other is Resource.CORE else request.blocks
        return container.wants(other) == asked and not self.answered(container.ref.key, other)


class IdentitySource(Protocol):
    """Something that shows pods. `exact` sources see what kubelet sees; the others only what may come next."""

    source: Source
    exact: bool
    budget_s: float

    async def candidates(self, question: Question) -> list[tuple[Pod, PodContainer]]: ...

    async def narrow(
        self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]
    ) -> list[tuple[Pod, PodContainer]]:
        """Those of the pairs that this source cannot rule out."""
        ...


@dataclass(slots=True)
class _Attempt:
    pairs: list[tuple[Pod, PodContainer]] = field(default_factory=list)
    said: str = ""


class Identity:
    """Asks the sources in order; keeps no state but which of them is resting."""

    def __init__(self, sources: Sequence[IdentitySource], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._resting: dict[Source, float] = {}

    async def identify(self, question: Question) -> Claim:
        said: list[str] = []
        awake = [source for source in self._sources if not self._is_resting(source)]
        resting = [source for source in self._sources if source not in awake]
        for source in (*awake, *resting):
            attempt = await self._ask(source, question)
            if attempt.pairs:
                others = self._sources[self._sources.index(source) + 1 :]
                return await self._choose(source, others, question, attempt.pairs)
            said.append(f"{source.source.value}: {attempt.said or 'shows no such container'}")
        raise IdentityError(
            f"kubelet asked for {question.count} x {question.resource.value} and no pod of this node wants that many "
            f"({'; '.join(said) or 'no identity source is configured'}); create the pod again"
        )

    async def _ask(self, source: IdentitySource, question: Question) -> _Attempt:
        try:
            async with asyncio.timeout(source.budget_s):
                return _Attempt(pairs=await source.candidates(question))
        except TimeoutError:
            self._resting[source.source] = self._clock() + _REST_S
            said = f"no answer within {source.budget_s:g} s"
        except VcudaError as error:
            said = error.message
        log.warning("identity source failed", source=source.source.value, cause=said)
        return _Attempt(said=said)

    def _is_resting(self, source: IdentitySource) -> bool:
        return len(self._sources) > 1 and self._resting.get(source.source, 0.0) > self._clock()

    async def _choose(
        self,
        source: IdentitySource,
        others: Sequence[IdentitySource],
        question: Question,
        pairs: list[tuple[Pod, PodContainer]],
    ) -> Claim:
        for other in others:
            if len(pairs) < 2 or not other.exact:
                break
            pairs = await self._narrow(other, question, pairs) or pairs
        if len(pairs) > 1:
            log.warning("identity is ambiguous", source=source.source.value, pods=[str(pod.ref) for pod, _ in pairs])
        pod, container = pairs[0] if not source.exact else max(pairs, key=lambda pair: pair[0].seen_by_kubelet)
        rest = tuple(each for _, each in pairs if each is not container)
        return Claim(pod, container, source.source, certain=source.exact and not rest, others=rest)

    async def _narrow(
        self, source: IdentitySource, question: Question, pairs: list[tuple[Pod, PodContainer]]
    ) -> list[tuple[Pod, PodContainer]]:
        try:
            async with asyncio.timeout(source.budget_s):
                return await source.narrow(question, pairs)
        except (TimeoutError, VcudaError):
            return []
