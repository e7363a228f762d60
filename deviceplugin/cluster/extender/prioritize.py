"""prioritize: how much we like each of the nodes that kube-scheduler may still choose among.

In: a pod and names. Out: a score from 0 to 10 for each, by the order of the node policy: 10 for the best, 0 for the
worst, nodes that are equally good equal. kube-scheduler adds it, with its weight, to the scores of its own plugins.
"""

from collections.abc import Mapping

from deviceplugin.cluster.extender.cache.compute_usage import needs_of
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import View
from deviceplugin.cluster.extender.wire import Question
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.pod_request import pod_request
from deviceplugin.placement.nodes import NodeScorer

BEST = 10


class Prioritize:
    """Reads only."""

    def __init__(self, books: Books, scorer: NodeScorer, *, settings: Settings) -> None:
        self._scorer = scorer
        self._settings = settings
        self._view = View(books, policy=settings.gpu_policy, names=settings.names)

    def scores(self, question: Question) -> tuple[tuple[str, int], ...]:
        ranked: Mapping[str, tuple[int, ...]] = {}
        if question.pod.pod.is_gpu:
            ranked = self._ranked(question)
        return tuple(zip(question.names, scaled([ranked.get(name) for name in question.names]), strict=True))

    def _ranked(self, question: Question) -> Mapping[str, tuple[int, ...]]:
        try:
            asked = pod_request(question.pod.pod, self._settings.names)
        except (RequestError, ParseError):
            return {}
        states = self._view.nodes(question.pod, question.names).states
        policies = self._settings
        return self._scorer.choose(
            asked,
            states,
            node_policy=policies.node_policy,
            gpu_policy=policies.gpu_policy,
            needs=needs_of(question.pod.needs),
        ).ranked


def scaled(ranks: list[tuple[int, ...] | None]) -> list[int]:
    """The least rank is the best; what has none is as bad as the worst."""
    order = sorted({rank for rank in ranks if rank is not None})
    if not order:
        return [0] * len(ranks)
    last = max(1, len(order) - 1)
    scores = {rank: BEST - at * BEST // last for at, rank in enumerate(order)}
    return [0 if rank is None else scores[rank] for rank in ranks]
