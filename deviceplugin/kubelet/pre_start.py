"""PreStartContainer: prove who owns the IDs, repair what was guessed wrong, write the limits.

In: a resource and the IDs of one container that is about to start. Out: nothing, or an error that kubelet shows and
tries again. Kubelet's checkpoint was written and synced before this call (kubelet 1.36 writes it after each container's
admission), so it proves pod UID, container and, through the mount in the cached answer, the grant that the container
will see. The API server is not needed. A grant of the wrong owner changes hands; one of the wrong size is resized on
its GPUs, for the device nodes in the answer cannot be changed any more; only if that does not fit does the start fail.
"""

from collections.abc import Sequence

from deviceplugin.errors import CapacityError, OwnershipError, VcudaError
from deviceplugin.kubelet.allocate_context import Node
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.rebuild import rebuild_one
from deviceplugin.ledger.repair import Claimant, asked_for
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.units import Resource

Owner = tuple[PodUid, str]


class Starting:
    """The call of both resources. Containers start side by side: each change of the ledger is one step of the loop."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def start(self, resource: Resource, ids: Sequence[str]) -> None:
        owner: ContainerRef | None = None
        try:
            self._node.feed.catalog.check(resource, ids)
            checkpoint = self._node.checkpoint()
            for key in self._owners(checkpoint, resource, ids):
                grant = self._grant_of(key, checkpoint)
                owner = grant.allocation.owner if grant else None
                await self._settle(key, grant, checkpoint)
        except VcudaError as error:
            self._node.report.start_failed(owner, error)
            raise

    def _owners(self, checkpoint: Checkpoint, resource: Resource, ids: Sequence[str]) -> Sequence[Owner]:
        """One container, or several of one pod: an app container may hold exactly its init container's IDs."""
        owners = checkpoint.owners_of(resource, ids)
        if not owners:
            raise OwnershipError(
                f"kubelet starts a container with {len(ids)} x {resource.value} that its checkpoint does not list; "
                "it tries again, and the checkpoint is read again then"
            )
        known = [key for key in owners if self._grant_of(key, checkpoint) is not None]
        return known or owners

    def _grant_of(self, key: Owner, checkpoint: Checkpoint) -> Grant | None:
        """The grant whose directory the container will see; by the owner's name only where kubelet kept no answer."""
        seen = checkpoint.grant_of(*key)
        return self._node.ledger.get(seen) if seen is not None else self._node.ledger.of_owner(key)

    async def _settle(self, key: Owner, grant: Grant | None, checkpoint: Checkpoint) -> None:
        _check_one_grant(key, checkpoint)
        if grant is None:
            grant = await self._rebuild(key, checkpoint)
        counts = checkpoint.counts_of(*key)
        request = grant.allocation.request
        if grant.allocation.owner.key != key or (request.cores, request.blocks) != counts:
            _check_nobody_else_mounts(grant, key, checkpoint)
            grant = await self._repair(grant, key, counts)
        elif not grant.proved:
            grant = self._node.ledger.prove(grant.id)
        if grant.source is Source.CHECKPOINT:
            grant = await self._soften(grant)
        written = self._node.files.fill(grant)
        self._node.report.started(grant, written=written)

    async def _soften(self, grant: Grant) -> Grant:
        """A soft limit stands in the pod's annotations and not in kubelet's checkpoint, from which this grant comes."""
        pod = await self._node.find_pod(grant.allocation.owner.pod.uid)
        soft_cores = self._node.soft_cores(pod) if pod is not None else grant.soft_cores
        return self._node.ledger.soften(grant.id, soft_cores)

    async def _rebuild(self, key: Owner, checkpoint: Checkpoint) -> Grant:
        """The journal does not know the grant, but kubelet's checkpoint holds all of it in the answer that we gave."""
        pod = await self._node.find_pod(key[0])
        inventory = self._node.feed.catalog.inventory
        rebuilt = rebuild_one(checkpoint, *key, inventory, created=self._node.clock(), pod=pod)
        if rebuilt is None:
            raise OwnershipError(
                f"container {key[1]} of pod {key[0]} has GPU devices that this agent never granted; "
                "delete the pod, so that it is admitted again"
            )
        self._node.ledger.adopt([rebuilt])
        return rebuilt

    async def _repair(self, grant: Grant, key: Owner, counts: tuple[int, int]) -> Grant:
        pod = await self._node.find_pod(key[0])
        asked = asked_for(grant, counts, pod, key[1], self._node.layout.names)
        found = pod.container(key[1]) if pod else None
        owner = ContainerRef(pod.ref if pod else PodRef(key[0], "", ""), key[1])
        soft_cores = self._node.soft_cores(pod) if pod else grant.soft_cores
        role, index = (found.role, found.index) if found else (ContainerRole.UNKNOWN, 0)
        to = Claimant(owner, role, asked, soft_cores, index)
        inventory = self._node.feed.catalog.inventory
        try:
            fixed = self._node.ledger.settle(grant.id, to, inventory)
        except CapacityError as error:
            raise OwnershipError(
                f"{owner} was given the GPU of another container and does not fit there: {error.message}"
            ) from None
        if grant.allocation.owner.key != key:
            self._node.report.repaired(grant.allocation.owner, fixed)
        self._node.placed(fixed)
        return fixed


def _check_one_grant(key: Owner, checkpoint: Checkpoint) -> None:
    """Two full answers for one container are merged by kubelet in random order: nobody can say which it will see."""
    entries = (checkpoint.entry(*key, resource) for resource in Resource)
    seen = {entry.answer.grant for entry in entries if entry is not None and entry.answer is not None}
    if len(seen) > 1:
        raise OwnershipError(
            f"container {key[1]} of pod {key[0]} was given two GPU slices, because kubelet did not show for whom "
            "it asked; delete the pod, so that it is admitted again"
        )


def _check_nobody_else_mounts(grant: Grant, key: Owner, checkpoint: Checkpoint) -> None:
    """A grant that another container mounts stays with it."""
    owner = grant.allocation.owner
    if owner.key != key and grant.proved and checkpoint.grant_of(*owner.key) == grant.id:
        raise OwnershipError(
            f"container {key[1]} of pod {key[0]} was given the GPU slice of {owner}, which has started with it; "
            "delete the pod, so that it is admitted again"
        )
