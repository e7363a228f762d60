"""Grants from kubelet's checkpoint, for a journal that was lost.

In: a checkpoint, the inventory, and the pods where they are known. Out: the grants that it proves, exactly: the number
of IDs is what the container asked for, NVIDIA_VISIBLE_DEVICES in the recorded answer names its GPUs. IDs only hint at a
GPU and are used where the answer names none. Pure.

Names and roles are not in the checkpoint. A container whose pod is not known has the role UNKNOWN and counts beside
everything in its pod, which can only count too much; `Ledger.describe` corrects it later. A container that gpu-manager
allocated gets a grant too: it really holds its GPUs. The directory that it mounts has the pod's UID as its name, and so
has the grant; where several containers of the pod mount it, it is none of theirs, and each grant's name has more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.ledger.evidence import Checkpoint, RecordedAnswer
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.repair import owner_named, share_for
from deviceplugin.model.allocation import Allocation, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.ids import gpu_keys, key_of
from deviceplugin.model.pod import Pod
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU, Resource


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The grants that could be rebuilt, and a sentence for each container for which that failed."""

    grants: tuple[Grant, ...]
    failures: tuple[str, ...]


def rebuild(
    checkpoint: Checkpoint, inventory: Inventory, *, created: float, pods: Mapping[PodUid, Pod] | None = None
) -> Rebuilt:
    """Every container of the checkpoint; with `pods`, only those of pods that are there and have not ended.

    Without `pods` entries of ended pods may come back, since kubelet drops them late; `reconcile` releases them again.
    """
    grants: list[Grant] = []
    failures: list[str] = []
    for uid, container in checkpoint.containers:
        pod = pods.get(uid) if pods is not None else None
        if pods is not None and (pod is None or pod.is_terminal):
            continue
        grant = rebuild_one(checkpoint, uid, container, inventory, created=created, pod=pod)
        if grant is not None:
            grants.append(grant)
        else:
            failures.append(
                f"kubelet's checkpoint gives GPU devices to container {container} of pod {uid}, and the recorded "
                "answer does not say which GPU; its slots are not counted until the pod is created again"
            )
    return Rebuilt(tuple(grants), tuple(failures))


def rebuild_one(
    checkpoint: Checkpoint,
    uid: PodUid,
    container: str,
    inventory: Inventory,
    *,
    created: float = 0.0,
    pod: Pod | None = None,
) -> Grant | None:
    """The grant of one container; None where its recorded answer does not say what it holds."""
    answer = checkpoint.answer_of(uid, container)
    if answer is None:
        return None
    ids = {resource: checkpoint.ids_of(uid, container, resource) for resource in Resource}
    named = _named(answer, inventory)
    uuids = named or _hinted(frozenset().union(*ids.values()), inventory)
    request = _request(len(ids[Resource.CORE]), len(ids[Resource.MEMORY]), answer, len(named))
    if request is None or len(uuids) != request.gpus:
        return None
    owner, role, index = owner_named((uid, container), pod)
    shares = tuple(share_for(uuid, request, inventory) for uuid in uuids)
    return Grant(
        id=answer.grant or _gpu_managers_id(checkpoint, uid, container),
        allocation=Allocation(owner, role, request, shares, index),
        answered=frozenset(resource for resource in Resource if ids[resource]),
        source=Source.CHECKPOINT,
        proved=True,
        created=created,
    )


def _request(cores: int, blocks: int, answer: RecordedAnswer, gpus: int) -> Request | None:
    """Less than the GPUs have that the answer names is a share over all of them."""
    asked = cores or answer.cores or 0
    memory = blocks or (answer.memory_bytes or 0) // BLOCK_BYTES
    if gpus > 1 and 0 < asked < CORES_PER_GPU * gpus:
        return Request(asked, memory, gpus) if memory and not (asked % gpus or memory % gpus) else None
    if asked <= 0 or (asked > CORES_PER_GPU and asked % CORES_PER_GPU):
        return None
    return Request(asked, memory)


def _named(answer: RecordedAnswer, inventory: Inventory) -> tuple[GpuUuid, ...]:
    """UUIDs only: a GPU that is gone is still held, while words like `all` or `void` name none."""
    return tuple(dict.fromkeys(uuid for uuid in answer.gpus if inventory.gpu(uuid) or uuid.startswith("GPU-")))


def _hinted(ids: frozenset[str], inventory: Inventory) -> tuple[GpuUuid, ...]:
    keys, hinted = gpu_keys(gpu.uuid for gpu in inventory.gpus), set(map(key_of, ids))
    return tuple(gpu.uuid for gpu in inventory.gpus if keys[gpu.uuid] in hinted)


def _gpu_managers_id(checkpoint: Checkpoint, uid: PodUid, container: str) -> GrantId:
    is_alone = sum(key[0] == uid for key in checkpoint.containers) == 1
    return GrantId(uid if is_alone else f"{uid}.{container}")
