"""GetPreferredAllocation and Allocate: who asks, which GPU, record it, answer.

In: a resource and IDs. Out: IDs to prefer, or the answer for the container. Where it goes `pod_plan` says both times,
with the whole pod in view. Kubelet asks for cores and memory of one container in two calls of random order: the first
one does all the work, the second gets an empty answer. Nothing is answered that is not on disk before. A lock keeps
identity and record together when kubelet's late path calls from several goroutines; it is held over the identity
sources, which have budgets, and over nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from deviceplugin.errors import CapacityError, VcudaError
from deviceplugin.kubelet.allocate_context import Node
from deviceplugin.kubelet.answer import EMPTY, Answer, answer_for
from deviceplugin.kubelet.claims import Claim, candidates
from deviceplugin.kubelet.devices import is_usable
from deviceplugin.kubelet.identity import Question
from deviceplugin.kubelet.placing import place_claim
from deviceplugin.kubelet.preferred_ids import choose_ids, quotas
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import Grant, GrantId, Source, new_grant_id
from deviceplugin.ledger.repair import Claimant, moved
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import container_request
from deviceplugin.model.units import Resource

log = structlog.get_logger(__name__)


class Allocating:
    """Both calls of both resources of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = asyncio.Lock()
        self._previous: GrantId | None = None  # of the call before: kubelet asks for both resources in a row

    async def prefer(
        self, resource: Resource, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Steers kubelet to the GPU that placement would choose; a hint, so it never refuses."""
        wanted = {}
        try:
            async with self._lock:
                claim = self._likely(resource, size) or await self._identify(resource, size)
            grant = self._node.ledger.of_owner(claim.container.ref.key)
            near = self._node.feed.catalog.aligned((*available, *must_include))
            allocation = grant.allocation if grant is not None else place_claim(self._node, claim, near, whole=True)[0]
            wanted = quotas(allocation, resource, self._node.feed.catalog.keys)
        except VcudaError as error:
            log.debug("no preference", resource=resource.value, count=size, cause=error.message)
        return choose_ids(available, must_include, size, wanted)

    def _likely(self, resource: Resource, size: int) -> Claim | None:
        """The one watched pod that fits: good enough for a hint, and kubelet need not be asked for its pods."""
        fitting = candidates(self._node.watched_pods(), resource, size, self._node.ledger.answered)
        return Claim(*fitting[0], Source.APISERVER, certain=False) if len(fitting) == 1 else None

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> Answer:
        """Grants what the asking container wants; raises an error of ours when it cannot be had."""
        claim: Claim | None = None
        try:
            async with self._lock:
                self._node.feed.catalog.check(resource, ids)
                await self._node.complete()
                claim = await self._identify(resource, len(ids))
                near = self._node.feed.catalog.aligned(ids)
                try:
                    return self._answer(claim, resource, near)
                except CapacityError:
                    # Kubelet may admit a pod before we have seen the one end whose slots it gives away again.
                    await self._node.make_room()
                    return self._answer(claim, resource, near)
        except VcudaError as error:
            name = self._node.layout.names.of(resource)
            self._node.report.refused(claim, name, len(ids), error)
            raise

    async def _identify(self, resource: Resource, count: int) -> Claim:
        ledger = self._node.ledger

        def proved(key: tuple[PodUid, str]) -> bool:
            grant = ledger.of_owner(key)
            return grant is not None and grant.proved

        previous = ledger.get(self._previous) if self._previous is not None else None
        question = Question(
            resource,
            count,
            ledger.answered,
            _Recorded(self._node.checkpoint),
            proved,
            previous.allocation if previous is not None and _is_guess(previous) else None,
        )
        return await self._node.identity.identify(question)

    def _open_guess(self, resource: Resource) -> Grant | None:
        """The grant of the call before, if it was guessed and waits for this resource."""
        grant = self._node.ledger.get(self._previous) if self._previous is not None else None
        waits = grant is not None and _is_guess(grant) and grant.answered == {resource.other}
        return grant if waits else None

    def _answer(self, claim: Claim, resource: Resource, near: frozenset[GpuUuid]) -> Answer:
        grant = self._node.ledger.of_owner(claim.container.ref.key)
        if grant is not None and resource not in grant.answered:
            self._previous = grant.id
            self._node.files.answered(self._node.ledger.answer(grant.id, resource))
            return EMPTY
        if grant is not None and self._still_serves(grant):
            return self._repeat(grant, claim, resource)
        if grant is not None:
            self._node.ledger.release([grant.id], why="its GPU is gone")
        guess = self._open_guess(resource)
        if guess is not None and self._was_meant(guess, claim, resource):
            return self._pair(guess, claim)
        return self._grant(claim, resource, near)

    def _was_meant(self, guess: Grant, claim: Claim, resource: Resource) -> bool:
        """Whether the call before, guessed for another container, was this one's."""
        request = guess.allocation.request
        asked = request.cores if resource is Resource.MEMORY else request.blocks
        return claim.container.wants(resource.other) == asked

    def _pair(self, half: Grant, claim: Claim) -> Answer:
        """Kubelet asks for both resources of a container before it goes on, so the half grant is this container's."""
        inventory = self._node.feed.catalog.inventory
        container = claim.container
        request = container_request(claim.pod, container, names=self._node.layout.names)
        fixed = replace(
            moved(half, Claimant(container.ref, container.role, request, index=container.index), inventory),
            answered=frozenset(Resource),
            soft_cores=self._node.soft_cores(claim.pod),
        )
        self._node.ledger.reassign(fixed, inventory=inventory, kind="pair")
        self._previous = fixed.id
        self._node.files.answered(fixed)
        self._node.report.repaired(half.allocation.owner, fixed)
        return EMPTY

    def _grant(self, claim: Claim, resource: Resource, near: frozenset[GpuUuid]) -> Answer:
        node = self._node
        allocation, choice = place_claim(self._node, claim, near, whole=claim.certain)
        grant = Grant(
            id=new_grant_id(),
            allocation=allocation,
            answered=frozenset({resource}),
            source=claim.source,
            proved=False,
            created=node.clock(),
            soft_cores=node.soft_cores(claim.pod),
        )
        answer = self._content(grant, claim)
        node.files.prepare(grant, answer)
        node.ledger.grant(grant, node.feed.catalog.inventory)
        self._previous = grant.id
        node.report.granted(claim, grant, choice)
        node.placed(grant)
        return answer

    def _repeat(self, grant: Grant, claim: Claim, resource: Resource) -> Answer:
        """Kubelet lost its checkpoint and asks again: the same answer, and the other resource will come again too.

        Or the call before was paired with this grant and was really the first of two: then both are answered now.
        """
        if grant.id != self._previous:
            self._node.ledger.repeat(grant.id, resource)
        self._previous = grant.id
        answer = self._content(grant, claim)
        self._node.files.prepare(grant, answer)
        return answer

    def _content(self, grant: Grant, claim: Claim) -> Answer:
        inventory = self._node.feed.catalog.inventory
        gpus = [gpu for gpu in inventory.gpus if gpu.uuid in grant.allocation.uuids]
        return answer_for(grant, gpus, claim.container, self._node.layout, exists=self._node.exists)

    def _still_serves(self, grant: Grant) -> bool:
        inventory = self._node.feed.catalog.inventory
        usable = {gpu.uuid for gpu in inventory.gpus if is_usable(inventory, gpu)}
        return grant.allocation.uuids <= usable


class _Recorded:
    """Whether kubelet's checkpoint has a container; read only when a source asks, which is seldom."""

    def __init__(self, read: Callable[[], Checkpoint]) -> None:
        self._read = read
        self._checkpoint: Checkpoint | None = None

    def __call__(self, key: tuple[PodUid, str]) -> bool:
        """True where it cannot be read (upkeep tells people so): then nothing is said to be forgotten."""
        if self._checkpoint is None:
            try:
                self._checkpoint = self._read()
            except VcudaError as error:
                log.debug("kubelet's checkpoint cannot be read", cause=error.message)
                return True
        return self._checkpoint.has(*key)


def _is_guess(grant: Grant) -> bool:
    return grant.source is Source.APISERVER and not grant.proved
