"""Why a pod waits: for each node and GPU what speaks against it and what must change; or where the pod is.

In: the cache as it is now, and filter's last verdict. Out: an `Explanation`, which `/explain` writes as JSON: its field
names are an interface. Where filter was asked, its verdict gives the reasons of nodes. Where it was not, or
kube-scheduler has decided since without asking, every node is evaluated now, and the answer says so. Nodes that lack
least come first; of a large cluster only those are shown in full.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain import wording
from deviceplugin.cluster.extender.explain.decision import why_lines
from deviceplugin.cluster.extender.explain.evaluate import Evaluator, Shortfall
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict, Verdicts
from deviceplugin.cluster.extender.rejection import Rejection
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, placeable_request
from deviceplugin.model.soft_rules import soft_line

_MOST_NODES = 20
Named = Callable[[PodRef], str]


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """`against` is empty where this GPU can serve the pod; `holders` are pods with what they hold of it."""

    uuid: GpuUuid
    minor: int
    model: str
    against: str
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """`change`: what must change for the pod to fit here."""

    node: str
    reason: str
    change: str
    gpus: tuple[GpuVerdict, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`at` is when filter was last asked, in Unix seconds, 0.0 where it never was.

    `now`: the nodes were judged for this answer, by what is known now; else they are as filter last judged them.
    `condition` is what the scheduler wrote into the pod's condition PodScheduled. `reasons` counts the nodes by reason,
    `left_out` those without detail. `why`: why a bound pod is there, and what was passed over; a line that
    begins with spaces belongs to the line before.
    """

    pod: str
    sentence: str
    at: float = 0.0
    node: str | None = None
    asked: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[NodeVerdict, ...] = ()
    left_out: int = 0
    now: bool = False
    condition: str = ""
    why: tuple[str, ...] = ()


class Explain:
    """Reads only. `named` says how the answer shows a pod on a GPU: by its name, or by its UID."""

    def __init__(
        self, cache: SchedulerCache, snapshot: ClusterSnapshot, verdicts: Verdicts, *, settings: Settings
    ) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._verdicts = verdicts
        self._settings = settings

    async def explain(self, namespace: str, name: str, named: Named = str) -> Explanation | None:
        """None where no pod of that name waits or is bound."""
        waiting = self._cache.waiting_pod(namespace, name)
        verdict = self._verdicts.find(namespace, name) if waiting is None else self._verdicts.of(waiting.uid)
        if verdict is not None and not self._is_superseded(verdict, waiting):
            return await self._as_judged(verdict, waiting, named)
        if waiting is not None:
            return await self._as_evaluated(waiting, verdict, named)
        return self.bound(namespace, name)

    def bound(self, namespace: str, name: str) -> Explanation | None:
        """None where no pod of that name is bound. Looks through all pods: people ask rarely."""
        for node_info in self._cache.nodes.values():
            for held in node_info.holds.values():
                if held.is_bound and (held.pod.namespace, held.pod.name) == (namespace, name):
                    problem = f"; {held.problem}" if held.problem else ""
                    sentence = f"the pod is bound to node {node_info.name}{problem}"
                    lines = wording.hold_lines(held)
                    why = why_lines(held.why, held.pod, held.node, held.allocations, node_info.inventory)
                    why += self._soft(self._cache.pod(held.pod.uid), node_info.name) if why else ()
                    return Explanation(f"{namespace}/{name}", sentence, node=node_info.name, asked=lines, why=why)
        return None

    def _soft(self, pod: ClusterPod | None, node: str | None = None) -> tuple[str, ...]:
        """What is preferred and does not count, where the extender chooses. `node`: where the pod is or will be."""
        if pod is None or not self._settings.one_node:
            return ()
        info = self._cache.nodes.get(node or "")
        is_discouraged = info is not None and info.node is not None and info.node.discouraged
        line = soft_line(pod.soft_rules, (node or "") if is_discouraged else "")
        return (line,) if line else ()

    def _is_superseded(self, verdict: LastVerdict, waiting: ClusterPod | None) -> bool:
        return waiting is not None and not any(self._cache.holds(waiting.uid)) and verdict.is_superseded_by(waiting)

    async def _as_judged(self, verdict: LastVerdict, waiting: ClusterPod | None, named: Named) -> Explanation:
        pod = verdict.pod
        held = tuple(self._cache.holds(pod.uid))
        lines = tuple(line for each in held for line in wording.hold_lines(each))
        lines += self._soft(pod, verdict.node)
        nodes: tuple[NodeVerdict, ...] = ()
        never_asked = uncompared = ""
        try:
            asked = placeable_request(pod.pod, self._settings.names)
        except (RequestError, ParseError):
            pass  # the reason of each node says it
        else:
            lines = (*wording.request_lines(asked), *lines)
            evaluator = self._evaluator(pod, asked)
            nodes = await self._nodes(evaluator, pod.uid, verdict.refused, named)
            uncompared = wording.uncompared_sentence(evaluator.uncompared)
            if not verdict.fits and not held:
                others = self._snapshot.usable_but(verdict.refused)
                never_asked = wording.never_asked_sentence(len(others), sorted(await evaluator.with_room(others)))
        return Explanation(
            pod=str(pod.pod.ref),
            sentence=wording.verdict_sentence(verdict, next(iter(held), None)) + never_asked + uncompared,
            at=verdict.at,
            node=verdict.node,
            asked=lines,
            reasons=_counted(verdict.refused.values()),
            nodes=nodes,
            left_out=len(verdict.refused) - len(nodes),
            condition="" if held or waiting is None else _condition(waiting),
        )

    async def _as_evaluated(self, pod: ClusterPod, verdict: LastVerdict | None, named: Named) -> Explanation:
        name, at = str(pod.pod.ref), 0.0 if verdict is None else verdict.at
        history = wording.history_sentence(pod, verdict, webhook_scheduler=self._settings.scheduler)
        try:
            asked = placeable_request(pod.pod, self._settings.names)
        except (RequestError, ParseError) as error:
            sentence = f"{history}; its request is wrong, so it fits on no node"
            return Explanation(name, sentence, at, asked=(error.message,), now=True, condition=_condition(pod))
        evaluator = self._evaluator(pod, asked)
        found = await evaluator.evaluate()
        refused = pod.is_refused and not pod.pod.deleting
        nodes = await self._nodes(evaluator, pod.uid, found.rejections, named, changes=found.changes)
        return Explanation(
            pod=name,
            sentence=f"{history}; evaluated now, {wording.evaluation_sentence(found, refused=refused)}"
            + wording.uncompared_sentence(evaluator.uncompared),
            at=at,
            asked=(*wording.request_lines(asked), *self._soft(pod)),
            reasons=_counted(found.rejections.values()),
            nodes=nodes,
            left_out=len(found.rejections) - len(nodes),
            now=True,
            condition=_condition(pod),
        )

    def _evaluator(self, pod: ClusterPod, asked: PodRequest) -> Evaluator:
        return Evaluator(self._cache, self._snapshot, self._settings.names, pod, asked)

    async def _nodes(
        self,
        evaluator: Evaluator,
        pod: PodUid,
        rejections: Mapping[str, Rejection],
        named: Named,
        *,
        changes: Mapping[str, str] | None = None,
    ) -> tuple[NodeVerdict, ...]:
        """`changes`: by node, where they are known already."""
        nearest = await evaluator.nearest(rejections, most=_MOST_NODES)
        known = changes or {}
        return tuple(
            self._node(pod, name, rejections[name], lacks, known.get(name, ""), named) for name, lacks in nearest
        )

    def _node(self, pod: PodUid, name: str, why: Rejection, lacks: Shortfall, change: str, named: Named) -> NodeVerdict:
        node_info = self._cache.nodes.get(name)
        gpus = tuple(
            GpuVerdict(
                *(gpu.uuid, gpu.minor, gpu.model, against),
                holders=() if node_info is None else wording.holder_lines(node_info, gpu.uuid, but=pod, named=named),
            )
            for gpu, against in lacks.gpus
        )
        problem = f"{node_info.sentence}; " if node_info and node_info.sentence else ""
        return NodeVerdict(name, why.text, problem + (change or wording.change_text(why, lacks)), gpus)


def _counted(reasons: Iterable[Rejection]) -> Mapping[str, int]:
    return dict(Counter(why.text for why in reasons).most_common())


def _condition(pod: ClusterPod) -> str:
    return "" if pod.condition is None else " ".join(pod.condition.message.split())
