"""What the annotations of a pod ask of its node: the GPUs that a scheduler chose, and limits.

In: a pod and the inventory. Out: UUIDs to prefer, `PodLimits`. A hint is followed if it fits. An annotation that
cannot be read or trusted (`model.annotations`) counts as missing and is logged, at most once a minute for each pod:
its author may change it without pause.
"""

from collections.abc import Callable

import structlog

from deviceplugin.errors import ParseError
from deviceplugin.log import Pace
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import trusted_allocation, trusted_minors
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.per_container import PerContainer
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.pod_limits import NO_LIMITS, NO_MEMORY_LIMITS, PodLimits, parse_memory_limits
from deviceplugin.model.preferences import parse_preferences

log = structlog.get_logger("vcuda.agent")


class PodHints:
    """Reads the annotations of one domain; `inventory` is read at each call."""

    def __init__(self, names: AnnotationNames, inventory: Callable[[], Inventory]) -> None:
        self._names = names
        self._inventory = inventory
        self._pace = Pace()

    def scheduled_gpus(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        """Empty if no scheduler chose, or if a chosen GPU is not on this node."""
        if not pod.annotations:
            return frozenset()
        try:
            chosen = self._by_uuid(pod, container) or self._by_minor(pod, container)
        except ParseError as error:
            self._ignored(pod, error.message)
            return frozenset()
        return chosen if chosen <= {gpu.uuid for gpu in self._inventory().gpus} else frozenset()

    def written_limits(self, pod: Pod) -> tuple[str | None, str | None]:
        """The annotations that `limits` reads."""
        return pod.annotations.get(self._names.core_limit), pod.annotations.get(self._names.memory_limit)

    def limits(self, pod: Pod, container: str) -> PodLimits:
        if self.written_limits(pod) == (None, None):
            return NO_LIMITS
        return PodLimits(self._soft_cores(pod), self._memory_limits(pod).of(container))

    def _soft_cores(self, pod: Pod) -> int:
        written = pod.annotations.get(self._names.core_limit)
        try:
            return 0 if written is None else text.parse_core_limit(written)
        except ParseError as error:
            self._ignored(pod, error.message)
            return 0

    def _memory_limits(self, pod: Pod) -> PerContainer:
        try:
            return parse_memory_limits(pod.annotations, self._names)
        except ParseError as error:
            self._ignored(pod, error.message)
            return NO_MEMORY_LIMITS

    def predicate_time(self, pod: Pod) -> int | None:
        """Nanoseconds; raises ParseError."""
        written = pod.annotations.get(self._names.predicate_time)
        return None if written is None else text.parse_predicate_time(written)

    def _by_uuid(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        trusted = trusted_allocation(pod, self._names)
        if trusted.doubt:
            self._ignored(pod, trusted.doubt)
        return frozenset(share.uuid for share in trusted.shares_of(container))

    def _by_minor(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]:
        """gpu-manager's schedulers do not know the pod's filter, so a choice against it is none."""
        if container.role is not ContainerRole.APP:
            return frozenset()
        minors = set(trusted_minors(pod, container.index, self._names))
        wanted = parse_preferences(pod.annotations, self._names).gpus
        chosen = [gpu for gpu in self._inventory().gpus if gpu.minor in minors]
        admitted = all(wanted.admits_uuid(gpu.uuid) and wanted.admits_model(gpu.model) for gpu in chosen)
        return frozenset(gpu.uuid for gpu in chosen) if admitted and len(chosen) == len(minors) else frozenset()

    def _ignored(self, pod: Pod, why: str) -> None:
        if self._pace.allows(pod.ref.uid):
            log.warning("annotation_ignored", pod=str(pod.ref), error=why)
