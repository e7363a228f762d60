"""The limits that a pod's annotations give its containers, within and beside what the scheduler grants.

In: annotations of a pod. Out: `PodLimits` for each container, or a ParseError. Neither takes anything from other
containers: a soft limit is idle time, and a limit of memory only lowers what was granted. So both can change while the
pod runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.per_container import PerContainer, parse_per_container
from deviceplugin.model.units import BLOCK_BYTES, MIB

MOST_MIB = 1 << 24  # 16 TiB: more was probably meant in bytes
NO_MEMORY_LIMITS = PerContainer(0)


@dataclass(frozen=True, slots=True)
class PodLimits:
    """Of one container. `soft_cores`: percent of a GPU, 0 if cores are a hard limit. `memory_mib` of each GPU: 0 if
    all that was granted may be used."""

    soft_cores: int = 0
    memory_mib: int = 0

    def memory_bytes(self, blocks: int) -> int:
        """What may be used of so many granted blocks of one GPU."""
        granted = blocks * BLOCK_BYTES
        return min(granted, self.memory_mib * MIB) if self.memory_mib else granted


NO_LIMITS = PodLimits()


def parse_memory_limits(annotations: Mapping[str, str], names: AnnotationNames) -> PerContainer:
    """MiB of each GPU of a container: `5000` for all containers of the pod, `main=5000,side=300` for some."""
    text = annotations.get(names.memory_limit)
    if text is None:
        return NO_MEMORY_LIMITS
    return parse_per_container(
        text, names.memory_limit, absent=0, most=MOST_MIB, wanted="the MiB of each GPU, 4096 for 4 GiB,"
    )
