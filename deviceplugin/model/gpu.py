"""A physical GPU: its constant properties and its current health.

In: what `hardware` discovered. Out: values for placement, the ledger and the views. Not here: who uses it (`ledger`)
and its place in the topology (`topology`). A GPU is identified by its UUID. Its index may change with every boot, and
its minor only names the device node.
"""

import enum
from dataclasses import dataclass, field
from typing import NewType

from deviceplugin.model.topology import Topology
from deviceplugin.model.units import blocks_in

GpuUuid = NewType("GpuUuid", str)


class ComputeMode(enum.Enum):
    """How many processes may use the GPU (nvmlComputeMode_t)."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive-process"
    PROHIBITED = "prohibited"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML describes it; memory in bytes, `numa` is None if the platform does not tell."""

    uuid: GpuUuid
    index: int
    minor: int
    model: str
    memory_bytes: int
    bus_id: str = ""
    numa: int | None = None
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    mig_enabled: bool = False

    @property
    def blocks(self) -> int:
        return blocks_in(self.memory_bytes)

    @property
    def device_path(self) -> str:
        return f"/dev/nvidia{self.minor}"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a GPU may get new pods; `reason` is a short phrase, empty if healthy."""

    healthy: bool = True
    reason: str = ""


NEWEST_CUDA = (13, 5)
"""The newest CUDA of whose functions vcuda's library knows all (docs/reference/driver-functions.md)."""


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions from NVML: driver `550.54.15`, CUDA as (major, minor)."""

    version: str
    cuda: tuple[int, int]

    @property
    def is_known(self) -> bool:
        """Whether no function of it can be newer than vcuda's library."""
        return self.cuda <= NEWEST_CUDA


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of this node in index order, their links and their health at one moment.

    `health` has an entry for each GPU that is not healthy. A GPU that disappears stays in the inventory as unhealthy
    while the agent runs, so that kubelet sees its device IDs as unhealthy and not as removed.
    """

    gpus: tuple[Gpu, ...]
    topology: Topology
    driver: Driver
    health: dict[GpuUuid, Health] = field(default_factory=dict)

    def gpu(self, uuid: GpuUuid) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def health_of(self, uuid: GpuUuid) -> Health:
        return self.health.get(uuid, Health())

    def is_usable(self, gpu: Gpu) -> bool:
        """Whether a container could be placed on the GPU now."""
        is_open = not gpu.mig_enabled and gpu.compute_mode is not ComputeMode.PROHIBITED
        return is_open and self.health_of(gpu.uuid).healthy


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that NVML sees on a GPU; memory in bytes (0: unknown), SM percent of the sample period."""

    pid: int
    memory_bytes: int
    sm_percent: int = 0


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of a GPU: utilisation in percent over the sample period, memory in bytes, and its processes."""

    utilization_percent: int
    memory_used_bytes: int
    processes: tuple[GpuProcess, ...] = ()
