"""What a container really uses of its GPUs, as opposed to what it holds.

In: what `container` reads of shares and NVML says of whole GPUs. Out: values for the views. A number that nobody
measures for this kind of container is None; counters grow from the container's last start on.
"""

import enum
from dataclasses import dataclass

from deviceplugin.model.gpu import GpuUuid


class Breach(enum.Enum):
    """How a container gets more than it was given, or how it could."""

    MEMORY = "memory"
    CORES = "cores"
    BYPASS = "bypass"  # a process of it uses the GPU and our library does not know it
    STATE = "state"  # its shared state does not have the form that the library gives it


@dataclass(frozen=True, slots=True)
class Overrun:
    """One breach that lasts, in a sentence for people."""

    breach: Breach
    gpu: GpuUuid
    sentence: str


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One container on one GPU. Bytes; cores of 100, over the last sample period; seconds since its start.

    `overhead_bytes` is the part of `memory_bytes` that the driver holds beyond allocations: contexts, modules. `pids`
    are the node's, as far as the driver shows them.
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
    """One container; `processes` are those that use a GPU."""

    gpus: tuple[GpuUse, ...]
    processes: int
    overruns: tuple[Overrun, ...] = ()
