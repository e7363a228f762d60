"""GetPreferredAllocation and Allocate: which container asks, which GPU it gets, record it, answer.

In: a resource and device IDs. Out: IDs to prefer, or the answer for the container. `pod_placement` decides the GPUs in
both calls, with the whole pod in view. Kubelet asks for cores and memory of one container in two calls of random order:
the first call does all the work, the second gets an empty answer if it comes directly after it, and otherwise the
same answer again: no container is left with empty answers only. Nothing is answered that is not on disk before. A
lock keeps identity and record together when kubelet calls from several goroutines; it is held over the identity
sources and the wait for promised GPUs, which have time limits, and over nothing else.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from deviceplugin.errors import CapacityError, HardwareError, VcudaError
from deviceplugin.kubelet.allocate_answer import EMPTY, Answer, answer_for
from deviceplugin.kubelet.allocate_context import AllocateContext
from deviceplugin.kubelet.devices import choose_ids, quotas
from deviceplugin.kubelet.identity import IdentifiedContainer, Question, candidates
from deviceplugin.kubelet.pod_placement import place_container
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.ledger import Claimant, claimant_proved, moved, new_grant_id
from deviceplugin.model.allocation import OwnerKey
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod_request import container_request
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.kubelet")
_IN_A_ROW_S = 0.1  # kubelet does nothing between the two calls of a container; later a source is asked again
_HINT_S = 1.0  # a hint is not worth a longer wait; kubelet refuses the pod if the call for it fails


class _Asked(msgspec.Struct):
    """Whose the Allocate is that takes exactly the preferred IDs, asked while kubelet waits for these.

    Kubelet prefers and allocates for one container in a row and lists its pod before both. `owners`: of the grants
    then; after a change the sources are asked again.
    """

    resource: Resource
    owners: Mapping[OwnerKey, Grant]
    asking: asyncio.Task[IdentifiedContainer]
    ids: frozenset[str] = frozenset()


class Allocator:
    """Both calls of both resources of one node."""

    def __init__(self, context: AllocateContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._lock = asyncio.Lock()
        self._previous: GrantId | None = None  # of the previous call: kubelet asks for both resources in a row
        self._previous_asking: IdentifiedContainer | None = None
        self._follows_until = 0.0
        self._asked: _Asked | None = None

    def connected(self) -> None:
        """Kubelet has opened a stream, so it may be a new one, which asks for its pods from the start."""
        self._follows_until = 0.0
        self._asked = None  # not cancelled: the other resource's call may wait for it, and kubelet would refuse the pod

    async def prefer(
        self, resource: Resource, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """IDs of the GPU that placement would choose; a hint, so it never refuses."""
        wanted = {}
        try:
            async with asyncio.timeout(_HINT_S), self._lock:
                asking = await self._preferring(self._question(resource, size))
            grant = self._ledger.of_owner(asking.container.ref.key)
            near = self._context.feed.catalog.aligned((*available, *must_include))
            if grant is not None:
                allocation = grant.allocation
            else:
                planned = place_container(self._context, asking, near, whole=True)
                allocation = planned.allocation(asking.container.ref.name)
            wanted = quotas(allocation, resource, self._context.feed.catalog.keys)
        except (VcudaError, TimeoutError) as error:
            log.debug("no_preference", resource=resource.value, count=size, error=str(error))
        except Exception:  # kubelet would refuse the pod for good
            log.exception("preference_failed", action="please report this line")
        chosen = choose_ids(available, must_include, size, wanted)
        if self._asked is not None:
            self._asked.ids = frozenset(chosen)
        return chosen

    async def _preferring(self, question: Question) -> IdentifiedContainer:
        """Whose hint it is; for whom the Allocate that follows will be is asked meanwhile."""
        self._forget_asked()
        if question.half is not None:
            return question.half
        asking = asyncio.create_task(self._context.identity.identify(question))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # no Allocate may follow
        self._asked = _Asked(question.resource, self._ledger.owners(), asking)
        likely = self._likely(question)
        return likely if likely is not None else await asyncio.shield(asking)

    def _forget_asked(self) -> None:
        if self._asked is not None:
            self._asked.asking.cancel()
        self._asked = None

    async def _asked_before(self, resource: Resource, ids: Sequence[str]) -> IdentifiedContainer | None:
        """None if this call is not the one that was asked about, or the sources may say something else now."""
        asked = self._asked
        if asked is None or asked.resource is not resource or asked.ids != frozenset(ids):
            self._forget_asked()
            return None
        self._asked = None
        await asyncio.wait({asked.asking})
        if asked.asking.exception() is not None or self._ledger.owners() is not asked.owners:
            return None
        return asked.asking.result()

    def _likely(self, question: Question) -> IdentifiedContainer | None:
        """The only watched pod that fits: good enough for a hint, and kubelet need not be asked for its pods."""
        fitting = candidates(self._context.pods.watched(), question, self._context.answers.given())
        return IdentifiedContainer(*fitting[0], Source.APISERVER, certain=False) if len(fitting) == 1 else None

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> Answer:
        """Grants what the asking container wants; raises a VcudaError if that is not possible."""
        began = time.monotonic()
        asking: IdentifiedContainer | None = None
        try:
            async with self._lock:
                follows_until, self._follows_until = self._follows_until, 0.0
                self._context.feed.catalog.check(resource, ids)
                await self._context.reclaim.ensure_complete()
                with contextlib.suppress(HardwareError):  # PreStartContainer compares again
                    await self._context.gpus.settled()
                question = self._question(resource, len(ids))
                is_next = began < follows_until and _is_sure(question.half)
                asking = question.half if is_next else await self._asked_before(resource, ids)
                asking = asking or await self._context.identity.identify(question)
                asking = await self._with_promised_gpus(asking)
                near = self._context.feed.catalog.aligned(ids)
                try:
                    return self._answer(asking, resource, near, began)
                except CapacityError:
                    # Kubelet may admit a pod before the agent has seen the end of the pod whose slots it reuses.
                    await self._context.reclaim.reclaim()
                    return self._answer_one_of(asking, resource, near, began)
        except VcudaError as error:
            name = self._context.layout.names.of(resource)
            self._context.report.refused(asking, name, len(ids), error, seconds=time.monotonic() - began)
            raise

    async def _with_promised_gpus(self, asking: IdentifiedContainer) -> IdentifiedContainer:
        """A pod is placed as a whole, so only its first container waits."""
        if self._ledger.of_pod(asking.pod.ref.uid):
            return asking
        return replace(asking, pod=await self._context.pods.with_promised_gpus(asking.pod))

    def _question(self, resource: Resource, count: int) -> Question:
        previous = self._ledger.get(self._previous) if self._previous is not None else None
        return Question(
            resource,
            count,
            half=self._half(previous, resource, count) if previous is not None else None,
            guess=previous.allocation if previous is not None and _is_guess(previous) else None,
        )

    def _half(self, previous: Grant, resource: Resource, count: int) -> IdentifiedContainer | None:
        """The container of the previous call, if it waits for this resource and has not ended meanwhile."""
        asking, owner = self._previous_asking, previous.allocation.owner
        if asking is None or asking.container.ref.key != owner.key or previous.answered != {resource.other}:
            return None
        ended = any(pod.ref.uid == owner.pod.uid and pod.is_terminal for pod in self._context.pods.watched())
        known = replace(asking, others=())  # the first answer is given, so no other container can take its place
        if asking.is_partial:
            return _with_count(known, resource, count) if not self._is_written(previous) else None
        return known if asking.container.wants(resource) == count and not ended else None

    def _is_written(self, grant: Grant) -> bool:
        """Whether kubelet's checkpoint has it: then its container waits for nothing more, as one of whole GPUs."""
        checkpoint = self._context.answers.checkpoint()
        return checkpoint is not None and checkpoint.owner_of_grant(grant.id) is not None

    def _open_guess(self, resource: Resource) -> Grant | None:
        """The grant of the previous call, if it waits for this resource and was a guess, or its pod was only named."""
        grant, asking = self._ledger.get(self._previous) if self._previous is not None else None, self._previous_asking
        if grant is None or grant.answered != {resource.other} or self._is_written(grant):
            return None
        return grant if _is_guess(grant) or (asking is not None and asking.is_partial) else None

    def _answer_one_of(
        self, asking: IdentifiedContainer, resource: Resource, near: frozenset[GpuUuid], began: float
    ) -> Answer:
        """A guess that does not fit is wrong, or refused anyway: the others that the call may be for follow."""
        refusal: CapacityError | None = None
        for each in (asking, *asking.instead()):
            try:
                return self._answer(each, resource, near, began)
            except CapacityError as error:
                refusal = refusal or error  # of the likeliest container, which the message should name
        assert refusal is not None
        raise refusal

    def _answer(
        self, asking: IdentifiedContainer, resource: Resource, near: frozenset[GpuUuid], began: float
    ) -> Answer:
        grant = self._own_grant(asking)
        if grant is not None and resource not in grant.answered:
            if asking.is_partial:
                return self._pair_unread(grant, asking, resource)
            return self._complete(grant, asking, resource)
        if grant is not None and grant.proved and not asking.certain:
            raise CapacityError(
                "kubelet lost its checkpoint and does not show for which of several containers it asks; container "
                f"{grant.allocation.owner} was started and keeps its GPU; create the pod again"
            )
        if grant is not None and self._is_still_available(grant):
            return self._repeat(grant, asking, resource)
        if grant is not None:
            self._ledger.release([grant.id], why="its GPU is gone")
        # The first call of this container may have been taken for another one's.
        guess = self._open_guess(resource)
        if guess is not None and asking.is_partial:
            return self._pair_unread(guess, asking, resource)
        if guess is not None and _was_meant(guess, asking, resource):
            return self._pair(guess, asking)
        return self._grant(asking, resource, near, began)

    def _own_grant(self, asking: IdentifiedContainer) -> Grant | None:
        """What the container holds.

        A pod of which only the name is known may have been guessed for another one. Kubelet's checkpoint has that one
        by now, so the grant goes there first.
        """
        key = asking.container.ref.key
        grant = self._ledger.of_owner(key)
        if grant is None or not asking.is_partial:
            return grant
        checkpoint = self._context.answers.checkpoint()
        seen = checkpoint.owner_of_grant(grant.id) if checkpoint is not None else None
        if checkpoint is not None and seen is not None and len(checkpoint.grants_of(*seen)) == 1:
            self._give(grant, seen, checkpoint.counts_of(*seen))
        return self._ledger.of_owner(key)

    def _give(self, grant: Grant, key: OwnerKey, counts: tuple[int, int]) -> None:
        pod = next((pod for pod in self._context.pods.watched() if pod.ref.uid == key[0]), None)
        to = claimant_proved(grant, key, counts, pod, self._context.layout.names)
        fixed = self._ledger.reassign_to_owner(grant.id, to, self._context.feed.catalog.inventory)
        self._context.report.repaired(grant.allocation.owner, fixed)

    def _complete(self, grant: Grant, asking: IdentifiedContainer, resource: Resource) -> Answer:
        """Nothing more for the second resource. But if other calls came between, the first may have been another's."""
        answer = EMPTY
        if grant.id != self._previous:
            answer = self._content(grant, asking)
            self._context.files.prepare(grant, answer)
        self._remember(grant, asking)
        self._context.files.answered(self._ledger.answer(grant.id, resource))
        return answer

    def _remember(self, grant: Grant, asking: IdentifiedContainer) -> None:
        self._previous, self._previous_asking = grant.id, asking
        self._follows_until = time.monotonic() + _IN_A_ROW_S

    def _pair(self, half: Grant, asking: IdentifiedContainer) -> Answer:
        """Kubelet asks for both resources of a container before it goes on, so the half grant is this container's."""
        inventory = self._context.feed.catalog.inventory
        container = asking.container
        request = container_request(asking.pod, container, names=self._context.layout.names)
        fixed = replace(
            moved(half, Claimant(container.ref, container.role, request, index=container.index), inventory),
            answered=frozenset(Resource),
            limits=self._context.hints.limits(asking.pod, container.ref.name),
        )
        self._ledger.reassign(fixed, inventory=inventory, kind="pair")
        self._remember(fixed, asking)
        self._context.files.answered(fixed)
        self._context.report.repaired(half.allocation.owner, fixed)
        return EMPTY

    def _pair_unread(self, half: Grant, asking: IdentifiedContainer, resource: Resource) -> Answer:
        """Of the container only the name and this count are known; the previous call has told the other one."""
        request = half.allocation.request
        first = request.blocks if resource is Resource.CORE else request.cores
        return self._pair(half, _with_count(asking, resource.other, first))

    def _grant(self, asking: IdentifiedContainer, resource: Resource, near: frozenset[GpuUuid], began: float) -> Answer:
        context = self._context
        planned, name = place_container(context, asking, near, whole=asking.certain), asking.container.ref.name
        grant = Grant(
            id=new_grant_id(),
            allocation=planned.allocation(name),
            answered=frozenset({resource}),
            source=asking.source,
            proved=False,
            created=time.time(),
            limits=context.hints.limits(asking.pod, name),
        )
        answer = self._content(grant, asking)
        # Files first: a directory without a grant is swept, a grant without its directory would hold a GPU for nothing.
        context.files.prepare(grant, answer)
        context.ledger.grant(grant, context.feed.catalog.inventory)
        self._remember(grant, asking)
        context.report.granted(asking, grant, planned.choice(name), seconds=time.monotonic() - began)
        context.reclaim.placed(grant)
        return answer

    def _repeat(self, grant: Grant, asking: IdentifiedContainer, resource: Resource) -> Answer:
        """Kubelet lost its checkpoint and asks again: the same answer, and the other resource will come again too.

        Or the previous call was paired with this grant and was really the first of two: then both are answered now.
        """
        if grant.id != self._previous:
            self._ledger.repeat(grant.id, resource)
        self._remember(grant, asking)
        answer = self._content(grant, asking)
        self._context.files.prepare(grant, answer)
        return answer

    def _content(self, grant: Grant, asking: IdentifiedContainer) -> Answer:
        inventory, held = self._context.feed.catalog.inventory, grant.allocation.uuids
        gpus = [self._context.gpus.located(gpu) for gpu in inventory.gpus if gpu.uuid in held]
        answer = answer_for(grant, gpus, asking.container, self._context.layout, exists=os.path.exists)
        if answer.missing:
            log.warning("extra_devices_missing", grant=grant.id, devices=answer.missing, action="make them on the node")
        return answer

    def _is_still_available(self, grant: Grant) -> bool:
        inventory = self._context.feed.catalog.inventory
        available = {gpu.uuid for gpu in inventory.gpus if inventory.is_available(gpu)}
        return grant.allocation.uuids <= available


def _is_sure(half: IdentifiedContainer | None) -> bool:
    """Whether the call that comes right after the first one of a container needs no source to say whose it is.

    Kubelet asks for the resources of a container in a row (`allocateContainerResources`). If it gives the pod up
    between them and the next pod wants just as many, that pod's first call is taken for this one, as it would be while
    kubelet's list shows both. That pod's other call gets a grant and a full answer then; without another call, as for
    whole GPUs, PreStartContainer refuses the start and says why.
    """
    return half is not None and half.certain and not half.is_partial


def _is_guess(grant: Grant) -> bool:
    return grant.source is Source.APISERVER and not grant.proved


def _with_count(asking: IdentifiedContainer, resource: Resource, count: int) -> IdentifiedContainer:
    known = asking.container
    is_core = resource is Resource.CORE
    container = replace(known, cores=count) if is_core else replace(known, blocks=count)
    return replace(asking, container=container, pod=replace(asking.pod, containers=(container,)))


def _was_meant(guess: Grant, asking: IdentifiedContainer, resource: Resource) -> bool:
    """Whether the previous call, guessed for another container, was for this one."""
    request = guess.allocation.request
    asked = request.cores if resource is Resource.MEMORY else request.blocks
    return asking.container.wants(resource.other) == asked
