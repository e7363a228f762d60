"""A grant as the ledger keeps it, and the content of kubelet's checkpoint, which proves whose it is.

A grant is created at Allocate and gets its id before its owner is certain. The id names the directory that the
container mounts, never a pod: at Allocate the owner may still be a guess, and what kubelet has recorded cannot change
afterwards. The owner can change: PreStartContainer proves it.

`kubelet.checkpoint` reads kubelet's file; `reconcile` decides by it. Kubelet writes it after all resources of a
container were answered and before the container starts; entries of ended pods stay until the next write. Only the two
vcuda resources are kept.
"""

import enum
from collections.abc import Container, Iterable
from functools import cached_property
from typing import NewType

import msgspec

from deviceplugin.model.allocation import Allocation, GpuShare, OwnerKey, PodUid
from deviceplugin.model.gpu import DeviceId, GpuUuid
from deviceplugin.model.pod import NO_LIMITS, PodLimits
from deviceplugin.model.units import Resource

GrantId = NewType("GrantId", str)


class Source(enum.Enum):
    """What identified the container of the Allocate."""

    PODS = "pods"  # kubelet's GET /pods
    PODRESOURCES = "podresources"  # kubelet's PodResources socket
    APISERVER = "apiserver"  # pending pods of this node in predicate-time order: a guess
    CHECKPOINT = "checkpoint"  # rebuilt from kubelet's checkpoint
    CLAIM = "claim"  # a ResourceClaim: the owner is the claim in the pod's place, and one of its requests


class Grant(msgspec.Struct, frozen=True):
    """Slots that are held. `answered`: resources whose Allocate was answered. `created`: Unix time in seconds.

    `limits` are those of the pod's annotations, stored here because PreStartContainer must not need the API server.
    """

    id: GrantId
    allocation: Allocation
    answered: frozenset[Resource]
    source: Source
    proved: bool
    created: float
    limits: PodLimits = NO_LIMITS

    @property
    def is_of_gpu_manager(self) -> bool:
        """Taken over from gpu-manager, which named directories after pods (`rebuild`)."""
        return self.id.partition(".")[0] == self.allocation.owner.pod.uid

    @property
    def is_share(self) -> bool:
        """Whole GPUs run on the untouched driver and share nothing."""
        return self.allocation.request.is_share

    def memory_limit(self, share: GpuShare) -> int:
        """Bytes of one of its GPUs that the container may use."""
        return (self.limits if self.is_share else NO_LIMITS).memory_bytes(share.blocks)


class RecordedAnswer(msgspec.Struct, frozen=True):
    """The answer to Allocate as kubelet replays it at every start of the container.

    `grant` is the last component of the path mounted at /etc/vcuda; None in an answer of gpu-manager. `cores` and
    `memory_bytes` come from the annotations, None if there are none. `directory` and `driver` are the paths on the node
    that are mounted at /etc/vcuda and /usr/local/nvidia, empty if nothing is, and `mounts` all that are mounted.
    `devices` are device nodes: they were those of `gpus` when kubelet asked, and need not be now; the node did not have
    those that are `missing`.
    """

    grant: GrantId | None
    gpus: tuple[GpuUuid, ...]
    cores: int | None
    memory_bytes: int | None
    directory: str = ""
    driver: str = ""
    mounts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class CheckpointEntry(msgspec.Struct, frozen=True):
    """One resource of one container; `answer` is None for the second resource, whose answer was empty."""

    pod: PodUid
    container: str
    resource: Resource
    devices: frozenset[DeviceId]
    answer: RecordedAnswer | None

    @property
    def key(self) -> OwnerKey:
        return (self.pod, self.container)


class Checkpoint(msgspec.Struct, frozen=True, dict=True):
    """All vcuda entries; `exists` is False if kubelet has no file (a fresh node, or it was deleted)."""

    entries: tuple[CheckpointEntry, ...] = ()
    exists: bool = True

    @cached_property
    def _by_container(self) -> dict[tuple[PodUid, str, Resource], CheckpointEntry]:
        return {(each.pod, each.container, each.resource): each for each in self.entries}

    @cached_property
    def _by_grant(self) -> dict[GrantId, OwnerKey]:
        held = [(each.answer.grant, each.key) for each in self.entries if each.answer and each.answer.grant]
        # A container with two grants never starts, so the other container that has one of them has it.
        whole = {grant: key for grant, key in held if len(self.grants_of(*key)) == 1}
        return dict(held) | whole

    def entry(self, uid: PodUid, container: str, resource: Resource) -> CheckpointEntry | None:
        return self._by_container.get((uid, container, resource))

    def has(self, uid: PodUid, container: str) -> bool:
        return bool(self.resources_of(uid, container))

    def resources_of(self, uid: PodUid, container: str) -> frozenset[Resource]:
        return frozenset(resource for resource in Resource if (uid, container, resource) in self._by_container)

    def ids_of(self, uid: PodUid, container: str, resource: Resource) -> frozenset[DeviceId]:
        """The IDs that kubelet gave to a container; their number is what its pod asked for."""
        entry = self.entry(uid, container, resource)
        return entry.devices if entry else frozenset()

    def counts_of(self, uid: PodUid, container: str) -> tuple[int, int]:
        return (len(self.ids_of(uid, container, Resource.CORE)), len(self.ids_of(uid, container, Resource.MEMORY)))

    def answer_of(self, uid: PodUid, container: str) -> RecordedAnswer | None:
        """The full answer of a container, whichever resource carried it."""
        found = (self.entry(uid, container, resource) for resource in Resource)
        return next((entry.answer for entry in found if entry is not None and entry.answer is not None), None)

    def grant_of(self, uid: PodUid, container: str) -> GrantId | None:
        answer = self.answer_of(uid, container)
        return answer.grant if answer else None

    def grants_of(self, uid: PodUid, container: str) -> frozenset[GrantId]:
        """Two if the calls for the two resources were taken for different containers."""
        found = (self.entry(uid, container, resource) for resource in Resource)
        return frozenset(each.answer.grant for each in found if each and each.answer and each.answer.grant)

    def owner_of_grant(self, grant_id: GrantId) -> OwnerKey | None:
        """The container that mounts this grant."""
        return self._by_grant.get(grant_id)

    def recorded_owner(self, grant_id: GrantId, owner: OwnerKey) -> OwnerKey | None:
        """The same, but its present owner if a wrong guess gave the grant to that one too: no other one may start."""
        return owner if self.grants_of(*owner) == {grant_id} else self.owner_of_grant(grant_id)

    def owners_of(self, resource: Resource, ids: Iterable[str]) -> tuple[OwnerKey, ...]:
        """Containers that hold exactly these IDs; several if kubelet reuses an init container's IDs for the app."""
        wanted = frozenset(ids)
        return tuple(each.key for each in self.entries if each.resource is resource and each.devices == wanted)

    def without(self, keys: Container[OwnerKey]) -> "Checkpoint":
        return Checkpoint(tuple(each for each in self.entries if each.key not in keys), self.exists)

    @property
    def pods(self) -> frozenset[PodUid]:
        return frozenset(each.pod for each in self.entries)

    @property
    def containers(self) -> tuple[OwnerKey, ...]:
        """Every container with an entry, in file order."""
        return tuple(dict.fromkeys(each.key for each in self.entries))
