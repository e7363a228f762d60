"""Which GPUs could serve a request, and what speaks against each of the others.

In: a request and a snapshot. Out: the candidates that an evaluator chooses from, and one obstacle for every other
GPU, the lasting ones first. Not here: any order among candidates. An unhealthy GPU, one in MIG mode and one whose
compute mode is prohibited are never candidates; one in exclusive-process mode only as a whole.
"""

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

from deviceplugin.model.gpu import ComputeMode, GpuUuid
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.model.topology import Topology
from deviceplugin.placement.snapshot import GpuView, Snapshot


class Obstacle(enum.Enum):
    """Why a GPU cannot serve a request; the value is how a summary counts such GPUs."""

    EXCLUDED = "not open to this container"
    UNHEALTHY = "unhealthy"
    MIG = "in MIG mode"
    PROHIBITED = "in compute mode prohibited"
    EXCLUSIVE = "in compute mode exclusive-process, so given whole only"
    SMALL = "too small in memory"
    IN_USE = "in use"
    CORES = "short of cores"
    MEMORY = "short of memory"

    @property
    def passes(self) -> bool:
        """It goes away when a pod ends."""
        return self in (Obstacle.IN_USE, Obstacle.CORES, Obstacle.MEMORY)


@dataclass(frozen=True, slots=True)
class Candidates:
    """GPUs that could serve the request, in minor order.

    `free` holds the minors of all whole GPUs that work may land on, candidates or not: evaluators count them to see how
    full a branch of the tree is.
    """

    request: Request
    views: tuple[GpuView, ...]
    free: frozenset[int]
    topology: Topology

    def among(self, uuids: Collection[GpuUuid]) -> "Candidates":
        return replace(self, views=tuple(view for view in self.views if view.gpu.uuid in uuids))


@dataclass(frozen=True, slots=True)
class Survey:
    """Every GPU of the snapshot once: as a candidate or with its obstacle."""

    candidates: Candidates
    obstacles: tuple[tuple[GpuView, Obstacle], ...]


def survey(request: Request, snapshot: Snapshot, only: Collection[GpuUuid] | None = None) -> Survey:
    views = sorted(snapshot.gpus, key=lambda view: (view.gpu.minor, view.gpu.uuid))
    judged = [(view, _obstacle(request, view, only)) for view in views]
    candidates = Candidates(
        request=request,
        views=tuple(view for view, obstacle in judged if obstacle is None),
        free=frozenset(view.gpu.minor for view in views if view.is_whole and _broken(view) is None),
        topology=_covering(snapshot),
    )
    return Survey(candidates, tuple((view, obstacle) for view, obstacle in judged if obstacle is not None))


def _obstacle(request: Request, view: GpuView, only: Collection[GpuUuid] | None) -> Obstacle | None:
    if only is not None and view.gpu.uuid not in only:
        return Obstacle.EXCLUDED
    if (broken := _broken(view)) is not None:
        return broken
    if request.blocks_per_gpu > view.gpu.blocks:
        return Obstacle.SMALL
    if request.kind is not RequestKind.SHARE:
        return None if view.is_whole else Obstacle.IN_USE
    if view.gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS:
        return Obstacle.EXCLUSIVE
    if request.cores > view.free_cores:
        return Obstacle.CORES
    return Obstacle.MEMORY if request.blocks > view.free_blocks else None


def _broken(view: GpuView) -> Obstacle | None:
    """What keeps all work off a GPU."""
    if not view.health.healthy:
        return Obstacle.UNHEALTHY
    if view.gpu.mig_enabled:
        return Obstacle.MIG
    return Obstacle.PROHIBITED if view.gpu.compute_mode is ComputeMode.PROHIBITED else None


def _covering(snapshot: Snapshot) -> Topology:
    """The topology, with any GPU that it does not name added as one that shares no level."""
    topology = snapshot.topology
    unnamed = {view.gpu.minor for view in snapshot.gpus} - set(topology.minors)
    return Topology((*topology.minors, *sorted(unnamed)), topology.links) if unnamed else topology
