"""Pods that did not get their GPUs: those that kubelet refused, and those that run without.

In: the pods of this node, kubelet's checkpoint and the ledger. Out: deletions of refused pods; one warning and one
event for each container that runs without its GPU. Kubelet admits a pod without any Allocate if the node does not know
the resource yet: the container runs without devices, and every later start of it fails inside kubelet. Only a new pod
helps.
"""

from collections.abc import Iterable

import structlog

from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.events import EventReason, EventRecorder
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import OwnerKey
from deviceplugin.model.pod import ContainerState, Pod

log = structlog.get_logger("vcuda.agent")
_MAX_DELETIONS = 20
_REFUSED = "UnexpectedAdmissionError"


def _is_replaceable(pod: Pod) -> bool:
    """Kubelet refused it, and a controller will create another one."""
    refused = pod.is_gpu and pod.phase == "Failed" and pod.reason == _REFUSED and not pod.deleting
    return refused and pod.owner_kind not in {"", "Pod", "Node"}


async def delete_refused(client: KubeClient, pods: Iterable[Pod]) -> None:
    """Deletes up to 20 refused pods that have a controller.

    Kubelet never tries a refused pod again. A ReplicaSet creates another one beside it, and thousands of refused pods
    can pile up (NVIDIA k8s-device-plugin #231). A pod without a controller stays, so that its owner can read why.
    """
    for pod in [pod for pod in pods if _is_replaceable(pod)][:_MAX_DELETIONS]:
        try:
            await client.delete_pod(pod.api_ref)
        except KubeNotFoundError:
            continue
        except VcudaError as error:
            log.warning("pod_deletion_failed", pod=str(pod.ref), error=error.message)
        else:
            log.info("refused_pod_deleted", pod=str(pod.ref), refusal=pod.message)


def warn_unallocated(
    pods: Iterable[Pod], ledger: Ledger, checkpoint: Checkpoint, events: EventRecorder, *, warned: frozenset[OwnerKey]
) -> frozenset[OwnerKey]:
    """Reports running GPU containers without devices in the ledger and in kubelet's checkpoint.

    Not those in `warned`; returns all of them, for the next call.
    """
    found = [
        (pod, each.ref)
        for pod in pods
        for each in pod.containers
        if each.is_gpu
        and each.state is ContainerState.RUNNING
        and ledger.of_owner(each.ref.key) is None
        and not checkpoint.has(*each.ref.key)
    ]
    for pod, container in found:
        if container.key not in warned:
            log.warning("container_without_gpu", pod=str(pod.ref), container=container.name)
            text = (
                f"container {container.name} runs without the GPU it asked for, because it started before the vcuda "
                "agent was registered; delete the pod so that it is admitted again"
            )
            events.about_pod(pod.api_ref, EventReason.ALLOCATION_FAILED, text)
    return frozenset(container.key for _, container in found)
