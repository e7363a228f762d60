"""The extender's verbs on one cache, and the events that keep the cache up to date.

In: values of `wire`, changes of pods and nodes, the API server's verbs. Out: values of `wire`. Not here: HTTP, who may
call, and whether the cache is complete (`scheduler` answers nothing before).
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from deviceplugin.cluster.extender.bind import Bind, BindApi
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.claims import ClaimExplain
from deviceplugin.cluster.extender.explain.explain import Explain
from deviceplugin.cluster.extender.explain.verdicts import Verdicts, pending, record_of, summary
from deviceplugin.cluster.extender.filter import Filter, prioritize
from deviceplugin.cluster.extender.gangs import GangTracker
from deviceplugin.cluster.extender.preempt import Preempt
from deviceplugin.cluster.extender.recent_events import RecentEvents
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.cluster.extender.watchers import NodeApi, OvercommitMonitor, WakeUp, WorkloadHistory
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.annotations import DecisionRecord
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import ClusterPod
from deviceplugin.placement.fragmentation import ASSUMED, ObservedWorkload, Workload
from deviceplugin.placement.nodes import NodeScorer


class ClusterApi(BindApi, NodeApi, Protocol):
    """All that the extender needs of the API server; `kube.cluster_client` has it."""


class Extender:
    """The verbs are attributes: `filter`, `prioritize`, `bind`, `preempt`, `explain`. The caller runs `wake_up.run()`,
    and `expire` and `resolve` about once a second. `cache`, `snapshot` and `scorer` serve other schedulers' verbs too.
    `placed` is called with why a pod is bound where it is, `unbound` with why one was not bound after its node was
    chosen.
    """

    def __init__(
        self,
        api: ClusterApi,
        settings: PlacementSettings = PlacementSettings(),
        *,
        placed: Callable[[PodRef, str], None] = lambda _pod, _why: None,
        unbound: Callable[[PodRef, str], None] = lambda _pod, _why: None,
        typical: Workload = ASSUMED,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        names = annotation_names(settings.names.domain)
        self.recent_events = RecentEvents(decision=names.decision, wall=wall)
        self.verdicts = verdicts = Verdicts(wall=wall)
        self.wake_up = WakeUp(api, names, has_unplaced_pods=lambda: verdicts.has_unplaced_pods, wall=wall)
        self.cache = cache = SchedulerCache(clock, names=settings.names, freed=self.wake_up.freed)
        self.put_plain, self.drop_plain = cache.put_plain, cache.drop_plain
        self.overcommit = OvercommitMonitor(cache)
        self.observed = ObservedWorkload()
        self.scorer = scorer = NodeScorer(
            typical, node_policy=settings.node_policy, gpu_policy=settings.gpu_policy, leaves_out=False
        )
        self._names = settings.names
        self._history = WorkloadHistory(scorer, clock=clock, observed=self.observed)
        self._gangs = GangTracker(cache, verdicts, settings=settings, clock=clock)
        self.snapshot = snapshot = ClusterSnapshot(cache, settings, scorer)
        self.filter = Filter(snapshot, verdicts, self._gangs, clock=clock, wall=wall).filter
        self.prioritize = partial(prioritize, snapshot)
        self.preempt = Preempt(snapshot).victims
        self._binder = bind = Bind(
            cache, api, settings=settings, clock=clock, why=self._why, bound=partial(_say_why, placed), unbound=unbound
        )
        self.bind, self.drain = bind.bind, bind.drain
        self.unconfirmed, self.resolve = bind.unconfirmed, bind.unconfirmed.resolve
        self.explain = Explain(snapshot, verdicts, ClaimExplain(cache).explain).explain
        self.pending = partial(pending, cache, verdicts)

    def _why(self, held: PodHold, inventory: Inventory | None) -> DecisionRecord | None:
        """The decision that led to this hold, for its annotation."""
        return record_of(self.verdicts.decision(held.pod.uid), held.pod, held.node, held.allocations, inventory)

    def put_node(self, node: ClusterNode) -> None:
        self.cache.put_node(node)
        self.recent_events.node_changed(node.name, self.cache.nodes.get(node.name))

    def drop_node(self, name: str) -> None:
        self.cache.drop_node(name)
        self.recent_events.node_changed(name, self.cache.nodes.get(name))
        self.scorer.forget(name)

    def put_pod(self, pod: ClusterPod) -> None:
        asked = None
        if self.cache.is_new(pod.uid):  # asked before the cache has this version, as are the two below
            asked = self._history.record(pod, self._names)
        before, is_over = self.cache.pod(pod.uid), self.cache.is_over(pod.uid)
        self.cache.put_pod(pod, asked)
        if pod.pod.is_gpu and not is_over:
            self.recent_events.pod_changed(before, pod)
        if pod.pod.node or pod.pod.is_terminal:
            self.unconfirmed.confirmed(pod.uid)
            self.verdicts.forget(pod.uid)
        if pod.pod.node or pod.pod.is_terminal or pod.pod.deleting:
            self._gangs.left(pod.uid)

    def drop_pod(self, uid: PodUid) -> None:
        self.recent_events.pod_gone(self.cache.pod(uid))
        self.cache.drop_pod(uid)
        self._gangs.left(uid)
        self.unconfirmed.confirmed(uid)
        self.verdicts.forget(uid)

    def warm_up(self) -> None:
        """Once the cache is complete after the start: the first request is then as fast as the others."""
        self.scorer.see(node_info.state for node_info in self.cache.nodes.values() if node_info.problem is None)
        self._history.renew()
        self.recent_events.begin()

    def expire(self) -> None:
        """Expires reservations, and does background work that no request should wait for."""
        self.cache.expire()
        self._gangs.expire()
        self.overcommit.check()
        self._history.refresh()


def _say_why(placed: Callable[[PodRef, str], None], pod: PodRef, decision: DecisionRecord) -> None:
    placed(pod, summary(decision))
