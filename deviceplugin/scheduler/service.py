"""The verbs behind the routes: bytes to extender and webhook and back, who may answer what, and the figures.

In: bodies. Out: answers for `cluster.http`. Filter, prioritize, bind and preempt are answered where kube-scheduler's
leader is, for reservations are in this replica's memory alone; webhook everywhere. Not here: any choice.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.wire import (
    read_bind,
    read_preempt,
    read_question,
    write_bound,
    write_filtered,
    write_scores,
    write_victims,
)
from deviceplugin.cluster.http.verbs import Answer, Explanation, Figures, NotNowError, Verb
from deviceplugin.cluster.webhook.review import Webhook
from deviceplugin.model.units import ResourceNames
from deviceplugin.scheduler.certificates import Certificates
from deviceplugin.scheduler.cluster import FollowedCluster
from deviceplugin.scheduler.leadership import Leadership


class SchedulerService:
    """Everything that one replica answers."""

    def __init__(
        self,
        *,
        extender: Extender,
        webhook: Webhook,
        cluster: FollowedCluster,
        leadership: Leadership,
        certificates: Certificates,
        names: ResourceNames,
        near: bool,
        clients: tuple[str, ...] = (),
    ) -> None:
        self._extender = extender
        self._webhook = webhook
        self._cluster = cluster
        self._leadership = leadership
        self._certificates = certificates
        self._names = names
        self._near = near
        self._clients = clients
        self._explaining = asyncio.Lock()

    @property
    def verbs(self) -> tuple[Verb, ...]:
        return (
            Verb("webhook", self._review, early=True),
            self._order("filter", self._filter),
            self._order("prioritize", self._prioritize),
            self._order("bind", self._bind),
            self._order("preempt", self._preempt),
        )

    def _order(self, name: str, answer: Callable[[bytes], Awaitable[Answer]]) -> Verb:
        """A verb of kube-scheduler's: whoever may ask for it places pods with our rights, or keeps others out."""
        return Verb(name, answer, near=self._near, clients=self._clients)

    def not_ready(self) -> tuple[str, ...]:
        return (*self._cluster.missing(), *self._certificates.missing())

    def not_leading(self) -> tuple[str, ...]:
        return () if self._leadership.leads else (f"{self._leadership.leader or 'nobody'} leads, by the Lease",)

    def figures(self) -> Figures:
        books = self._extender.books.nodes.values()
        holdings = [held.is_bound for book in books for held in book.holdings.values()]
        known = [len(book.inventory.gpus) for book in books if book.inventory is not None]
        return Figures(
            nodes=len(known),
            gpus=sum(known),
            reservations=holdings.count(False),
            pods=holdings.count(True),
            unconfirmed=self._extender.unconfirmed,
            overbooked=self._extender.overbooked.gpus,
            leads=self._leadership.leads,
            days_left=self._certificates.days_left(),
            silence=self._cluster.silence(),
        )

    async def explain(self, namespace: str, name: str) -> Explanation:
        """One at a time, so that kube-scheduler never waits for more than a step of one. Verdicts are the leader's."""
        if missing := self.not_ready():
            return Explanation(status=503, sentence=f"not ready yet: {'; '.join(missing)}")
        leads, leader = self._leadership.leads, self._leadership.leader
        if leads:
            async with self._explaining:
                found = await self._extender.explain(namespace, name)
        else:
            found = self._extender.explain_bound(namespace, name)
        if found is not None:
            return Explanation(msgspec.json.encode(found))
        if not leads:
            sentence = f"this replica does not answer kube-scheduler; {leader or 'none'} does, ask there"
            return Explanation(status=421, sentence=sentence, leader=leader)
        sentence = (
            f"nothing is known of pod {namespace}/{name}: there is none of that name, it asks for no GPU of ours, or "
            "it has ended"
        )
        return Explanation(status=404, sentence=sentence, leader=leader)

    async def _review(self, body: bytes) -> Answer:
        reply = self._webhook.answer(body, self._cluster.known)
        return Answer(reply.body, reply.outcome.value)

    async def _filter(self, body: bytes) -> Answer:
        await self._lead()
        found = self._extender.filter(read_question(body, self._names))
        reasons = Counter([*found.failed.values(), *found.unresolvable.values()])
        outcome = "failed" if found.error else "chosen" if found.names else "refused"
        return Answer(write_filtered(found), outcome, reasons)

    async def _prioritize(self, body: bytes) -> Answer:
        await self._lead()
        return Answer(write_scores(self._extender.prioritize(read_question(body, self._names))))

    async def _bind(self, body: bytes) -> Answer:
        await self._lead()
        error = await self._extender.bind(read_bind(body))
        return Answer(write_bound(error), "refused" if error else "bound")

    async def _preempt(self, body: bytes) -> Answer:
        await self._lead()
        found = self._extender.preempt(read_preempt(body, self._names))
        return Answer(write_victims(found), "room" if found else "no_room")

    async def _lead(self) -> None:
        if not await self._leadership.confirm():
            raise NotNowError(
                f"this replica does not answer kube-scheduler; {self._leadership.leader or 'none'} does, by the Lease"
            )
