"""PreStartContainer: prove who owns the IDs, repair a wrong guess, write the limits.

In: a resource and the IDs of one container that is about to start. Out: nothing, or an error that kubelet shows before
it tries again. Kubelet's checkpoint was written and synced before this call (kubelet 1.36 writes it after each
container's admission). It proves the pod's UID, the container and, by the mount in the recorded answer, the grant that
the container will see. The API server is not needed. A grant with a wrong owner is given to the true one; a grant of
the wrong size is resized on its GPUs, because the device nodes of the answer cannot change. The start fails if that
does not fit, or if the recorded answer is not true any more: the grant's GPUs are gone or have other device nodes,
or a mount has no source, where the runtime would start the container with an empty directory.
"""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from deviceplugin.errors import (
    CapacityError,
    KubeletError,
    OwnershipError,
    UnknownDeviceError,
    VcudaError,
)
from deviceplugin.kubelet.allocate_answer import why_outdated
from deviceplugin.kubelet.allocate_context import AllocateContext
from deviceplugin.ledger.grant import Checkpoint, Grant, Source
from deviceplugin.ledger.ledger import claimant_proved, owner_named
from deviceplugin.ledger.reconcile import rebuild_one
from deviceplugin.model.allocation import OwnerKey
from deviceplugin.model.units import CORES_PER_GPU, Resource
from deviceplugin.structs import replace

_IN_A_ROW_S = 1.0
_MOST_HALVES = 1_000
_GPU_MANAGERS_ID = re.compile(r"[^/]+/vcuda-(?:core|memory)-[0-9]+", re.ASCII)


class PreStart:
    """The call of both resources. Containers start in parallel: each change of the ledger is one step of the loop."""

    def __init__(self, context: AllocateContext) -> None:
        self._context = context
        self._halves: dict[OwnerKey, tuple[Resource, Grant, float]] = {}

    async def start(self, resource: Resource, ids: Sequence[str]) -> None:
        try:
            checkpoint = self._context.checkpoint.read()
            if ids and all(map(_GPU_MANAGERS_ID.fullmatch, ids)):
                owners = self._owners(checkpoint, resource, ids)
                await self._check_gpu_managers(owners, checkpoint)
            else:
                owners = await self._check_issued(resource, ids, checkpoint)
        except VcudaError as error:
            self._context.report.start_failed(None, error)
            raise
        for key in owners:
            if not self._is_other_half(resource, key, checkpoint):
                await self._start_owner(key, checkpoint)
                self._remember_half(resource, key, checkpoint)
        if resource is Resource.CORE:  # every container with a GPU has cores, so this counts each start once
            self._context.report.started()

    async def _check_issued(self, resource: Resource, ids: Sequence[str], checkpoint: Checkpoint) -> Sequence[OwnerKey]:
        """The containers that have these IDs. Kubelet may have recorded some that are not issued any more."""
        try:
            self._context.feed.catalog.check(resource, ids)
        except UnknownDeviceError as error:
            for key in checkpoint.owners_of(resource, ids):
                owner, _, _ = owner_named(key, await self._context.pods.find(key[0]))
                why = f"{error.message}; delete the pod, so that it is admitted again"
                self._context.reclaim.unstartable(owner, why)
                raise OwnershipError(why) from None
            raise
        return self._owners(checkpoint, resource, ids)

    async def _check_gpu_managers(self, owners: Sequence[OwnerKey], checkpoint: Checkpoint) -> None:
        """Kubelet repeats gpu-manager's answer at each start. With it the container must find what limits it."""
        for key in owners:
            if why := self._unlimited(key, checkpoint):
                error = OwnershipError(
                    f"the container was admitted by gpu-manager, and {why}; delete the pod, so that vcuda admits it"
                )
                owner, _, _ = owner_named(key, await self._context.pods.find(key[0]))
                self._context.reclaim.unstartable(owner, error.message)
                raise error

    def _unlimited(self, key: OwnerKey, checkpoint: Checkpoint) -> str:
        """Why nothing would limit a container of gpu-manager's time to its share; empty if something does."""
        answer, layout = checkpoint.answer_of(*key), self._context.layout
        if answer is None:
            return "kubelet recorded no GPU for it"
        if len(checkpoint.ids_of(*key, Resource.CORE)) >= CORES_PER_GPU:
            return ""  # whole GPUs: gpu-manager's copy of the driver and vcuda's are the same
        if sum(uid == key[0] for uid, _ in checkpoint.containers) > 1:
            return "several containers of the pod have one directory for their limits"
        if answer.driver != str(layout.mirror_for(whole=False)):
            return "its libraries are not vcuda's"
        return "" if answer.directory == str(layout.grants / key[0]) else "the directory for its limits is not vcuda's"

    def _is_other_half(self, resource: Resource, key: OwnerKey, checkpoint: Checkpoint) -> bool:
        """Whether the call for the other resource has just done all of it for this grant: kubelet makes both before it
        starts the container.

        Each such call counts once. So of two calls in a row one does the work, also if kubelet begins again between.
        """
        other, grant, until = self._halves.pop(key, (resource, None, 0.0))
        is_recent = other is resource.other and time.monotonic() < until
        return is_recent and self._grant_of(key, checkpoint) is grant

    def _remember_half(self, resource: Resource, key: OwnerKey, checkpoint: Checkpoint) -> None:
        grant = self._grant_of(key, checkpoint)
        if len(self._halves) >= _MOST_HALVES:  # of containers whose other call never came
            self._halves.clear()
        if grant is not None:
            self._halves[key] = (resource, grant, time.monotonic() + _IN_A_ROW_S)

    async def _start_owner(self, key: OwnerKey, checkpoint: Checkpoint) -> None:
        try:
            await self._start(key, self._grant_of(key, checkpoint), checkpoint)
        except VcudaError as error:
            owner, _, _ = owner_named(key, await self._context.pods.find(key[0]))
            self._context.report.start_failed(owner, error)
            if isinstance(error, OwnershipError):
                self._context.reclaim.unstartable(owner, error.message)
            raise

    def _owners(self, checkpoint: Checkpoint, resource: Resource, ids: Sequence[str]) -> Sequence[OwnerKey]:
        """One container, or several of one pod: an app container may hold exactly its init container's IDs.

        Entries of pods that ended are not meant: kubelet gives their IDs to others, and drops the entries later.
        """
        ended = {pod.ref.uid for pod in self._context.pods.watched() if pod.is_terminal}
        owners = [key for key in checkpoint.owners_of(resource, ids) if key[0] not in ended]
        if not checkpoint.exists:
            raise KubeletError(
                f"kubelet starts a container with {len(ids)} x {resource.value}, and it has no checkpoint at "
                f"{self._context.checkpoint.path}; where that is not its directory for device plugins, correct "
                "--device-plugin-path (value agent.kubelet.devicePlugins)"
            )
        if not owners:
            raise KubeletError(
                f"kubelet starts a container with {len(ids)} x {resource.value} that its checkpoint does not list; "
                "it tries again, and the checkpoint is read again then"
            )
        known = [key for key in owners if self._grant_of(key, checkpoint) is not None]
        return known or owners

    def _grant_of(self, key: OwnerKey, checkpoint: Checkpoint) -> Grant | None:
        """The grant whose directory the container will see; by the owner where gpu-manager gave the answer."""
        seen = checkpoint.grant_of(*key)
        return self._context.ledger.get(seen) if seen is not None else self._context.ledger.of_owner(key)

    async def _start(self, key: OwnerKey, grant: Grant | None, checkpoint: Checkpoint) -> None:
        _check_grant_recorded(key, checkpoint)
        _check_one_grant(key, checkpoint)
        if grant is None:
            grant = await self._rebuild(key, checkpoint)
        counts = checkpoint.counts_of(*key)
        request = grant.allocation.request
        if grant.allocation.owner.key != key or (request.cores, request.blocks) != counts:
            _check_nobody_else_mounts(grant, key, checkpoint)
            grant = await self._repair(grant, key, counts)
        elif not grant.proved:
            grant = self._context.ledger.prove(grant.id, checkpoint.resources_of(*key))
        await self._check_devices(grant, key, checkpoint)
        if grant.source is Source.CHECKPOINT:
            grant = await self._read_limits(grant)
        if self._context.files.fill(grant):
            self._context.report.limits_written(grant)
        _check_mounts(key, checkpoint)

    async def _check_devices(self, grant: Grant, key: OwnerKey, checkpoint: Checkpoint) -> None:
        """Kubelet repeats the device nodes that it recorded; the grant says which GPUs they must be."""
        answer = checkpoint.answer_of(*key)
        assert answer is not None, "_check_grant_recorded comes first"
        inventory = self._context.feed.catalog.inventory
        held = [(share.uuid, inventory.gpu(share.uuid)) for share in grant.allocation.shares]
        why = next((f"its GPU {uuid} is not on this node any more" for uuid, gpu in held if gpu is None), "")
        if not why:
            await self._context.gpus.settled()
            gpus = [self._context.gpus.located(gpu) for _, gpu in held if gpu is not None]
            why = why_outdated(answer, gpus, self._context.layout, exists=os.path.exists)
        if why:
            raise _not_as_promised(key, why)

    async def _read_limits(self, grant: Grant) -> Grant:
        """They are in the pod's annotations, not in kubelet's checkpoint, the source of this grant."""
        pod = await self._context.pods.find(grant.allocation.owner.pod.uid)
        limits = self._context.hints.limits(pod, grant.allocation.owner.name) if pod is not None else grant.limits
        return self._context.ledger.set_limits(grant.id, limits)

    async def _rebuild(self, key: OwnerKey, checkpoint: Checkpoint) -> Grant:
        """The journal does not have the grant, but kubelet's checkpoint has all of it in the recorded answer."""
        pod = await self._context.pods.find(key[0])
        if pod is None:
            raise KubeletError(
                f"kubelet's checkpoint gives these GPU devices to container {key[1]} of pod {key[0]}, which neither "
                "kubelet nor the API server shows; it tries again, and the checkpoint is read again then"
            )
        inventory = self._context.feed.catalog.inventory
        rebuilt = rebuild_one(checkpoint, *key, inventory, created=time.time(), pod=pod)
        if rebuilt is None:
            raise OwnershipError(
                f"container {key[1]} of pod {key[0]} has GPU devices that this agent never allocated; "
                "delete the pod, so that it is admitted again"
            )
        self._context.ledger.adopt([rebuilt])
        return rebuilt

    async def _repair(self, grant: Grant, key: OwnerKey, counts: tuple[int, int]) -> Grant:
        pod = await self._context.pods.find(key[0])
        limits = self._context.hints.limits(pod, key[1]) if pod else grant.limits
        to = replace(claimant_proved(grant, key, counts, pod, self._context.layout.names), limits=limits)
        inventory = self._context.feed.catalog.inventory
        try:
            fixed = self._context.ledger.reassign_to_owner(grant.id, to, inventory)
        except CapacityError as error:
            raise OwnershipError(
                f"{to.owner} was given the GPU of another container and does not fit there: {error.message}"
            ) from None
        if grant.allocation.owner.key != key:
            self._context.report.repaired(grant.allocation.owner, fixed)
        self._context.reclaim.placed(fixed)
        return fixed


def _check_grant_recorded(key: OwnerKey, checkpoint: Checkpoint) -> None:
    """Without a full answer the container has no devices and no limits, whatever the ledger holds for it."""
    if checkpoint.answer_of(*key) is None:
        raise OwnershipError(
            f"container {key[1]} of pod {key[0]} would start without its GPU, because kubelet did not show for whom it "
            "asked; delete the pod, so that it is admitted again"
        )


def _check_mounts(key: OwnerKey, checkpoint: Checkpoint) -> None:
    """What this agent mounts is there by now; an answer from before its paths were changed may name others."""
    answer = checkpoint.answer_of(*key)
    if answer is None or answer.grant is None:  # gpu-manager's mounts are compared by their paths
        return
    for path in answer.mounts:
        if not Path(path).exists():
            raise _not_as_promised(key, f"{path}, which kubelet recorded as a mount, is missing on the node")


def _not_as_promised(key: OwnerKey, why: str) -> OwnershipError:
    return OwnershipError(
        f"container {key[1]} of pod {key[0]} would not have what it was promised: {why}; "
        "delete the pod, so that it is admitted again"
    )


def _check_one_grant(key: OwnerKey, checkpoint: Checkpoint) -> None:
    """Kubelet merges two full answers for one container in random order: which one the container sees is unknown."""
    if len(checkpoint.grants_of(*key)) > 1:
        raise OwnershipError(
            f"container {key[1]} of pod {key[0]} was given two GPU slices, because kubelet did not show for whom "
            "it asked; delete the pod, so that it is admitted again"
        )


def _check_nobody_else_mounts(grant: Grant, key: OwnerKey, checkpoint: Checkpoint) -> None:
    """A grant that another container mounts stays with it."""
    owner = grant.allocation.owner
    if owner.key != key and grant.proved and checkpoint.grant_of(*owner.key) == grant.id:
        raise OwnershipError(
            f"container {key[1]} of pod {key[0]} was given the GPU slice of {owner}, which has started with it; "
            "delete the pod, so that it is admitted again"
        )
