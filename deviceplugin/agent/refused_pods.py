"""Pods that kubelet refused for our reasons, deleted so that their controller makes them again.

In: the pods of this node. Out: deletions. Kubelet never tries a refused pod again; a ReplicaSet makes a new one beside
it, and thousands of refused ones may pile up (NVIDIA k8s-device-plugin #231). A pod without a controller stays, for its
owner to read. Kubelet's words: reason `UnexpectedAdmissionError`, and a message that names the resource or our answer.
"""

from collections.abc import Iterable

import structlog

from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.model.pod import Pod

log = structlog.get_logger("vcuda.agent")
_MOST_AT_ONCE = 20
_REASON = "UnexpectedAdmissionError"


def is_refused(pod: Pod) -> bool:
    """Failed at admission over our devices: either kubelet or we had none for it."""
    return pod.is_gpu and pod.phase == "Failed" and pod.reason == _REASON and not pod.deleting


def comes_back(pod: Pod) -> bool:
    """Whether something will make it again."""
    return bool(pod.owner_kind) and pod.owner_kind not in {"Pod", "Node"}


async def delete_refused(client: KubeClient, pods: Iterable[Pod]) -> int:
    """Deletes a few in each round; returns how many."""
    deleted = 0
    for pod in [pod for pod in pods if is_refused(pod) and comes_back(pod)][:_MOST_AT_ONCE]:
        try:
            await client.delete_pod(pod.api_ref)
        except KubeNotFoundError:
            continue
        except VcudaError as error:
            log.warning("refused pod not deleted", pod=str(pod.ref), cause=error.message)
            continue
        deleted += 1
        log.info("refused pod deleted, its controller makes it again", pod=str(pod.ref), said=pod.message)
    return deleted
