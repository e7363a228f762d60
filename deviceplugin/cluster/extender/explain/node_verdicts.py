"""Nodes in full for whoever asks why a pod waits: what speaks against each GPU, who holds it, what would help.

In: a pod, and why each node does not carry it. Out: `NodeVerdict` of those that lack least. GPUs are looked at afresh,
so an answer may say that the pod fits by now. The loop is given to others in between.
"""

from collections.abc import Mapping

from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.explain.explanation import GpuVerdict, NodeVerdict
from deviceplugin.cluster.extender.explain.missing import FAR, Missing, missing_on, nearness, what_to_change
from deviceplugin.cluster.extender.explain.pace import Pace
from deviceplugin.cluster.extender.refusal import Refusal
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import View
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest

_NOTHING: Mapping[str, str] = {}


class NodeVerdicts:
    """Reads only."""

    def __init__(self, books: Books, view: View, settings: Settings) -> None:
        self._books = books
        self._view = view
        self._settings = settings

    async def nearest(
        self,
        pod: ClusterPod,
        asked: PodRequest,
        refused: Mapping[str, Refusal],
        *,
        most: int,
        changes: Mapping[str, str] = _NOTHING,
    ) -> tuple[NodeVerdict, ...]:
        """Those first where waiting helps, and of them those that lack least; `changes` are known already."""
        if not asked.containers:
            return ()
        pace = Pace()
        order: list[tuple[bool, int, str]] = []
        for name, why in refused.items():
            order.append((not why.resolvable, self._nearness(pod, asked, name), name))
            await pace.step()
        judged: list[tuple[bool, int, str, Missing]] = []
        for _, _, name in sorted(order)[:most]:
            missing = self._missing(pod, asked, name)
            judged.append((not refused[name].resolvable, missing.order, name, missing))
            await pace.rest()
        judged.sort(key=lambda one: one[:3])
        return tuple(
            self._node(pod, name, refused[name], missing, changes.get(name, "")) for _, _, name, missing in judged
        )

    def _nearness(self, pod: ClusterPod, asked: PodRequest, name: str) -> int:
        state = self._view.node(pod, name)
        return FAR if isinstance(state, Refusal) else nearness(asked, state)

    def _missing(self, pod: ClusterPod, asked: PodRequest, name: str) -> Missing:
        state = self._view.node(pod, name)
        return Missing() if isinstance(state, Refusal) else missing_on(asked, state, self._settings.gpu_policy)

    def _node(self, pod: ClusterPod, name: str, why: Refusal, missing: Missing, change: str) -> NodeVerdict:
        book = self._books.nodes.get(name)
        gpus = tuple(
            GpuVerdict(gpu.uuid, gpu.minor, gpu.model, against, self._holders(pod, name, gpu.uuid))
            for gpu, against in missing.gpus
        )
        sentence = f"{book.sentence}; " if book and book.sentence else ""
        return NodeVerdict(name, why.text, sentence + (change or what_to_change(why, missing)), gpus)

    def _holders(self, pod: ClusterPod, name: str, uuid: GpuUuid) -> tuple[str, ...]:
        """Pods whose place on the node nobody has told us yet are named for each GPU."""
        book = self._books.nodes.get(name)
        lines: list[str] = []
        for held in () if book is None else book.holdings.values():
            if held.pod.uid == pod.uid:
                continue
            parts = [share for one in held.allocations for share in one.shares if share.uuid == uuid]
            if parts:
                cores, blocks = sum(part.cores for part in parts), sum(part.blocks for part in parts)
                lines.append(f"{held.pod}: {cores} cores, {blocks} blocks ({held.hold.value})")
            elif held.somewhere:
                lines.append(f"{held.pod}: somewhere on this node, not known where yet")
        return tuple(lines)
