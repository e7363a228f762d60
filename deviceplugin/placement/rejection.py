"""Why a GPU or a node does not serve a pod.

In: nothing. Out: constant texts. The value of a `NodeRejection` is what users read; kube-scheduler groups nodes with
equal texts in the pod's event. A GPU's text is completed by `describe`, which knows how much is free.
"""

import enum


class GpuRejection(enum.Enum):
    """Why a GPU cannot serve a request; the value is how a sentence counts such GPUs. The lasting ones come first."""

    UNWANTED = "not among the GPUs that the pod wants"
    MODEL = "of a model that the pod does not want"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    MIG = "in MIG mode"
    PROHIBITED = "in compute mode prohibited"
    EXCLUSIVE = "in compute mode exclusive-process, so given whole only"
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
    NO_OPEN_GPU = "every GPU is unhealthy, cordoned or otherwise closed"
    NO_SHARES = "no shares of GPUs, whole GPUs only"
    UNWANTED = "no GPU that the pod wants by UUID"
    MODEL = "no GPU of a wanted model"
    TOO_FEW = "too few GPUs that can serve the pod"
    TOO_SMALL = "too little memory on every GPU, also when it is empty"
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
