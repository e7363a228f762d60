"""What placement looks at: every GPU of a node with what is free on it, at one moment."""

from dataclasses import dataclass

from deviceplugin.model.gpu import Gpu, GpuUuid, Health
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as a request sees it: free cores (of 100), free blocks, processes that NVML sees on it."""

    gpu: Gpu
    free_cores: int
    free_blocks: int
    processes: int = 0
    health: Health = Health()

    @property
    def is_whole(self) -> bool:
        """Nobody holds any part of it."""
        return self.free_cores >= CORES_PER_GPU and self.free_blocks >= self.gpu.blocks


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs of one node and how they are linked."""

    gpus: tuple[GpuView, ...]
    topology: Topology

    def view(self, uuid: GpuUuid) -> GpuView | None:
        return next((view for view in self.gpus if view.gpu.uuid == uuid), None)
