"""Writes what the ledger knows back to the pods, by the contract in `model.annotations`.

In: the ledger and the pods as the API server shows them. Out: patches for pods whose annotations differ. The ledger is
right and the annotation is corrected, because schedulers read the annotations to know what this node holds. Only proved
grants are written, and then the whole contract: a `predicate-node` copied from another pod would make schedulers
distrust the rest. Not here: when (`reconciler`).
"""

from collections.abc import Iterable, Mapping, Sequence

import structlog

from deviceplugin.errors import VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.ledger.grant import Grant
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import stale_indices, trusted_allocation
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.pod import Pod

log = structlog.get_logger("vcuda.agent")


def expected(pod: Pod, grants: Sequence[Grant], inventory: Inventory, names: AnnotationNames) -> dict[str, str]:
    """The annotations that a pod should have; none before every GPU container of it has a proved grant."""
    held = {grant.allocation.owner.name: grant for grant in grants if grant.proved}
    apps = [each for each in pod.containers if each.is_gpu and each.role is ContainerRole.APP]
    if not held or any(each.ref.name not in held for each in apps):
        return {}
    minors = {gpu.uuid: gpu.minor for gpu in inventory.gpus}
    shares = {name: grant.allocation.shares for name, grant in held.items()}
    out = {
        names.gpu_assigned: "true",
        names.predicate_node: pod.node,
        names.allocation: text.format_allocation(text.PodAllocation(PodUid(pod.api_uid or pod.ref.uid), shares)),
    }
    for container in apps:
        found = sorted(minors[share.uuid] for share in shares[container.ref.name] if share.uuid in minors)
        if found:
            out[names.gpu_indices(container.index)] = text.format_gpu_indices(found)
    return out


def corrections(
    pod: Pod, grants: Sequence[Grant], inventory: Inventory, names: AnnotationNames
) -> dict[str, str | None]:
    """What to write; None removes."""
    wanted = expected(pod, grants, inventory, names)
    if not wanted:
        return {}
    wrong = {name: value for name, value in wanted.items() if pod.annotations.get(name) != value}
    return {**wrong, **dict.fromkeys(stale_indices(pod, wanted, names))}


def is_annotated(pod: Pod, grant: Grant, names: AnnotationNames) -> bool:
    """Whether the pod's trusted annotations name what this grant's container holds."""
    container = pod.container(grant.allocation.owner.name)
    return container is not None and trusted_allocation(pod, names).shares_of(container) == grant.allocation.shares


async def sync(
    client: KubeClient,
    pods: Iterable[Pod],
    grants: Mapping[PodUid, Sequence[Grant]],
    inventory: Inventory,
    names: AnnotationNames,
) -> None:
    """Patches every pod that differs; a failure does not stop the others."""
    for pod in pods:
        wrong = corrections(pod, grants.get(pod.ref.uid, ()), inventory, names)
        if not wrong or pod.is_terminal or not pod.api_uid:
            continue
        try:
            await client.patch_pod_annotations(pod.api_ref, wrong)
        except VcudaError as error:
            log.warning("annotation_sync_failed", pod=str(pod.ref), error=error.message)
