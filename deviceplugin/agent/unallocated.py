"""Containers that run without the GPU they asked for, found and named.

In: kubelet's pods and the ledger. Out: a warning and an event for each, once. Kubelet admits a pod without any Allocate
while the node does not know the resource yet (research 1.11): the container runs without devices, and every later start
of it fails inside kubelet. Nothing but a new pod helps, and nobody else tells.
"""

from collections.abc import Iterable

import structlog

from deviceplugin.kube.events import EventReason, EventRecorder
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.pod import ContainerState, Pod

log = structlog.get_logger("vcuda.agent")


def ghosts(
    pods: Iterable[Pod], ledger: Ledger, checkpoint: Checkpoint
) -> dict[tuple[PodUid, str], tuple[Pod, ContainerRef]]:
    """Running GPU containers that neither we nor kubelet's checkpoint know devices of."""
    return {
        each.ref.key: (pod, each.ref)
        for pod in pods
        for each in pod.containers
        if each.is_gpu
        and each.state is ContainerState.RUNNING
        and ledger.of_owner(each.ref.key) is None
        and not checkpoint.has(*each.ref.key)
    }


class GhostHunt:
    """Remembers whom it has told of."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._told: frozenset[tuple[PodUid, str]] = frozenset()

    def look(self, pods: Iterable[Pod], ledger: Ledger, checkpoint: Checkpoint) -> None:
        found = ghosts(pods, ledger, checkpoint)
        for key, (pod, container) in found.items():
            if key not in self._told:
                text = (
                    f"container {container.name} runs without the GPU it asked for, because it started before the "
                    "vcuda agent had registered; delete the pod so that it is admitted again"
                )
                log.warning("a container runs without its GPU", container=str(container))
                self._events.about_pod(pod.api_ref, EventReason.ALLOCATION_FAILED, text)
        self._told = frozenset(found)
