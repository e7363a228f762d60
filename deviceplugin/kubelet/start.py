"""PreStartContainer: prove who owns the IDs, repair what was guessed wrong, write the limits.

In: a resource and the IDs of one container that is about to start. Out: nothing, or an error that kubelet shows and
tries again. Kubelet's checkpoint was written and synced before this call (kubelet 1.36 writes it after each container's
admission), so it proves pod UID, container and, through the mount in the cached answer, the grant that the container
will see. The API server is not needed. A grant of the wrong owner changes hands; one of the wrong size is resized on
its GPUs, for the device nodes in the answer cannot be changed any more; only if that does not fit does the start fail.
"""

from collections.abc import Sequence
from dataclasses import replace

from deviceplugin.errors import CapacityError, OwnershipError, VcudaError
from deviceplugin.kubelet.node import Node
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.rebuild import rebuild_container
from deviceplugin.ledger.repair import Claimant, exchanged, moved
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.pod import Pod
from deviceplugin.model.request import Request, parse_request
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
            checkpoint = await self._node.checkpoint()
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
        if grant is None:
            grant = await self._rebuild(key, checkpoint)
        asked = parse_request(checkpoint.count(key, Resource.CORE), checkpoint.count(key, Resource.MEMORY))
        if grant.allocation.owner.key != key or grant.allocation.request != asked:
            grant = await self._repair(grant, key, asked)
        elif not grant.proved:
            grant = self._node.ledger.prove(grant.id)
        self._node.files.fill(grant)
        self._node.report.started(grant)

    async def _rebuild(self, key: Owner, checkpoint: Checkpoint) -> Grant:
        inventory = self._node.feed.catalog.inventory
        claimant = await self._claimant(key, await self._node.find_pod(key[0]))
        rebuilt = rebuild_container(checkpoint, claimant.owner, claimant.role, inventory)
        if rebuilt is None:
            raise OwnershipError(
                f"container {claimant.owner} has GPU devices that this agent never granted; "
                "delete the pod, so that it is admitted again"
            )
        self._node.ledger.restore([rebuilt], inventory=inventory)
        return rebuilt

    async def _repair(self, grant: Grant, key: Owner, asked: Request) -> Grant:
        pod = await self._node.find_pod(key[0])
        claimant = replace(await self._claimant(key, pod), request=asked)
        before = grant.allocation.owner
        try:
            fixed = self._reassign(grant, claimant, soft_cores=self._node.soft_cores(pod) if pod else grant.soft_cores)
        except CapacityError as error:
            raise OwnershipError(
                f"container {claimant.owner} was given the GPU of another container and does not fit there "
                f"({error.message}); delete the pod, so that it is admitted again"
            ) from None
        if before.key != key:
            self._node.report.repaired(before, fixed)
        return fixed

    def _reassign(self, grant: Grant, to: Claimant, *, soft_cores: int) -> Grant:
        """One entry of the journal; what stood under the true owner's name goes to the one who was taken for him."""
        inventory = self._node.feed.catalog.inventory
        displaced = self._node.ledger.of_owner(to.owner.key)
        changed = [moved(grant, to, inventory)]
        if displaced is not None and displaced.id != grant.id:
            changed.append(replace(exchanged(grant, displaced, inventory)[1], proved=False))
        changed[0] = replace(changed[0], proved=True, source=Source.CHECKPOINT, soft_cores=soft_cores)
        self._node.ledger.reassign(*changed, inventory=inventory, kind="repair")
        return changed[0]

    async def _claimant(self, key: Owner, pod: Pod | None) -> Claimant:
        """The container as the pod's spec describes it, as far as the pod is known."""
        ref = pod.ref if pod else PodRef(key[0], "", "")
        found = pod.container(key[1]) if pod else None
        role = found.role if found else ContainerRole.APP
        return Claimant(ContainerRef(ref, key[1]), role, Request(0, 0))
