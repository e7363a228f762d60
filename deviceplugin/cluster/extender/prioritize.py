"""prioritize: a score for each node that kube-scheduler may still choose.

In: a pod and node names. Out: a score from 0 to 10 for each, in the order of the node policy: 10 for the best, 0 for
the worst, equal scores for equally good nodes. kube-scheduler multiplies it by the extender's weight and adds it to the
scores of its own plugins.
"""

from collections.abc import Mapping

from deviceplugin.cluster.extender.cache.node_info import needs_of
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.cluster.extender.wire import ExtenderArgs
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.budget import Budget
from deviceplugin.placement.nodes import NodeScorer

BEST = 10


class Prioritize:
    """Reads only."""

    def __init__(self, snapshot: ClusterSnapshot, *, scorer: NodeScorer, names: ResourceNames) -> None:
        self._snapshot = snapshot
        self._scorer = scorer
        self._names = names

    def scores(self, args: ExtenderArgs, budget: Budget | None = None) -> tuple[tuple[str, int], ...]:
        ranked: Mapping[str, tuple[int, ...]] = {}
        if args.pod.pod.is_gpu:
            ranked = self._ranked(args, budget or Budget())
        return tuple(zip(args.names, scaled([ranked.get(name) for name in args.names]), strict=True))

    def _ranked(self, args: ExtenderArgs, budget: Budget) -> Mapping[str, tuple[int, ...]]:
        try:
            asked = pod_request(args.pod.pod, self._names)
        except (RequestError, ParseError):
            return {}
        states = self._snapshot.nodes(args.pod, args.names, budget).states
        return self._scorer.ranked(asked, states, needs=needs_of(args.pod.needs), budget=budget)


def scaled(ranks: list[tuple[int, ...] | None]) -> list[int]:
    """The lowest rank is the best; a node without a rank scores like the worst."""
    order = sorted({rank for rank in ranks if rank is not None})
    if not order:
        return [0] * len(ranks)
    last = max(1, len(order) - 1)
    scores = {rank: BEST - at * BEST // last for at, rank in enumerate(order)}
    return [0 if rank is None else scores[rank] for rank in ranks]
