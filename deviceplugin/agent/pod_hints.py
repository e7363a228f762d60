"""What the annotations of a pod ask of its node: the GPUs that a scheduler chose, and a soft limit.

In: a pod and the inventory. Out: UUIDs to prefer, a percentage. A hint is followed if it fits. An annotation that
cannot be read or trusted (`model.annotations`) counts as missing and is logged.
"""

from collections.abc import Callable

import structlog

from deviceplugin.errors import ParseError
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import trusted_allocation, trusted_minors
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import Pod, PodContainer

log = structlog.get_logger("vcuda.agent")


class PodHints:
    """Reads the annotations of one domain; `inventory` is read at each call."""

    def __init__(self, names: AnnotationNames, inventory: Callable[[], Inventory]) -> None:
        self._names = names
        self._inventory = inventory

    def scheduled_gpus(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        """Empty if no scheduler chose, or if a chosen GPU is not on this node."""
        if not pod.annotations:
            return frozenset()
        try:
            chosen = self._by_uuid(pod, container) or self._by_minor(pod, container)
        except ParseError as error:
            log.warning("annotation_ignored", pod=str(pod.ref), error=error.message)
            return frozenset()
        return chosen if chosen <= {gpu.uuid for gpu in self._inventory().gpus} else frozenset()

    def core_limit(self, pod: Pod) -> str | None:
        return pod.annotations.get(self._names.core_limit)

    def soft_cores(self, pod: Pod) -> int:
        """0 if the pod's limit is hard."""
        written = self.core_limit(pod)
        if written is None:
            return 0
        try:
            return text.parse_core_limit(written)
        except ParseError as error:
            log.warning("annotation_ignored", pod=str(pod.ref), error=error.message)
            return 0

    def predicate_time(self, pod: Pod) -> int | None:
        """Nanoseconds; raises ParseError."""
        written = pod.annotations.get(self._names.predicate_time)
        return None if written is None else text.parse_predicate_time(written)

    def _by_uuid(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        trusted = trusted_allocation(pod, self._names)
        if trusted.doubt:
            log.info("annotation_ignored", pod=str(pod.ref), error=trusted.doubt)
        return frozenset(share.uuid for share in trusted.shares(container.ref.name))

    def _by_minor(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        if container.role is not ContainerRole.APP:
            return frozenset()
        minors = set(trusted_minors(pod, container.index, self._names))
        found = frozenset(gpu.uuid for gpu in self._inventory().gpus if gpu.minor in minors)
        return found if len(found) == len(minors) else frozenset()
