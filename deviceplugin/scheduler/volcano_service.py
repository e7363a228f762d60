"""The verbs of Volcano's plugin `extender` behind their HTTP routes: bytes in, bytes out.

In: bodies. Out: answers for `cluster.http`. Only the leader answers, because reservations are in its memory. Not here:
any choice (`cluster.volcano.tasks`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.http.verbs import Verb, VerbResponse
from deviceplugin.cluster.volcano.tasks import Announcements, VolcanoTasks
from deviceplugin.cluster.volcano.wire import (
    read_event,
    read_eviction,
    read_predicate,
    read_prioritize,
    write_event,
    write_predicate,
    write_scores,
    write_victims,
)
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.kube.cluster_client import ClusterClient

_LARGEST = 64 << 20
_INSTEAD = "let Volcano look at fewer nodes (--percentage-nodes-to-find), because it sends each of them whole"
Confirm = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class VolcanoService:
    """`confirm` raises HttpError if this replica does not lead. `announcements` must run."""

    tasks: VolcanoTasks
    announcements: Announcements
    confirm: Confirm
    turns: Turns

    def verbs(self, restricted: "partial[Verb]") -> tuple[Verb, ...]:
        """`restricted` makes one that only known callers may use."""
        made = partial(restricted, largest=_LARGEST, instead=_INSTEAD)
        return (
            made("volcano/predicate", self._predicate, outcomes=("fits", "refused")),
            made("volcano/prioritize", self._prioritize),
            made("volcano/allocate", self._allocate, outcomes=("reserved", "refused")),
            made("volcano/deallocate", self._deallocate),
            made("volcano/preemptable", self._evict, outcomes=("room", "no_room")),
            made("volcano/reclaimable", self._evict, outcomes=("room", "no_room")),
        )

    async def _predicate(self, body: bytes) -> VerbResponse:
        await self.confirm()
        task, node = read_predicate(body)
        verdict = await self.turns.ask(self.tasks.namespace(task), partial(self.tasks.predicate, task, node))
        answer = write_predicate(verdict.reason, verdict.code)
        if not verdict.reason:
            return VerbResponse(answer, "fits")
        return VerbResponse(answer, "refused", {verdict.reason: 1})

    async def _prioritize(self, body: bytes) -> VerbResponse:
        await self.confirm()
        task, nodes = read_prioritize(body)
        scores = await self.turns.ask(self.tasks.namespace(task), partial(self.tasks.scores, task, nodes))
        return VerbResponse(write_scores(scores))

    async def _allocate(self, body: bytes) -> VerbResponse:
        await self.confirm()
        task = read_event(body)
        namespace = self.tasks.namespace(task)
        budget = self.turns.budget(namespace)  # one turn: what is reserved is not asked again
        error = self.tasks.allocate(task, budget)
        self.turns.took(namespace, budget)
        return VerbResponse(write_event(error), "refused" if error else "reserved")

    async def _deallocate(self, body: bytes) -> VerbResponse:
        await self.confirm()
        self.tasks.deallocate(read_event(body))
        return VerbResponse(write_event(""))

    async def _evict(self, body: bytes) -> VerbResponse:
        await self.confirm()
        victims = await self.tasks.victims(*read_eviction(body), self.turns)
        return VerbResponse(write_victims(victims), "room" if victims else "no_room")


def volcano_service(
    extender: Extender,
    client: ClusterClient,
    settings: PlacementSettings,
    *,
    clock: Callable[[], float],
    confirm: Confirm,
    turns: Turns,
) -> VolcanoService:
    announcements = Announcements(extender.cache, client, names=settings.names)
    extender.cache.promised = announcements.announce
    tasks = VolcanoTasks(extender.cache, extender.snapshot, scorer=extender.scorer, settings=settings, clock=clock)
    return VolcanoService(tasks, announcements, confirm, turns)
