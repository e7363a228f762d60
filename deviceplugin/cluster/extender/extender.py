"""The extender as one object: its verbs, and what it has to be told.

In: values of `wire`, changes of pods and nodes, the API server's verbs. Out: values of `wire`. Not here: HTTP, whether
the watches are in step (`scheduler` answers nothing before), and who may ask.
"""

import time
from collections.abc import Callable
from typing import Protocol

from deviceplugin.cluster.extender.bind.bind import Bind
from deviceplugin.cluster.extender.bind.binding_writer import Api
from deviceplugin.cluster.extender.cache.overcommit import Overbooked
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.explain.explain import Explain
from deviceplugin.cluster.extender.explain.explanation import Explanation
from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.cluster.extender.filter import Filter
from deviceplugin.cluster.extender.gangs import Gangs
from deviceplugin.cluster.extender.preempt import Preempt
from deviceplugin.cluster.extender.prioritize import Prioritize
from deviceplugin.cluster.extender.settings import DEFAULT_SETTINGS, Settings
from deviceplugin.cluster.extender.wake_up import NodeApi, WakeUp
from deviceplugin.cluster.extender.wire import BindOrder, Filtered, PreemptQuestion, Question, Victims
from deviceplugin.cluster.extender.workload_history import Expectation
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.pod import ClusterPod, PlainPod
from deviceplugin.placement.nodes import NodeScorer
from deviceplugin.placement.workload import ASSUMED, ObservedWorkload, Workload


class ClusterApi(Api, NodeApi, Protocol):
    """All that the extender needs of the API server; `kube.cluster_client` has it."""


class Extender:
    """`wake_up.run()` is to be run beside it. `freed` gets the node's name when room appears there."""

    def __init__(
        self,
        api: ClusterApi,
        settings: Settings = DEFAULT_SETTINGS,
        *,
        typical: Workload = ASSUMED,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.verdicts = Verdicts(wall=wall)
        self.wake_up = WakeUp(
            api, annotation_names(settings.names.domain), anybody_waits=lambda: self.verdicts.anybody_waits, wall=wall
        )
        self.books = Books(clock, names=settings.names, freed=self.wake_up.freed)
        self.overbooked = Overbooked(self.books)
        self._scorer = NodeScorer(typical, leaves_out=False)
        self._names = settings.names
        self.observed = ObservedWorkload()
        self._expectation = Expectation(self._scorer, clock=clock, observed=self.observed)
        self._gangs = Gangs(self.books, self.verdicts, patience=settings.patience, clock=clock)
        self._filter = Filter(
            self.books, self.verdicts, self._scorer, gangs=self._gangs, settings=settings, clock=clock
        )
        self._prioritize = Prioritize(self.books, self._scorer, settings=settings)
        self._bind = Bind(self.books, api, settings=settings, clock=clock)
        self._preempt = Preempt(self.books, settings=settings)
        self._explain = Explain(self.books, self.verdicts, settings=settings)

    def put_node(self, node: ClusterNode) -> None:
        self.books.put_node(node)
        self.overbooked.suspect(node.name)

    def drop_node(self, name: str) -> None:
        self.books.drop_node(name)
        self._scorer.forget(name)

    def put_pod(self, pod: ClusterPod) -> None:
        if self.books.is_new(pod.uid):
            self._expectation.see(pod, self._names)
        self.books.put_pod(pod)
        if pod.pod.node or pod.pod.is_terminal:
            self._bind.unconfirmed.confirmed(pod.uid)
            self.overbooked.suspect(pod.pod.node)
            self.verdicts.forget(pod.uid)

    def drop_pod(self, uid: PodUid) -> None:
        self.books.drop_pod(uid)
        self._bind.unconfirmed.confirmed(uid)
        self.verdicts.forget(uid)

    def put_plain(self, pod: PlainPod) -> None:
        self.books.put_plain(pod)

    def drop_plain(self, uid: PodUid) -> None:
        self.books.drop_plain(uid)

    def settle(self) -> None:
        """Once the books are complete after the start: the first question is then as quick as the others."""
        self._scorer.see(book.state for book in self.books.nodes.values() if book.problem is None)
        self._expectation.settle()

    def lapse(self) -> None:
        """To be called every second or so: what has waited too long, and what is better done while nobody asks."""
        self.books.lapse()
        self._gangs.lapse()
        self.overbooked.look()
        self._expectation.renew()

    async def resolve(self) -> None:
        """To be called now and then too: reads the pods of which only we say that they are bound, or may be."""
        await self._bind.unconfirmed.resolve()

    @property
    def unconfirmed(self) -> int:
        return len(self._bind.unconfirmed)

    def filter(self, question: Question) -> Filtered:
        return self._filter.filter(question)

    def prioritize(self, question: Question) -> tuple[tuple[str, int], ...]:
        return self._prioritize.scores(question)

    async def bind(self, order: BindOrder) -> str:
        return await self._bind.bind(order)

    async def idle(self) -> None:
        """Until no Binding is under way: before this, another replica should not lead."""
        await self._bind.idle()

    def preempt(self, question: PreemptQuestion) -> dict[str, Victims]:
        return self._preempt.victims(question)

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Reads only, and gives the loop to others in between."""
        return await self._explain.explain(namespace, name)

    def explain_bound(self, namespace: str, name: str) -> Explanation | None:
        """What any replica knows."""
        return self._explain.bound(namespace, name)
