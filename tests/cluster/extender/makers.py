"""Nodes, pods and requests for the tests of the extender."""

from collections.abc import Iterable, Mapping
from itertools import count

from deviceplugin.cluster.extender.wire import BindingArgs, ExtenderArgs, PreemptionArgs, Victims
from deviceplugin.model.allocation import ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.node import ClusterNode, format_inventory
from deviceplugin.model.pod import ClusterPod, Gang, Pod, PodContainer, ScheduledCondition
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU, Compute
from deviceplugin.structs import replace

NAMES = AnnotationNames()
_uids = count(1)


def inventory(
    name: str, gpus: int = 2, *, blocks: int = 64, ill: Iterable[int] = (), model: str = "Tesla T4"
) -> Inventory:
    cards = tuple(Gpu(GpuUuid(f"GPU-{name}-{at}"), at, at, model, blocks * BLOCK_BYTES) for at in range(gpus))
    health = {cards[at].uuid: Health(healthy=False, reason="Xid 79") for at in ill}
    return Inventory(cards, Topology(tuple(range(gpus)), {}), Driver("550.1", (12, 4)), health)


def node(
    name: str,
    gpus: int = 2,
    *,
    blocks: int = 64,
    ill: Iterable[int] = (),
    model: str = "Tesla T4",
    text: str | None = None,
    cordon: Iterable[str] = (),
    allocatable: Compute | None = None,
) -> ClusterNode:
    written = format_inventory(inventory(name, gpus, blocks=blocks, ill=ill, model=model), share_mode=True)
    return ClusterNode(
        name=name,
        uid=f"node-{name}",
        inventory=written if text is None else text,
        cordon=frozenset(cordon),
        ready=True,
        cores=gpus * CORES_PER_GPU,
        blocks=gpus * blocks,
        allocatable=allocatable,
    )


def pod(
    name: str = "",
    cores: int = 50,
    blocks: int = 8,
    *,
    on: str = "",
    annotations: Mapping[str, str] | None = None,
    priority: int = 0,
    nominated: str = "",
    gang: Gang | None = None,
    uid: str = "",
    more: Iterable[tuple[str, ContainerRole, int, int]] = (),
    needs: Compute | None = None,
) -> ClusterPod:
    """One container `main`, and `more` as (name, role, cores, blocks)."""
    number = next(_uids)
    ref = PodRef(PodUid(uid or f"uid-{number:09}"), "d", name or f"pod-{number:09}")  # sorted as created
    containers = [PodContainer(ContainerRef(ref, "main"), ContainerRole.APP, 0, cores, blocks)]
    for index, (other, role, its_cores, its_blocks) in enumerate(more, start=1):
        containers.append(PodContainer(ContainerRef(ref, other), role, index, its_cores, its_blocks))
    found = Pod(
        ref=ref,
        containers=tuple(containers),
        node=on,
        annotations=dict(annotations or {}),
        resource_version="1",
        api_uid=ref.uid,
    )
    return ClusterPod(found, priority=priority, nominated_node=nominated, gang=gang, needs=needs)


def allocated(found: ClusterPod, shares: Mapping[str, tuple[GpuShare, ...]], *, uid: str = "") -> dict[str, str]:
    return {NAMES.allocation: format_allocation(PodAllocation(PodUid(uid or found.uid), shares))}


def bound(found: ClusterPod, where: str, annotations: Mapping[str, str] | None = None) -> ClusterPod:
    return replace(
        found, pod=replace(found.pod, node=where, annotations={**found.pod.annotations, **(annotations or {})})
    )


def on_gpu(name: str, at: int, cores: int, blocks: int) -> tuple[GpuShare, ...]:
    return (GpuShare(GpuUuid(f"GPU-{name}-{at}"), cores, blocks),)


def running(name: str, at: int, cores: int, blocks: int) -> ClusterPod:
    """A pod with a part of that GPU."""
    one = pod(f"on-{name}-{at}", cores=cores, blocks=blocks)
    return bound(one, name, allocated(one, {"main": on_gpu(name, at, cores, blocks)}))


def refused(found: ClusterPod, version: str, message: str = "") -> ClusterPod:
    changed = replace(found.pod, resource_version=version)
    condition = ScheduledCondition(is_true=False, reason="Unschedulable", message=message)
    return replace(found, pod=changed, condition=condition)


def ended(found: ClusterPod, phase: str = "Succeeded") -> ClusterPod:
    return replace(found, pod=replace(found.pod, phase=phase))


def deleting(found: ClusterPod) -> ClusterPod:
    return replace(found, pod=replace(found.pod, deleting=True))


def ask(found: ClusterPod, *names: str) -> ExtenderArgs:
    return ExtenderArgs(found, names)


def order(found: ClusterPod, where: str) -> BindingArgs:
    return BindingArgs(found.pod.ref, where)


def ask_room(found: ClusterPod, victims: Mapping[str, Iterable[ClusterPod]]) -> PreemptionArgs:
    return PreemptionArgs(found, {name: Victims(tuple(each.uid for each in pods)) for name, pods in victims.items()})
