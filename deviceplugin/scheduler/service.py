"""The verbs behind the HTTP routes: bytes to extender and webhook and back, and the metrics' gauges.

In: bodies. Out: answers for `cluster.http`. Only the leader answers the verbs of schedulers, because reservations are
in its memory only; every replica answers the webhook. Not here: any choice.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from prometheus_client.core import Metric

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.rejection import AGENT_DOWN
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.extender.wire import (
    read_args,
    read_bind,
    read_preempt,
    write_binding_result,
    write_filter_result,
    write_scores,
    write_victims,
)
from deviceplugin.cluster.http import metrics
from deviceplugin.cluster.http.server import SMALL_BODY, Verb, VerbResponse, not_ready_sentence, unavailable
from deviceplugin.cluster.volcano import wire as volcano_wire
from deviceplugin.cluster.volcano.tasks import Announcements, VolcanoTasks
from deviceplugin.cluster.webhook.review import AdmissionWebhook, Outcome, Reply, namespace_of, read_review, refused
from deviceplugin.errors import ParseError
from deviceplugin.exposition import metric_of
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.latest import KeysInTurn
from deviceplugin.model.units import ResourceNames
from deviceplugin.scheduler.claim_templates import REFUSALS, ClaimTemplates
from deviceplugin.scheduler.cluster import ClusterWatch
from deviceplugin.scheduler.leader_link import LeaderLink
from deviceplugin.scheduler.leadership import Leadership
from deviceplugin.scheduler.serving_certificate import Certificates
from deviceplugin.scheduler.view_service import ViewService
from deviceplugin.serve.messages import HttpError

_LARGEST_REVIEW = 4 << 20
_AS_API_SERVER = "the API server takes objects of up to 3 MiB"
Answer = Callable[[bytes], Awaitable[VerbResponse]]
_LARGEST_TASK = 64 << 20
_FEWER_NODES = "let Volcano look at fewer nodes (--percentage-nodes-to-find), because it sends each of them whole"


class VolcanoService(msgspec.Struct, frozen=True):
    """`announcements` must run."""

    tasks: VolcanoTasks
    announcements: Announcements
    turns: Turns

    def verbs(self, restricted: Callable[..., Verb]) -> tuple[Verb, ...]:
        """`restricted` makes one that only known callers may use, and that only the leader answers."""
        made = partial(restricted, largest=_LARGEST_TASK, instead=_FEWER_NODES)
        return (
            made("volcano/predicate", self._predicate, outcomes=("fits", "refused")),
            made("volcano/prioritize", self._prioritize),
            made("volcano/allocate", self._allocate, outcomes=("reserved", "refused")),
            made("volcano/deallocate", self._deallocate),
            made("volcano/preemptable", self._evict, outcomes=("room", "no_room")),
            made("volcano/reclaimable", self._evict, outcomes=("room", "no_room")),
        )

    async def _predicate(self, body: bytes) -> VerbResponse:
        task, node = volcano_wire.read_predicate(body)
        verdict = await self.turns.ask(self.tasks.namespace(task), partial(self.tasks.predicate, task, node))
        answer = volcano_wire.write_predicate(verdict.reason, verdict.code)
        if not verdict.reason:
            return VerbResponse(answer, "fits")
        return VerbResponse(answer, "refused", {verdict.reason: 1})

    async def _prioritize(self, body: bytes) -> VerbResponse:
        task, nodes = volcano_wire.read_prioritize(body)
        scores = await self.turns.ask(self.tasks.namespace(task), partial(self.tasks.scores, task, nodes))
        return VerbResponse(volcano_wire.write_scores(scores))

    async def _allocate(self, body: bytes) -> VerbResponse:
        task = volcano_wire.read_event(body)
        namespace = self.tasks.namespace(task)
        budget = self.turns.budget(namespace)  # one turn: what is reserved is not asked again
        error = self.tasks.allocate(task, budget)
        self.turns.took(namespace, budget)
        return VerbResponse(volcano_wire.write_event(error), "refused" if error else "reserved")

    async def _deallocate(self, body: bytes) -> VerbResponse:
        self.tasks.deallocate(volcano_wire.read_event(body))
        return VerbResponse(volcano_wire.write_event(""))

    async def _evict(self, body: bytes) -> VerbResponse:
        victims = await self.tasks.victims(*volcano_wire.read_eviction(body), self.turns)
        return VerbResponse(volcano_wire.write_victims(victims), "room" if victims else "no_room")


def volcano_service(
    extender: Extender,
    client: ClusterClient,
    *,
    clock: Callable[[], float],
    turns: Turns,
) -> VolcanoService:
    announcements = Announcements(extender.cache, client, names=extender.snapshot.settings.names)
    extender.cache.promised = announcements.announce
    tasks = VolcanoTasks(extender.snapshot, clock=clock)
    return VolcanoService(tasks, announcements, turns)


class SchedulerService(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one replica answers."""

    extender: Extender
    webhook: AdmissionWebhook
    cluster: ClusterWatch
    leadership: Leadership
    certificates: Certificates
    names: ResourceNames
    views: ViewService
    link: LeaderLink
    loopback_only: bool
    clients: tuple[str, ...] = ()
    volcano: VolcanoService | None = None
    templates: ClaimTemplates | None = None
    explaining: KeysInTurn = msgspec.field(default_factory=KeysInTurn)
    reviewing: KeysInTurn = msgspec.field(default_factory=KeysInTurn)
    turns: Turns = msgspec.field(default_factory=Turns)

    @property
    def verbs(self) -> tuple[Verb, ...]:
        restricted = self._restricted
        return (
            Verb(
                "webhook",
                self._review,
                before_ready=True,
                largest=_LARGEST_REVIEW,
                instead=_AS_API_SERVER,
                outcomes=tuple(each.value for each in Outcome),
                namespace_of=namespace_of,
            ),
            restricted("filter", self._filter, outcomes=("chosen", "refused")),
            restricted("prioritize", self._prioritize),
            restricted("bind", self._bind, outcomes=("bound", "refused")),
            restricted("preempt", self._preempt, outcomes=("room", "no_room")),
            *(self.volcano.verbs(restricted) if self.volcano is not None else ()),
        )

    def _restricted(self, name: str, answer: Answer, **how: Any) -> Verb:  # noqa: ANN401 - as `Verb` has them
        """Of a scheduler, which places pods with this process's rights, and asks the leader: reservations are there."""

        async def as_leader(body: bytes) -> VerbResponse:
            if not await self.leadership.confirm():
                leader = self.leadership.leader or "unknown"
                raise unavailable(f"this replica is not the leader; the leader by the Lease is {leader}")
            return await answer(body)

        return Verb(name, as_leader, loopback_only=self.loopback_only, clients=self.clients, **how)

    def not_ready(self) -> tuple[str, ...]:
        return (*self.cluster.missing(), *self.certificates.missing())

    def not_leading(self) -> tuple[str, ...]:
        return () if self.leadership.leads else (f"the leader is {self.leadership.leader or 'unknown'}, by the Lease",)

    @property
    def gpus_by_node(self) -> list[int]:
        """How many GPUs each node with a readable inventory has."""
        nodes = self.extender.cache.nodes.values()
        return [len(node_info.inventory.gpus) for node_info in nodes if node_info.inventory is not None]

    def gauges(self) -> Iterator[Metric]:
        gpus = self.gpus_by_node
        nodes = self.extender.cache.nodes.values()
        is_bound = [held.is_bound for node_info in nodes for held in node_info.holds.values()]
        for family, value in (
            (metrics.RESERVATIONS, is_bound.count(False)),
            (metrics.PODS, is_bound.count(True)),
            (metrics.UNCONFIRMED, len(self.extender.unconfirmed)),
            (metrics.OVERCOMMITTED, self.extender.overcommit.gpus),
            (metrics.NODES, len(gpus)),
            (metrics.NODES_WITHOUT_AGENT, sum(node_info.problem is AGENT_DOWN for node_info in nodes)),
            (metrics.GPUS, sum(gpus)),
            (metrics.READY, not self.not_ready()),
            (metrics.LEADER, self.leadership.leads),
        ):
            yield metric_of(family, [((), value)])
        if self.leadership.leads:
            yield metric_of(metrics.PENDING, [((reason,), count) for reason, count in self.extender.pending().items()])
        refused = dict.fromkeys(REFUSALS, 0) if self.templates is None else self.templates.refusals
        yield metric_of(metrics.CLAIMS_REFUSED, [((reason,), count) for reason, count in refused.items()])
        yield metric_of(metrics.EXPIRATION, self.certificates.expirations())
        yield metric_of(metrics.LAST_EVENT, self.cluster.last_events())
        unreadable = self.cluster.unreadable() + ([] if self.templates is None else self.templates.unreadable())
        yield metric_of(metrics.UNREADABLE, unreadable)

    async def view(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        """The leader's, or this replica's where the leader cannot be reached: it lacks what only the leader knows.

        A token that the API server does not know is refused for sums too, which need none.
        """
        if missing := self.not_ready():
            return _error(503, not_ready_sentence(missing))
        try:
            caller = await self.views.owner(headers, peer)
        except HttpError as error:
            return _error(error.status, error.sentence, self.leadership.leader)
        by_leader = await self.link.ask(path, query, headers, caller=caller)
        return by_leader or await self.views.answer(path, query, headers, peer)

    async def explain(self, namespace: str, name: str, headers: Mapping[str, str], peer: str) -> tuple[int, bytes]:
        """One at a time, so that kube-scheduler never waits longer than one step, and the namespaces in turn.

        Only the leader has verdicts, so it is asked where this replica does not lead.
        """
        if missing := self.not_ready():
            return _error(503, not_ready_sentence(missing))
        leads, leader = self.leadership.leads, self.leadership.leader
        try:
            caller = await self.views.owner(headers, peer)
            reads_all = await self.views.reads_all(headers, namespace, peer)
        except HttpError as error:
            return _error(error.status, error.sentence, leader)
        asked = {"pod": f"{namespace}/{name}"}
        if (by_leader := await self.link.ask("/explain", asked, headers, caller=caller)) is not None:
            return by_leader
        async with self.explaining.turn(namespace):
            found = await self.extender.explain(namespace, name, leads=leads, with_holders=reads_all)
        if found is not None:
            return 200, msgspec.json.encode(found)
        if not leads:
            return _error(503, f"only the leader can explain this pod, and {_away(leader)}; try again", leader)
        sentence = f"pod {namespace}/{name} not found: it does not exist, requests no vcuda resources, or has finished"
        return _error(404, sentence, leader)

    async def _review(self, body: bytes) -> VerbResponse:
        """A large one in a thread, one at a time, so that kube-scheduler waits for no stranger's pod.

        The namespaces have their turn: one waits for at most one large review of each other namespace.
        """
        if len(body) <= SMALL_BODY:
            reply = self.webhook.answer(body, self.cluster.known)
        else:
            try:
                review = read_review(body)
            except ParseError as error:
                return _reviewed(refused(body, error))
            async with self.reviewing.turn(review.namespace or ""):
                reply = await asyncio.to_thread(self.webhook.reply, review, self.cluster.known)
        return _reviewed(reply)

    async def _filter(self, body: bytes) -> VerbResponse:
        args = read_args(body, self.names)
        found = await self.turns.ask(args.pod.pod.ref.namespace, partial(self.extender.filter, args))
        reasons = Counter([*found.failed.values(), *found.unresolvable.values()])
        return VerbResponse(write_filter_result(found), "chosen" if found.names else "refused", reasons)

    async def _prioritize(self, body: bytes) -> VerbResponse:
        args = read_args(body, self.names)
        scores = await self.turns.ask(args.pod.pod.ref.namespace, partial(self.extender.prioritize, args))
        return VerbResponse(write_scores(scores))

    async def _bind(self, body: bytes) -> VerbResponse:
        error = await self.extender.bind(read_bind(body))
        return VerbResponse(write_binding_result(error), "refused" if error else "bound")

    async def _preempt(self, body: bytes) -> VerbResponse:
        found = await self.extender.preempt(read_preempt(body, self.names), self.turns)
        return VerbResponse(write_victims(found), "room" if found else "no_room")


def _reviewed(reply: Reply) -> VerbResponse:
    return VerbResponse(reply.body, reply.outcome.value)


def _away(leader: str) -> str:
    return f"{leader}, which leads, does not answer" if leader else "no replica leads now"


def _error(status: int, sentence: str, leader: str = "") -> tuple[int, bytes]:
    """`leader` is the replica that may know more."""
    return status, msgspec.json.encode({"error": sentence, "leader": leader})
