"""The one rule of fit: what a request takes of a GPU, whether a GPU can give it, and why one does not serve.

In: a request; a GPU by its model and what of it is free. Out: the amount that is taken, or the reason why it cannot be.
The node agent, the scheduler extender, the simulator and the ledger all ask here. The paths that answer for thousands
of nodes (`Summary`, `CapacityAfter`, `assign`, `fragmentation`) only compare with amounts that come from here. To add a
way of sharing a GPU, add a `Sharing`, and say in `Demand` and `offers` what it is.

Reasons are constant texts. The value of a `NodeRejection` is what users read; kube-scheduler groups nodes with equal
texts in the pod's event. A GPU's text is completed by `describe`, which knows how much is free.

Not here: what is wrong with a GPU or what a pod refuses whatever it asks (`candidates`), and who holds how much
(`snapshot`).
"""

import enum
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from deviceplugin.model.gpu import ComputeMode, Gpu
from deviceplugin.model.request import Request
from deviceplugin.model.units import CORES_PER_GPU


class GpuRejection(enum.Enum):
    """Why a GPU cannot serve a request; the value is how a sentence counts such GPUs. The lasting ones come first."""

    UNWANTED = "not among the GPUs that the pod wants"
    MODEL = "of a model that the pod does not want"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    MIG = "in MIG mode"
    PROHIBITED = "in compute mode prohibited"
    EXCLUSIVE = "in compute mode exclusive-process, so allocated whole only"
    SMALL = "too small in memory"
    IN_USE = "in use"
    CORES = "short of cores"
    MEMORY = "short of memory"

    @property
    def resolvable(self) -> bool:
        """It goes away when a pod ends."""
        return self in (GpuRejection.IN_USE, GpuRejection.CORES, GpuRejection.MEMORY)


class NodeRejection(enum.Enum):
    """Why a node does not carry a pod."""

    NO_GPU = "no GPU"
    NO_OPEN_GPU = "every GPU is unavailable: unhealthy, cordoned, or in a mode without pods"
    NO_SHARES = "no shares of GPUs, whole GPUs only"
    UNWANTED = "no GPU that the pod wants by UUID"
    MODEL = "no GPU of a wanted model"
    TOO_FEW = "not enough matching GPUs"
    TOO_SMALL = "memory request larger than any GPU"
    TOO_FEW_ON_NUMA = "too few GPUs on any one NUMA node"
    POD_TOO_LARGE = "too few GPUs for all containers of the pod together"
    CORES = "insufficient vcuda-core on any one GPU"
    MEMORY = "insufficient vcuda-memory on any one GPU"
    SHARES = "insufficient vcuda-core or vcuda-memory on enough GPUs"
    WHOLE = "insufficient whole GPUs"
    ON_NUMA = "insufficient free GPUs on any one NUMA node"
    POD = "insufficient free GPUs for all containers of the pod together"
    SPARE = "insufficient cpu or memory"
    TOGETHER = "the pod's containers do not fit together"
    SEARCH_EXHAUSTED = "no room found for the pod's containers together, though not every combination was tried"

    NOT_LOOKED_AT = "not compared in this attempt, because the pod has so many GPU containers or named GPUs"

    @property
    def resolvable(self) -> bool:
        """It may go away when pods end; otherwise the empty node would not help either."""
        return self not in _LASTING

    __hash__ = object.__hash__  # the default hashes the name, which costs more than the look-up


_LASTING = frozenset({
    NodeRejection.NO_GPU, NodeRejection.NO_OPEN_GPU, NodeRejection.NO_SHARES, NodeRejection.UNWANTED,
    NodeRejection.MODEL, NodeRejection.TOO_FEW, NodeRejection.TOO_SMALL, NodeRejection.TOO_FEW_ON_NUMA,
    NodeRejection.POD_TOO_LARGE,
})  # fmt: skip


class GpuAmount(NamedTuple):
    """Cores (1/100 of a GPU) and memory blocks (256 MiB) of one GPU: held, free or needed."""

    cores: int = 0
    blocks: int = 0

    def __add__(self, other: "GpuAmount") -> "GpuAmount":  # type: ignore[override]  # a tuple joins, an amount adds
        return GpuAmount(self.cores + other.cores, self.blocks + other.blocks)

    def __sub__(self, other: "GpuAmount") -> "GpuAmount":
        """Never below zero: of a GPU that is over-committed nothing is free."""
        return GpuAmount(max(0, self.cores - other.cores), max(0, self.blocks - other.blocks))

    def __or__(self, other: "GpuAmount") -> "GpuAmount":
        """The larger of each: what two have that do not run at the same time."""
        return GpuAmount(max(self.cores, other.cores), max(self.blocks, other.blocks))

    def covers(self, other: "GpuAmount") -> bool:
        return self.cores >= other.cores and self.blocks >= other.blocks


NOTHING = GpuAmount()
NEVER = GpuAmount(CORES_PER_GPU + 1, 0)
"""More than any GPU has."""


class Sharing(enum.Enum):
    """How a request uses a GPU: beside others, or alone."""

    SHARE = "share"
    WHOLE = "whole"

    __hash__ = object.__hash__  # the default hashes the name, which costs more than the look-up


class GpuModel(NamedTuple):
    """What stays of a GPU whatever is in use. `whole_only`: it is never shared."""

    name: str
    blocks: int
    whole_only: bool = False

    @property
    def whole(self) -> GpuAmount:
        return GpuAmount(CORES_PER_GPU, self.blocks)


@lru_cache(maxsize=1024)  # equal models are one object, and comparing them costs nothing
def _model(name: str, blocks: int, whole_only: bool) -> GpuModel:
    return GpuModel(name, blocks, whole_only)


_EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS  # of an enum, to look it up costs more than the comparison


def model_of(gpu: Gpu) -> GpuModel:
    """The driver lets one process on a GPU in exclusive-process mode."""
    return _model(gpu.model, gpu.blocks, gpu.compute_mode is _EXCLUSIVE)


class GpuCapacity(NamedTuple):
    """One GPU with what is free on it."""

    model: GpuModel
    cores: int
    blocks: int

    @property
    def is_whole(self) -> bool:
        """Nobody holds any part of it."""
        return self.cores >= CORES_PER_GPU and self.blocks >= self.model.blocks


def offers(gpus: Iterable[GpuCapacity], sharing: Sharing) -> list[tuple[int, int]]:
    """What each GPU can give to one such demand now, of those that can give any; the most cores first."""
    if sharing is Sharing.WHOLE:
        found = [(CORES_PER_GPU, gpu.blocks) for gpu in gpus if gpu.is_whole]
    else:
        found = [(cores, blocks) for model, cores, blocks in gpus if not model.whole_only]
    found.sort(reverse=True)
    return found


class Demand(NamedTuple):
    """What one container asks of each of `gpus` GPUs; of a whole GPU `amount` is the least that it must have."""

    gpus: int
    sharing: Sharing
    amount: GpuAmount

    @property
    def total(self) -> GpuAmount:
        """Over all its GPUs."""
        return GpuAmount(self.gpus * self.amount.cores, self.gpus * self.amount.blocks)

    def takes(self, blocks: int) -> GpuAmount:
        """Of a GPU with that much memory: a whole one is taken with all of it."""
        return self.amount if self.sharing is Sharing.SHARE else GpuAmount(CORES_PER_GPU, blocks)

    def lasting_rejection(self, model: GpuModel) -> GpuRejection | None:
        """Why such a GPU does not serve it, empty or not."""
        if self.amount.blocks > model.blocks:
            return GpuRejection.SMALL
        return GpuRejection.EXCLUSIVE if model.whole_only and self.sharing is Sharing.SHARE else None

    def rejection(self, gpu: GpuCapacity) -> GpuRejection | None:
        """Why this GPU cannot serve it now; None if it can."""
        if (lasting := self.lasting_rejection(gpu.model)) is not None:
            return lasting
        if self.sharing is Sharing.WHOLE:
            return None if gpu.is_whole else GpuRejection.IN_USE
        if gpu.cores < self.amount.cores:
            return GpuRejection.CORES
        return GpuRejection.MEMORY if gpu.blocks < self.amount.blocks else None

    def needs(self, model: GpuModel) -> GpuAmount:
        """What must be free on a GPU of this model to serve it: the rule as a threshold."""
        return self.takes(model.blocks) if self.lasting_rejection(model) is None else NEVER


@lru_cache(maxsize=4096)  # a pod's request is looked at many times on its way
def demand_of(request: Request) -> Demand:
    sharing = Sharing.SHARE if request.is_share else Sharing.WHOLE
    return Demand(request.gpus, sharing, GpuAmount(request.cores_per_gpu, request.blocks_per_gpu))
