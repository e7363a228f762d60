"""The GPU resources that a container really uses, in contrast to its grant.

In: what `container` measures of shares and NVML of whole GPUs. Out: values for the views. None: not measured for this
kind of container, or not known now. Counters grow from the last start of the container.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deviceplugin.model.gpu import GpuSample, GpuUuid


class Breach(enum.Enum):
    """How a container gets more than its grant, or could get it."""

    MEMORY = "memory"
    CORES = "cores"
    BYPASS = "bypass"  # one of its processes uses the GPU without the interposer
    STATE = "state"  # its shared state is corrupted


@dataclass(frozen=True, slots=True)
class Overrun:
    """One lasting breach, with a sentence for users."""

    breach: Breach
    gpu: GpuUuid
    sentence: str


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One container on one GPU. Bytes; cores of 100, over the last sample period; seconds since its start.

    `overhead_bytes` is the part of `memory_bytes` that the driver uses beside allocations: contexts, modules. `pids`
    are those of the node, if the driver shows them.
    """

    uuid: GpuUuid
    memory_bytes: int | None = None
    overhead_bytes: int | None = None
    peak_bytes: int | None = None
    refusals: int | None = None
    cores: float | None = None
    cores_in_force: float | None = None
    gpu_seconds: float | None = None
    throttled_seconds: float | None = None
    throttled_launches: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container; `processes` counts those that use a GPU, None while they cannot be found or counted.

    `over_seconds`: for how long each breach was seen, also where that was too short to be one of `overruns`.
    `unknown_functions`: how often its programs were given a function that vcuda's library is too old to limit.
    """

    gpus: tuple[GpuUse, ...]
    processes: int | None
    overruns: tuple[Overrun, ...] = ()
    over_seconds: Mapping[tuple[GpuUuid, Breach], float] = field(default_factory=dict)
    unknown_functions: int | None = None


def use_of_whole(gpus: Sequence[GpuUuid], samples: Mapping[GpuUuid, GpuSample]) -> ContainerUse:
    """Everything on a GPU that has one holder belongs to that holder. What the driver did not show is not known."""
    known = [(uuid, samples[uuid]) for uuid in gpus if uuid in samples]
    uses = tuple(
        GpuUse(
            uuid=uuid,
            memory_bytes=sample.memory_used_bytes,
            cores=float(sample.utilization_percent),
            pids=tuple(process.pid for process in sample.processes),
        )
        for uuid, sample in known
    )
    pids = {pid for use in uses for pid in use.pids}
    return ContainerUse(uses, len(pids) if len(known) == len(gpus) else None)
