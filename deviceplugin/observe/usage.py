"""`/usage`: every GPU and every container that holds a part of one, as JSON.

In: a picture. Out: `Usage`, whose fields are the document; names and meanings are an interface. Numbers that NVML has
not given yet are null. Nothing is computed here that the ledger does not say.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from deviceplugin.ledger.grant import Grant
from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.gpu import ContainerUse, Gpu, GpuUse, GpuUuid, Inventory
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.observe.node_view import NodePicture
from deviceplugin.structs import replace

VERSION = 1


class GpuUsage(msgspec.Struct, frozen=True):
    """One GPU; cores of 100, blocks of 256 MiB, `reason` says why it is unhealthy.

    A `cordoned` one keeps its containers and takes no new ones.
    """

    uuid: str
    index: int
    minor: int
    model: str
    healthy: bool
    reason: str
    cores_allocated: int
    blocks_allocated: int
    blocks: int
    memory_bytes: int
    memory_allocated_bytes: int
    memory_used_bytes: int | None
    utilization_percent: int | None
    processes: int | None
    cordoned: bool = False
    available: bool = True


class ShareUsage(msgspec.Struct, frozen=True):
    """What a container holds of one GPU and what it uses of it; `minor` is null if the GPU is gone.

    Cores of 100. What is not measured for this container, or not yet, is null.
    """

    uuid: str
    minor: int | None
    cores: int
    blocks: int
    memory_used_bytes: int | None = None
    memory_overhead_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_refusals: int | None = None
    cores_used: float | None = None
    cores_in_force: float | None = None
    gpu_seconds: float | None = None
    throttled_seconds: float | None = None
    throttled_launches: int | None = None


class ContainerUsage(msgspec.Struct, frozen=True):
    """One container's grant; `proved` where kubelet's checkpoint has confirmed the owner, `source` who named it.

    `processes` are those that use a GPU, null while they are not known.
    `over_limit` says in sentences where it takes more than it holds.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    role: str
    grant: str
    cores: int
    blocks: int
    evaluator: str
    gpus: tuple[ShareUsage, ...]
    proved: bool
    source: str
    created: str
    processes: int | None = None
    over_limit: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """The document; `usage` is what gpu-manager showed at the same path, by pod UID."""

    version: int
    node: str
    gpus: tuple[GpuUsage, ...]
    containers: tuple[ContainerUsage, ...]
    usage: Mapping[str, Any] = {}


def usage_of(picture: NodePicture, by_pod: Callable[[NodePicture], Mapping[str, Any]] = lambda _: {}) -> Usage:
    """`by_pod` makes gpu-manager's part of the document."""
    read = {grant.id: use for grant in picture.grants if (use := picture.uses.get(grant.id)) is not None}
    picture = replace(picture, uses=read)  # both parts of the document show the same reading
    gpus = tuple(gpu_usage(picture, picture.inventory, gpu) for gpu in picture.gpus) if picture.inventory else ()
    minors = {gpu.uuid: gpu.minor for gpu in picture.gpus}
    containers = tuple(_container(grant, minors, picture.uses.get(grant.id)) for grant in picture.grants)
    return Usage(version=VERSION, node=picture.node, gpus=gpus, containers=containers, usage=by_pod(picture))


def gpu_usage(picture: NodePicture, inventory: Inventory, gpu: Gpu) -> GpuUsage:
    health, taken, sample = inventory.health_of(gpu.uuid), picture.taken_of(gpu.uuid), picture.samples.get(gpu.uuid)
    return GpuUsage(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        model=gpu.model,
        healthy=health.healthy,
        reason=health.reason,
        cores_allocated=taken.cores,
        blocks_allocated=taken.blocks,
        blocks=gpu.blocks,
        memory_bytes=gpu.memory_bytes,
        memory_allocated_bytes=taken.blocks * BLOCK_BYTES,
        memory_used_bytes=sample.memory_used_bytes if sample else None,
        utilization_percent=sample.utilization_percent if sample else None,
        processes=len(sample.processes) if sample else None,
        cordoned=gpu.uuid in picture.cordoned,
        available=picture.is_available(gpu),
    )


def _container(grant: Grant, minors: dict[GpuUuid, int], use: ContainerUse | None) -> ContainerUsage:
    allocation = grant.allocation
    used = {each.uuid: each for each in use.gpus} if use else {}
    return ContainerUsage(
        namespace=allocation.owner.pod.namespace,
        pod=allocation.owner.pod.name,
        uid=allocation.owner.pod.uid,
        container=allocation.owner.name,
        role=allocation.role.value,
        grant=grant.id,
        cores=allocation.request.cores,
        blocks=allocation.request.blocks,
        evaluator=allocation.request.kind.value,
        gpus=tuple(_share(share, minors, used.get(share.uuid, GpuUse(share.uuid))) for share in allocation.shares),
        proved=grant.proved,
        source=grant.source.value,
        created=datetime.fromtimestamp(grant.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        processes=use.processes if use else None,
        over_limit=tuple(each.sentence for each in use.overruns) if use else (),
    )


def _share(share: GpuShare, minors: dict[GpuUuid, int], use: GpuUse) -> ShareUsage:
    return ShareUsage(
        uuid=share.uuid,
        minor=minors.get(share.uuid),
        cores=share.cores,
        blocks=share.blocks,
        memory_used_bytes=use.memory_bytes,
        memory_overhead_bytes=use.overhead_bytes,
        memory_peak_bytes=use.peak_bytes,
        memory_refusals=use.refusals,
        cores_used=_rounded(use.cores),
        cores_in_force=_rounded(use.cores_in_force),
        gpu_seconds=_rounded(use.gpu_seconds),
        throttled_seconds=_rounded(use.throttled_seconds),
        throttled_launches=use.throttled_launches,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
