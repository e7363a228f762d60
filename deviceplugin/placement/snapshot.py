"""What placement looks at: every GPU of a node with what is free on it at one moment, and a summary of it.

In: an inventory less what is held. Out: values that never change. A `Summary` answers for most pods at once whether
they fit: for shares and for whole GPUs it has what is free and what the empty node would have, the largest first. It is
calculated once for a node that does not change. Filters of a pod are not in it: such a pod is answered from a summary
of the GPUs that it admits.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deviceplugin.model.gpu import ComputeMode, Gpu, GpuUuid, Health
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

    def less(self, cores: int, blocks: int) -> "GpuView":
        """With so much taken; where more is taken than is free, nothing is left."""
        left = max(0, self.free_cores - cores), max(0, self.free_blocks - blocks)
        return GpuView(self.gpu, *left, self.processes, self.health)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs of one node and how they are linked."""

    gpus: tuple[GpuView, ...]
    topology: Topology

    def view(self, uuid: GpuUuid) -> GpuView | None:
        return next((view for view in self.gpus if view.gpu.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class Summary:
    """`shares`: free cores and blocks of each GPU that may be shared, most cores first; the others in blocks.

    `share_sizes` and `sizes` are those of GPUs that may be shared and of all, free or not; `whole` of those that are
    free. `cores` and `blocks` are what all of them have free together.
    """

    shares: tuple[tuple[int, int], ...]
    share_sizes: tuple[int, ...]
    whole: tuple[int, ...]
    sizes: tuple[int, ...]
    cores: int
    blocks: int

    def fits_share(self, count: int, cores: int, blocks: int) -> bool:
        """Whether so many GPUs have that much free each."""
        for free_cores, free_blocks in self.shares:
            if free_cores < cores:
                return False
            if free_blocks >= blocks:
                count -= 1
                if not count:
                    return True
        return False

    def fits_whole(self, count: int, blocks: int) -> bool:
        return len(self.whole) >= count and self.whole[count - 1] >= blocks


def summarize(views: Iterable[GpuView]) -> Summary:
    """Of GPUs that are open to work."""
    shares, share_sizes, whole, sizes = [], [], [], []
    cores = blocks = 0
    for view in views:
        size = view.gpu.blocks
        sizes.append(size)
        cores += view.free_cores
        blocks += view.free_blocks
        if view.gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS:
            shares.append((view.free_cores, view.free_blocks))
            share_sizes.append(size)
        if view.free_cores >= CORES_PER_GPU and view.free_blocks >= size:
            whole.append(size)
    for largest_first in (shares, share_sizes, whole, sizes):
        largest_first.sort(reverse=True)
    return Summary(tuple(shares), tuple(share_sizes), tuple(whole), tuple(sizes), cores, blocks)


def summaries_by_numa(views: Iterable[GpuView]) -> tuple[Summary, ...]:
    """One for each NUMA node; GPUs of which the platform does not say where they are count as one."""
    nodes: dict[int | None, list[GpuView]] = {}
    for view in views:
        nodes.setdefault(view.gpu.numa, []).append(view)
    return tuple(summarize(each) for each in nodes.values())
