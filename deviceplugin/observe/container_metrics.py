"""What containers hold of their GPUs and use of them, as metrics.

In: a picture. Out: metrics for the scrape. A value that is not measured for a container has no row; the values of whole
GPUs come from the driver, those of shares from vcuda's library. Values are added up by name: a pod and its successor of
the same name may both run while the first one ends.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from deviceplugin.exposition import Family, families_of, metric_of
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.gpu import Breach, ContainerUse, GpuUse
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.observe.node_view import NodePicture

GPU = ("node", "uuid")
_OWNER = ("namespace", "pod", "container")
CONTAINER = (*GPU, *_OWNER)
WITHOUT_GPU = ("node", *_OWNER)

MEMORY_LIMIT = Family(
    "vcuda_container_memory_limit_bytes", "gauge", "GPU memory that is allocated to the container.", CONTAINER
)
CORES_LIMIT = Family(
    "vcuda_container_cores_limit_ratio",
    "gauge",
    "Share of the GPU's compute time that is allocated to the container.",
    CONTAINER,
)
MEMORY = Family(
    "vcuda_container_memory_used_bytes",
    "gauge",
    "GPU memory that the container uses, the driver's overhead included; of processes without vcuda's library, what "
    "the driver shows.",
    CONTAINER,
)
OVERHEAD = Family(
    "vcuda_container_memory_overhead_bytes",
    "gauge",
    "The driver's overhead in the container's GPU memory: contexts and modules.",
    CONTAINER,
)
PEAK = Family(
    "vcuda_container_memory_peak_bytes", "gauge", "Highest GPU memory use of the container since its start.", CONTAINER
)
REFUSALS = Family(
    "vcuda_container_memory_refusals_total",
    "counter",
    "Allocations that failed at the container's memory limit.",
    CONTAINER,
)
CORES = Family(
    "vcuda_container_cores_used_ratio",
    "gauge",
    "Share of the GPU's time that the container used in the last sample period.",
    CONTAINER,
)
IN_FORCE = Family(
    "vcuda_container_cores_in_force_ratio",
    "gauge",
    "Share of the GPU's time that the container may use now; above its limit while it borrows idle time.",
    CONTAINER,
)
SECONDS = Family("vcuda_container_gpu_seconds_total", "counter", "GPU time that the container used.", CONTAINER)
THROTTLED = Family(
    "vcuda_container_throttled_seconds_total",
    "counter",
    "Time for which kernel launches were delayed at the limit, summed over threads.",
    CONTAINER,
)
THROTTLED_LAUNCHES = Family(
    "vcuda_container_throttled_launches_total", "counter", "Kernel launches that were delayed at the limit.", CONTAINER
)
USE_KNOWN = Family(
    "vcuda_container_use_known",
    "gauge",
    "0 while the use of the container cannot be told: its processes are not found or its shared state cannot be read, "
    "and what is not known has no series; else 1.",
    WITHOUT_GPU,
)
PROCESSES = Family(
    "vcuda_container_processes",
    "gauge",
    "Processes of the container that use a GPU.",
    WITHOUT_GPU,
)
UNKNOWN_FUNCTIONS = Family(
    "vcuda_container_unknown_functions_total",
    "counter",
    "How often a program of the container was given a function of a newer driver that vcuda's library does not limit.",
    WITHOUT_GPU,
)
OVER_LIMIT = Family(
    "vcuda_container_over_limit",
    "gauge",
    "1 while the container exceeds a limit or could, and no series otherwise: memory, cores, bypass (a process without "
    "vcuda's library), state (corrupted shared state).",
    (*CONTAINER, "breach"),
)
OVER_LIMIT_SECONDS = Family(
    "vcuda_container_over_limit_seconds_total",
    "counter",
    "Time in which a violation was seen, by kind. Also what was too short or too seldom to be reported.",
    (*CONTAINER, "breach"),
)

_BY_SHARE: tuple[tuple[Family, Callable[[Grant, GpuShare], float]], ...] = (
    (MEMORY_LIMIT, lambda grant, share: grant.memory_limit(share)),
    (CORES_LIMIT, lambda _, share: share.cores / CORES_PER_GPU),
)
_BY_GPU: tuple[tuple[Family, Callable[[GpuUse], float | None]], ...] = (
    (MEMORY, lambda use: use.memory_bytes),
    (OVERHEAD, lambda use: use.overhead_bytes),
    (PEAK, lambda use: use.peak_bytes),
    (REFUSALS, lambda use: use.refusals),
    (CORES, lambda use: None if use.cores is None else use.cores / CORES_PER_GPU),
    (IN_FORCE, lambda use: None if use.cores_in_force is None else use.cores_in_force / CORES_PER_GPU),
    (SECONDS, lambda use: use.gpu_seconds),
    (THROTTLED, lambda use: use.throttled_seconds),
    (THROTTLED_LAUNCHES, lambda use: use.throttled_launches),
)
FAMILIES = families_of(globals())
_Labels = tuple[str, ...]


def collect(picture: NodePicture) -> Iterator[Metric]:
    for family, read_share in _BY_SHARE:
        yield metric_of(family, _by_share(picture, read_share))
    known = [(_names(grant), use) for grant in picture.grants if (use := picture.uses.get(grant.id)) is not None]
    for family, read in _BY_GPU:
        yield metric_of(family, _by_gpu(picture.node, known, read))
    yield metric_of(USE_KNOWN, _use_known(picture.node, known).items())
    counted = [(names, use.processes) for names, use in known if use.processes is not None]
    yield metric_of(PROCESSES, (((picture.node, *names), count) for names, count in counted))
    given = [(names, use.unknown_functions) for names, use in known if use.unknown_functions is not None]
    yield metric_of(UNKNOWN_FUNCTIONS, (((picture.node, *names), count) for names, count in given))
    yield metric_of(OVER_LIMIT, _over_limit(picture.node, known).items())
    yield metric_of(OVER_LIMIT_SECONDS, _over_limit_seconds(picture.node, known).items())


def _by_share(picture: NodePicture, read: Callable[[Grant, GpuShare], float]) -> Iterator[tuple[_Labels, float]]:
    for grant in picture.grants:
        for share in grant.allocation.shares:
            yield (picture.node, share.uuid, *_names(grant)), read(grant, share)


def _by_gpu(
    node: str, known: Iterable[tuple[_Labels, ContainerUse]], read: Callable[[GpuUse], float | None]
) -> Iterator[tuple[_Labels, float]]:
    for names, use in known:
        for each in use.gpus:
            if (value := read(each)) is not None:
                yield (node, each.uuid, *names), value


def _use_known(node: str, known: Iterable[tuple[_Labels, ContainerUse]]) -> dict[_Labels, float]:
    """Of a pod and its successor of the same name both must be known."""
    rows: dict[_Labels, float] = {}
    for names, use in known:
        rows[node, *names] = min(rows.get((node, *names), 1.0), float(use.processes is not None))
    return rows


def _over_limit(node: str, known: Iterable[tuple[_Labels, ContainerUse]]) -> dict[_Labels, float]:
    """Only what is so: `vcuda_container_use_known` tells "no" from "unknown"."""
    return {(node, each.gpu, *names, each.breach.value): 1.0 for names, use in known for each in use.overruns}


def _over_limit_seconds(node: str, known: Iterable[tuple[_Labels, ContainerUse]]) -> dict[_Labels, float]:
    """Zeros too: a counter that begins at its first increase hides that increase."""
    rows: dict[_Labels, float] = {}
    for names, use in known:
        for each in use.gpus:
            for breach in Breach:
                labels = (node, each.uuid, *names, breach.value)
                rows[labels] = rows.get(labels, 0.0) + use.over_seconds.get((each.uuid, breach), 0.0)
    return rows


def _names(grant: Grant) -> _Labels:
    owner = grant.allocation.owner
    return owner.pod.namespace, owner.pod.name, owner.name
