"""Pods that did not get their GPUs and never will: refused by kubelet, refused at their start, or running without.

In: the pods of this node, kubelet's checkpoint and the ledger. Out: deletions of pods that a controller creates again;
one warning and one event for each container that runs without its GPU. Kubelet never tries a refused pod again. It
tries a refused start for ever, with the same recorded answer. And it admits a pod without any Allocate if the node does
not know the resource yet: the container runs without devices, and every later start of it fails inside kubelet. In all
three cases only a new pod helps.
"""

from collections.abc import Container, Iterable, Mapping

import structlog

from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.events import EventReason, EventRecorder
from deviceplugin.ledger.grant import Checkpoint
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.pod import ContainerState, Pod

log = structlog.get_logger("vcuda.agent")
_MAX_DELETIONS = 20
_ROUNDS = 2
_REFUSED = "UnexpectedAdmissionError"


def _is_refused(pod: Pod) -> bool:
    """By kubelet, for a GPU."""
    return pod.is_gpu and pod.phase == "Failed" and pod.reason == _REFUSED and not pod.deleting


def has_controller(pod: Pod) -> bool:
    """Whether a controller will create it again."""
    return pod.owner_kind not in {"", "Pod", "Node"}


async def delete_refused(client: KubeClient, pods: Iterable[Pod], *, unstartable: Container[PodUid] = ()) -> None:
    """Deletes up to 20 refused pods that have a controller.

    `unstartable`: the pods whose start the agent refuses for good. A ReplicaSet creates another pod beside a refused
    one, and thousands can pile up (NVIDIA k8s-device-plugin #231). A pod without a controller stays, so that its owner
    can read why.
    """
    refused = [pod for pod in pods if _is_refused(pod) or (pod.ref.uid in unstartable and not pod.deleting)]
    for pod in [pod for pod in refused if has_controller(pod)][:_MAX_DELETIONS]:
        try:
            await client.delete_pod(pod.api_ref)
        except KubeNotFoundError:
            continue
        except VcudaError as error:
            log.warning("pod_deletion_failed", pod=str(pod.ref), error=error.message)
        else:
            log.info("refused_pod_deleted", pod=str(pod.ref), refusal=pod.message)


def warn_unallocated(
    pods: Iterable[Pod], ledger: Ledger, checkpoint: Checkpoint, events: EventRecorder, *, seen: Mapping[OwnerKey, int]
) -> dict[OwnerKey, int]:
    """Reports running GPU containers without devices in the ledger and in kubelet's checkpoint.

    Each at the second round in a row that finds it: one round may compare what kubelet showed with a ledger from which
    the pod's end has just been removed. `seen` is the result of the previous round.
    """
    found = {
        each.ref.key: (pod, each.ref.name)
        for pod in pods
        for each in pod.containers
        if each.is_gpu
        and each.state is ContainerState.RUNNING
        and not (pod.is_terminal or pod.deleting)
        and ledger.of_owner(each.ref.key) is None
        and not checkpoint.has(*each.ref.key)
    }
    rounds = {key: seen.get(key, 0) + 1 for key in found}
    for key, (pod, container) in found.items():
        if rounds[key] == _ROUNDS:
            log.warning("container_without_gpu", pod=str(pod.ref), container=container)
            text = (
                f"container {container} runs without the GPU it asked for, because it started before the vcuda "
                "agent was registered; delete the pod so that it is admitted again"
            )
            events.about_pod(pod.api_ref, EventReason.ALLOCATION_FAILED, text)
    return rounds
