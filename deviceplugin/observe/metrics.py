"""The agent's metrics for Prometheus.

In: a picture and the agent's state for what is true now, and the methods of `AgentMetrics` for what happened. Out: the
text of all metrics. `FAMILIES` is the reference: names, labels and meanings are interfaces, and docs/reference is
generated from it. All gauges of a text are of one picture, so they agree with each other. Not here: what containers
hold and use (`container_metrics`).
"""

from collections.abc import Iterable, Iterator

import prometheus_client
from prometheus_client.core import Metric

from deviceplugin.errors import VcudaError
from deviceplugin.exposition import Exposition, Family, families_of, metric_of
from deviceplugin.ledger.grant import Source
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.observe import container_metrics
from deviceplugin.observe.container_metrics import GPU
from deviceplugin.observe.node_view import AgentState, NodePicture
from deviceplugin.serve.connections import CLOSED, ClosedBecause

GPU_INFO = Family(
    "vcuda_gpu_info",
    "gauge",
    "Always 1; the labels describe the GPU: index as nvidia-smi counts, minor of /dev/nvidiaN, product, driver, CUDA.",
    (*GPU, "index", "minor", "product", "driver", "cuda"),
)
GPU_HEALTHY = Family(
    "vcuda_gpu_healthy",
    "gauge",
    "1 while the GPU is healthy; 0 while it is unhealthy and gets no new containers.",
    GPU,
)
GPU_AVAILABLE = Family(
    "vcuda_gpu_available",
    "gauge",
    "1 while the GPU is available to new containers: healthy, not cordoned, in no MIG mode or compute mode prohibited.",
    GPU,
)
GPU_CORDONED = Family("vcuda_gpu_cordoned", "gauge", "1 while the GPU is cordoned and gets no new containers.", GPU)
GPU_REPAIR_PENDING = Family(
    "vcuda_gpu_memory_repair_pending",
    "gauge",
    "1 while a reset of the GPU is due, because a faulty row of its memory is remapped only then.",
    GPU,
)
NVML_OPEN = Family(
    "vcuda_nvml_open",
    "gauge",
    "0 while the agent keeps NVML closed on request, so that GPUs can be reset and the driver upgraded; else 1.",
    ("node",),
)
GPU_MEMORY = Family("vcuda_gpu_memory_capacity_bytes", "gauge", "Memory of the GPU.", GPU)
GPU_MEMORY_ALLOCATED = Family(
    "vcuda_gpu_memory_allocated_bytes",
    "gauge",
    "Memory of the GPU that is allocated to containers, in whole memory blocks.",
    GPU,
)
GPU_MEMORY_USED = Family(
    "vcuda_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is in use, by any process, from NVML.", GPU
)
GPU_CORES_ALLOCATED = Family(
    "vcuda_gpu_cores_allocated_ratio", "gauge", "Share of the GPU's compute time that is allocated to containers.", GPU
)
GPU_UTILIZATION = Family(
    "vcuda_gpu_utilization_ratio", "gauge", "Share of the sample period in which a kernel ran, from NVML.", GPU
)
GPU_PROCESSES = Family("vcuda_gpu_processes", "gauge", "Processes on the GPU, from NVML.", GPU)
GPU_XID_ERRORS = Family(
    "vcuda_gpu_xid_errors_total",
    "counter",
    "Errors that make the GPU unhealthy, as the driver raised them: critical XIDs, and double-bit errors without XID.",
    GPU,
)
GPU_XIDS = Family(
    "vcuda_gpu_xids_total",
    "counter",
    "XIDs that the driver raised for the GPU, critical or not, by number; numbers beyond NVIDIA's catalog are other.",
    (*GPU, "xid"),
)
DRIVER_KNOWN = Family(
    "vcuda_driver_known",
    "gauge",
    "0 if the driver's CUDA is newer than vcuda's library, so that functions which it brings are not limited; else 1.",
    ("node", "cuda"),
)
REGISTERED = Family("vcuda_kubelet_registered", "gauge", "1 while kubelet is connected to both device plugins.")
ALLOCATIONS = Family(
    "vcuda_allocations_total",
    "counter",
    "Containers and claims for which kubelet asked, by outcome; the reason of a refusal is the kind of error.",
    ("outcome", "reason"),
)
ALLOCATION_SECONDS = Family(
    "vcuda_allocation_duration_seconds",
    "histogram",
    "Time from kubelet's call until the GPUs of a container or claim were decided or refused; one for each.",
)
IDENTITY_SECONDS = Family(
    "vcuda_identity_duration_seconds",
    "histogram",
    "Time that kubelet waited until the agent knew which container asks, by the source of --identity that decided.",
    ("source",),
)
LISTS_TOO_LARGE = Family(
    "vcuda_kubelet_pod_lists_too_large_total",
    "counter",
    "Times that kubelet's list of pods was beyond the bound, so that the next source of --identity was asked.",
)
STARTS = Family(
    "vcuda_container_starts_total",
    "counter",
    "Starts of containers by outcome; kubelet repeats a refused one. The reason of a refusal is the kind of error.",
    ("outcome", "reason"),
)
REGISTRATIONS = Family("vcuda_kubelet_registrations_total", "counter", "Successful registrations with kubelet.")
REFUSED_CONNECTIONS = Family(
    "vcuda_registration_connections_refused_total",
    "counter",
    "Connections to vcuda.sock that sent what gpu-manager's client never sends, were silent, or ended before their "
    "call was whole; the log says of which container.",
)
REPAIRS = Family(
    "vcuda_ledger_repairs_total", "counter", "Allocations whose container was corrected from kubelet's checkpoint."
)
LAST_EVENT = Family(
    "vcuda_watch_last_event_timestamp_seconds",
    "gauge",
    "Unix time of the last event of the watch of this node's pods.",
)
UNREADABLE = Family(
    "vcuda_pods_unreadable",
    "gauge",
    "Pods of this node that the agent cannot read; what it knew of them before counts. The log says which and why.",
)
MIRROR = Family(
    "vcuda_driver_mirror_info",
    "gauge",
    "Always 1; the label has the version of the driver files that containers get.",
    ("driver",),
)
MIRROR_MISSING = Family(
    "vcuda_driver_mirror_missing",
    "gauge",
    "1 for each library that containers need and that the node's driver lacks.",
    ("library",),
)
SHARES_ENFORCEABLE = Family(
    "vcuda_shares_enforceable", "gauge", "1 while shares may start; 0 while nothing would enforce their limits."
)
CONNECTIONS_CLOSED = Family(
    "vcuda_connections_closed_total",
    "counter",
    f"Connections to the views that the agent closed: {CLOSED}.",
    ("reason",),
)
BUILD = Family("vcuda_build_info", "gauge", "Always 1; the label has the version of vcuda.", ("version",))

FAMILIES = (*families_of(globals()), *container_metrics.FAMILIES)
REASONS = (
    *("capacity", "claim", "container", "driver_missing", "hardware", "identity", "internal", "kube", "kubelet"),
    *("ledger", "ownership", "parse", "request", "search_limit", "timeout"),
)
"""With which refusals are labelled; each starts at 0, so that a rate sees the first one."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class AgentMetrics(Exposition):
    """All metrics of one agent; each method counts one kind of event, and `changes` counts them."""

    def __init__(self, *, version: str) -> None:
        super().__init__(build=BUILD, version=version)
        self.changes = 0
        self._shown: tuple[NodePicture, AgentState] | None = None
        counted = (ALLOCATIONS, STARTS, LISTS_TOO_LARGE, REGISTRATIONS, REPAIRS, REFUSED_CONNECTIONS)
        self._counters = {family: self.counter(family) for family in counted}
        _start_at_0(self._counters[ALLOCATIONS], "allocated")
        _start_at_0(self._counters[STARTS], "started")
        self._seconds = self.histogram(ALLOCATION_SECONDS, _SECONDS)
        self._identity_seconds = self.histogram(IDENTITY_SECONDS, _SECONDS)
        self._last_event: float | None = None
        self._mirror = self.gauge(MIRROR)
        self._mirror_missing = self.gauge(MIRROR_MISSING)
        self._shares_enforceable = self.gauge(SHARES_ENFORCEABLE)
        closed = self.counter(CONNECTIONS_CLOSED)
        self._closed = {reason: closed.labels(reason=reason.value) for reason in ClosedBecause}

    def count(self, family: Family, **labels: str) -> None:
        """It happened once more."""
        self.changes += 1
        counter = self._counters[family]
        (counter.labels(**labels) if labels else counter).inc()

    def granted(self, seconds: float) -> None:
        """A container or a request of a claim got its GPUs; so long after kubelet had asked."""
        self.count(ALLOCATIONS, outcome="allocated", reason="")
        self._seconds.observe(seconds)

    def refused(self, reason: str, seconds: float) -> None:
        """A container got none; `reason` is one of `REASONS`."""
        self.count(ALLOCATIONS, outcome="refused", reason=reason)
        self._seconds.observe(seconds)

    def start_failed(self, reason: str) -> None:
        self.count(STARTS, outcome="refused", reason=reason)

    def identified(self, source: Source | None, seconds: float) -> None:
        """Kubelet waited for so long; None if no source knew the container."""
        self.changes += 1
        self._identity_seconds.labels(source=source.value if source is not None else "none").observe(seconds)

    def event_seen(self, timestamp: float) -> None:
        """Unix time of the last event, bookmark or list from the API server."""
        self.changes += 1
        self._last_event = timestamp

    def connection_closed(self, reason: ClosedBecause) -> None:
        """Not one of the `changes`: peers cause it as often as they like, and each change is a new rendering."""
        self._closed[reason].inc()

    def mirrored(self, *, driver: str, missing: Iterable[str], enforceable: bool) -> None:
        """What the driver mirror holds now."""
        self.changes += 1
        self._mirror.clear()
        self._mirror.labels(driver=driver).set(1)
        self._mirror_missing.clear()
        for library in missing:
            self._mirror_missing.labels(library=library).set(1)
        self._shares_enforceable.set(enforceable)

    def render_with(self, picture: NodePicture, state: AgentState, accept: str = "") -> tuple[bytes, str]:
        """The text of all metrics, and its content type. Any thread may call it, one at a time."""
        self._shown = picture, state
        return self.render(accept)

    def collect(self) -> Iterator[Metric]:
        """The node's picture as gauges."""
        if self._shown is None:
            return
        picture, state = self._shown
        yield metric_of(LAST_EVENT, [] if self._last_event is None else [((), self._last_event)])
        yield metric_of(NVML_OPEN, [((picture.node,), picture.nvml_open)])
        yield from _gpu_families(picture)
        yield from _sample_families(picture)
        xids = [((picture.node, gpu, xid), count) for (gpu, xid), count in picture.xids.items()]
        yield metric_of(GPU_XIDS, xids)
        yield from container_metrics.collect(picture)
        yield metric_of(REGISTERED, [((), state.registered)])
        yield metric_of(UNREADABLE, [((), state.unreadable)])


def reason_of(error: VcudaError) -> str:
    """The kind of an error as a label: `CapacityError` is `capacity`, `DriverMissingError` `driver_missing`."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _start_at_0(counter: prometheus_client.Counter, success: str) -> None:
    counter.labels(outcome=success, reason="")
    for reason in REASONS:
        counter.labels(outcome="refused", reason=reason)


def _gpu_families(picture: NodePicture) -> Iterator[Metric]:
    inventory = picture.inventory
    if inventory is None:
        return
    at = {gpu.uuid: (picture.node, gpu.uuid) for gpu in inventory.gpus}
    cuda = ".".join(map(str, inventory.driver.cuda))
    described = [
        ((*at[gpu.uuid], str(gpu.index), str(gpu.minor), gpu.model, inventory.driver.version, cuda), 1.0)
        for gpu in inventory.gpus
    ]
    yield metric_of(GPU_INFO, described)
    yield metric_of(DRIVER_KNOWN, [((picture.node, cuda), inventory.driver.is_known)])
    yield metric_of(GPU_HEALTHY, [(at[gpu.uuid], inventory.health_of(gpu.uuid).healthy) for gpu in inventory.gpus])
    yield metric_of(GPU_AVAILABLE, [(at[gpu.uuid], picture.is_available(gpu)) for gpu in inventory.gpus])
    yield metric_of(GPU_CORDONED, [(at[gpu.uuid], gpu.uuid in picture.cordoned) for gpu in inventory.gpus])
    yield metric_of(GPU_REPAIR_PENDING, [(at[gpu.uuid], gpu.uuid in picture.repairs_pending) for gpu in inventory.gpus])
    errors = picture.critical_errors
    yield metric_of(GPU_XID_ERRORS, [(at[gpu.uuid], errors.get(gpu.uuid, 0)) for gpu in inventory.gpus])
    yield metric_of(GPU_MEMORY, [(at[gpu.uuid], gpu.memory_bytes) for gpu in inventory.gpus])
    held = [(at[gpu.uuid], picture.taken_of(gpu.uuid)) for gpu in inventory.gpus]
    yield metric_of(GPU_MEMORY_ALLOCATED, [(labels, taken.blocks * BLOCK_BYTES) for labels, taken in held])
    yield metric_of(GPU_CORES_ALLOCATED, [(labels, taken.cores / CORES_PER_GPU) for labels, taken in held])


def _sample_families(picture: NodePicture) -> Iterator[Metric]:
    samples = [((picture.node, gpu.uuid), picture.samples.get(gpu.uuid)) for gpu in picture.gpus]
    read = [(labels, sample) for labels, sample in samples if sample is not None]
    yield metric_of(GPU_MEMORY_USED, [(labels, sample.memory_used_bytes) for labels, sample in read])
    yield metric_of(GPU_UTILIZATION, [(labels, sample.utilization_percent / 100) for labels, sample in read])
    yield metric_of(GPU_PROCESSES, [(labels, len(sample.processes)) for labels, sample in read])
