"""What happened in the cluster lately, for people who look at it.

In: changes of nodes and pods as the cache takes them. Out: events, at most `most` of each kind, so that a flood of one
kind leaves the others alone; the oldest of the namespace with most of them goes, so that a flood of one namespace does
too. A pod that waits has one event, with a count, for kube-scheduler refuses it again and again. What was there at the
start is no news: nothing is noted before `begin`. Every replica sees the same changes, and notes the same.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping

import msgspec

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.explain.verdicts import summary, written_decision
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.cluster_view import ClusterEventKind, ClusterEventRow
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod, ScheduledCondition

_MOST = 500
_LONGEST = 500


class _NodeFace(msgspec.Struct, frozen=True):
    """Why the node, and why each of its GPUs, takes no new pods; empty if it does."""

    problem: str
    closed: Mapping[GpuUuid, str] = msgspec.field(default_factory=dict)
    indices: Mapping[GpuUuid, int] = msgspec.field(default_factory=dict)


class RecentEvents:
    """`most` events of each kind are kept; `dropped` counts those that are not any more."""

    def __init__(self, *, decision: str, most: int = _MOST, wall: Callable[[], float] = time.time) -> None:
        self._decision = decision
        self._most = most
        self._wall = wall
        self._events: dict[ClusterEventKind, OrderedDict[int, ClusterEventRow]] = {
            kind: OrderedDict() for kind in ClusterEventKind
        }
        self._of_namespaces = {kind: Counter[str]() for kind in ClusterEventKind}
        self._waiting: dict[PodUid, int] = {}
        self._faces: dict[str, _NodeFace] = {}
        self._last = 0
        self.since = 0.0
        self.dropped = 0

    def begin(self) -> None:
        """The cache is complete: what changes from now on is news."""
        self.since = self._wall()

    def __iter__(self) -> Iterator[tuple[int, ClusterEventRow]]:
        """In no order; the number of an event grows."""
        for events in self._events.values():
            yield from tuple(events.items())

    def pod_changed(self, before: ClusterPod | None, after: ClusterPod) -> None:
        pod = after.pod
        if pod.is_terminal:
            if before is not None:
                self._note(ClusterEventKind.ENDED, f"ended: {pod.phase}", pod=pod.ref, node=pod.node)
        elif pod.node and (before is None or not before.pod.node):
            why = written_decision(pod.annotations.get(self._decision, ""))
            sentence = summary(why) if why is not None else f"bound to node {pod.node}"
            self._note(ClusterEventKind.PLACED, sentence, pod=pod.ref, node=pod.node)
        elif not pod.node and (before is None or before.condition != after.condition):
            self._waits(after, after.condition)

    def pod_gone(self, before: ClusterPod | None) -> None:
        if before is not None:
            self._note(ClusterEventKind.ENDED, "deleted", pod=before.pod.ref, node=before.pod.node)

    def _waits(self, pod: ClusterPod, condition: ScheduledCondition | None) -> None:
        """kube-scheduler refused the pod, or says something else than before: one event for each pod."""
        if condition is None or condition.is_true:
            return
        number = self._waiting.get(pod.uid)
        earlier = None if number is None else self._drop(ClusterEventKind.PENDING, number)
        first, count = (None, 0) if earlier is None else (earlier.first, earlier.count)
        sentence = " ".join(condition.message.split()) or condition.reason or "refused by kube-scheduler"
        if self._note(ClusterEventKind.PENDING, sentence, pod=pod.pod.ref, first=first, count=count + 1):
            self._waiting[pod.uid] = self._last

    def node_changed(self, name: str, info: NodeInfo | None) -> None:
        """`info` is None, or without a node object, where the node was deleted."""
        before = self._faces.pop(name, None)
        if info is None or info.node is None:
            if before is not None:
                self._note(ClusterEventKind.NODE, "the node was deleted", node=name)
            return
        after = _face(info)
        if before is None and (info.inventory is None and not info.node.inventory):
            return  # a node without an agent
        self._faces[name] = after
        if before is None or before.problem != after.problem:
            sentence = f"unavailable: {after.problem}" if after.problem else "available"
            self._note(ClusterEventKind.NODE, sentence, node=name)
        if before is not None:
            for uuid in sorted({*before.closed, *after.closed}, key=lambda each: after.indices.get(each, 0)):
                self._gpu_changed(name, before, after, uuid)

    def _gpu_changed(self, node: str, before: _NodeFace, after: _NodeFace, uuid: GpuUuid) -> None:
        was, now = before.closed.get(uuid, ""), after.closed.get(uuid, "")
        if was != now and uuid in after.indices:
            sentence = f"GPU {after.indices[uuid]} {f'unavailable: {now}' if now else 'available'}"
            self._note(ClusterEventKind.GPU, sentence, node=node)

    def _note(
        self,
        kind: ClusterEventKind,
        sentence: str,
        *,
        pod: PodRef | None = None,
        node: str = "",
        first: float | None = None,
        count: int = 1,
    ) -> bool:
        """Whether it was noted."""
        if not self.since:
            return False
        self._last += 1
        now = self._wall()
        since = now if first is None else first
        uid, namespace, name = ("", "", "") if pod is None else (pod.uid, pod.namespace, pod.name)
        events, counts = self._events[kind], self._of_namespaces[kind]
        events[self._last] = ClusterEventRow(kind, since, now, count, uid, namespace, name, node, sentence[:_LONGEST])
        counts[namespace] += 1
        if len(events) > self._most:
            most = max(counts.values())
            self._drop(kind, next(number for number, each in events.items() if counts[each.namespace] == most))
            self.dropped += 1
        return True

    def _drop(self, kind: ClusterEventKind, number: int) -> ClusterEventRow:
        event, counts = self._events[kind].pop(number), self._of_namespaces[kind]
        counts[event.namespace] -= 1
        if not counts[event.namespace]:
            del counts[event.namespace]
        if kind is ClusterEventKind.PENDING:
            self._waiting.pop(PodUid(event.uid), None)
        return event


def _face(info: NodeInfo) -> _NodeFace:
    problem = "" if info.problem is None else info.problem.text
    if info.inventory is None:
        return _NodeFace(problem)
    closed = {gpu.uuid: why for gpu in info.inventory.gpus if (why := info.closed(gpu))}
    return _NodeFace(problem, closed, {gpu.uuid: gpu.index for gpu in info.inventory.gpus})
