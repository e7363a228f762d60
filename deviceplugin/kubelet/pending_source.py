"""Identity source 3: pending pods of this node from the API server, oldest prediction first.

In: the pods of the reflector. Out: the first container whose counts fit, in kubelet's order. A guess, as in the
lineage: kubelet may admit pods in another order. It is marked as one and PreStartContainer proves or repairs it. A
container that got its other resource a moment ago comes first: kubelet asks for both before it goes on.
"""

from collections.abc import Callable, Sequence

from deviceplugin.errors import ParseError
from deviceplugin.kubelet.claims import again, candidates
from deviceplugin.kubelet.identity import Question
from deviceplugin.ledger.grant import Source
from deviceplugin.model.pod import Pod, PodContainer


class PendingSource:
    """`predicate_time` reads the scheduler's annotation of a pod, in nanoseconds; None where it has none."""

    source = Source.APISERVER
    exact = False

    def __init__(
        self, known: Callable[[], Sequence[Pod]], *, predicate_time: Callable[[Pod], int | None], budget_s: float
    ) -> None:
        self._known = known
        self._predicate_time = predicate_time
        self.budget_s = budget_s

    async def candidates(self, question: Question) -> list[tuple[Pod, PodContainer]]:
        known = self._known()
        found = candidates(known, question.resource, question.count, question.answered)
        if question.guess is not None:
            # The guess of the call before stands if it fits, else whoever wants both counts was meant all along.
            owner = [pair for pair in found if pair[1].ref.key == question.guess.owner.key]
            found = owner or [pair for pair in found if question.completes(pair[1])] or found
        if not found:
            found = self._again(question, known)
        return sorted(found, key=lambda pair: self._order(pair[0]))

    def _again(self, question: Question, known: Sequence[Pod]) -> list[tuple[Pod, PodContainer]]:
        """Kubelet can only have forgotten what was proved or paired just now: other guesses were never its."""
        paired = question.guess.owner.key if question.guess is not None else None
        return [
            pair
            for pair in again(known, question.resource, question.count, question.recorded)
            if question.proved(pair[1].ref.key) or pair[1].ref.key == paired
        ]

    async def narrow(
        self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]
    ) -> list[tuple[Pod, PodContainer]]:
        return list(pairs)

    def _order(self, pod: Pod) -> tuple[float, str]:
        try:
            predicted = self._predicate_time(pod)
        except ParseError:
            predicted = None
        return (predicted / 1e9 if predicted is not None else pod.created, pod.ref.name)
