"""The cluster: what there is, what is granted and used, who waits and why, and whether vcuda itself works."""

from scripts.dashboards.grafana import Dashboard, Panel, Query, Row, Shape
from scripts.dashboards.recorded import recorded

_GPUS = f"sum{recorded('node:vcuda_gpus:count')}"
_GRANTED = f"sum{recorded('node:vcuda_gpu_cores_allocated_ratio:sum')}"
_BUSY = f"sum{recorded('node:vcuda_gpu_utilization_ratio:sum')}"
_MEMORY = f"sum{recorded('node:vcuda_gpu_memory_capacity_bytes:sum')}"
_MEMORY_GRANTED = f"sum{recorded('node:vcuda_gpu_memory_allocated_bytes:sum')}"
_MEMORY_USED = f"sum{recorded('node:vcuda_gpu_memory_used_bytes:sum')}"

_NOW = Row(
    "Now",
    4,
    (
        Panel("GPUs", "GPUs of all nodes with an agent.", "none", (Query(_GPUS),), Shape.STAT),
        Panel(
            "GPUs free",
            "What is left on GPUs that take new containers, in whole GPUs.",
            "none",
            (Query(f"sum{recorded('node:vcuda_gpu_cores_free_ratio:sum')}"),),
            Shape.STAT,
        ),
        Panel("GPU time granted", "Share of all GPUs that containers hold.", "percentunit",
              (Query(f"{_GRANTED} / {_GPUS}"),), Shape.STAT),
        Panel("GPU time used", "Share of the time in which the GPUs worked.", "percentunit",
              (Query(f"{_BUSY} / {_GPUS}"),), Shape.STAT),
        Panel("Memory granted", "Share of the GPUs' memory that containers hold.", "percentunit",
              (Query(f"{_MEMORY_GRANTED} / {_MEMORY}"),), Shape.STAT),
        Panel("Memory used", "Share of the GPUs' memory that is in use.", "percentunit",
              (Query(f"{_MEMORY_USED} / {_MEMORY}"),), Shape.STAT),
        Panel(
            "Pods waiting",
            "Pods with GPUs that have no node, as the leader of the schedulers counts them.",
            "none",
            (Query("sum(vcuda_scheduler_pending_pods)"),),
            Shape.STAT,
            warn=1,
        ),
        Panel(
            "GPUs unhealthy",
            "GPUs that get no new containers because of an error.",
            "none",
            (Query("count(vcuda_gpu_info) - sum(vcuda_gpu_healthy)"),),
            Shape.STAT,
            alarm=1,
        ),
    ),
)  # fmt: skip
_USE = Row(
    "Grants and use",
    9,
    (
        Panel(
            "GPU time",
            "In GPUs: 1 is all time of one GPU. Granted and not used is idle capacity.",
            "none",
            (Query(_GPUS, "total"), Query(_GRANTED, "granted"), Query(_BUSY, "used")),
        ),
        Panel(
            "GPU memory",
            "Granted and not used is idle capacity; used by processes of containers and by any other.",
            "bytes",
            (Query(_MEMORY, "total"), Query(_MEMORY_GRANTED, "granted"), Query(_MEMORY_USED, "used")),
        ),
    ),
)
_NAMESPACES = Row(
    "Namespaces",
    9,
    (
        Panel(
            "GPU time granted",
            "In GPUs, by namespace.",
            "none",
            (Query(recorded("namespace:vcuda_container_cores_limit_ratio:sum"), "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "GPU time used",
            "In GPUs, by namespace.",
            "none",
            (Query(recorded("namespace:vcuda_container_cores_used_ratio:sum"), "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "GPU memory granted",
            "By namespace.",
            "bytes",
            (Query(recorded("namespace:vcuda_container_memory_limit_bytes:sum"), "{{namespace}}"),),
            stacked=True,
        ),
    ),
)
_WAITING = Row(
    "Placement",
    9,
    (
        Panel(
            "Pods waiting, by reason",
            "Of several reasons of a pod the one that most nodes gave. `vcuda explain POD` has all of them.",
            "none",
            (Query("sum by (reason) (vcuda_scheduler_pending_pods) > 0", "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Requests to the scheduler",
            "Each second, by verb and outcome.",
            "reqps",
            (
                Query(
                    "sum by (verb, outcome) (rate(vcuda_scheduler_requests_total[$__rate_interval])) > 0",
                    "{{verb}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            "Time to answer",
            "99th percentile, by verb. kube-scheduler and the API server wait for it.",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (verb, le) "
                    "(rate(vcuda_scheduler_request_duration_seconds_bucket[$__rate_interval])))",
                    "{{verb}}",
                ),
            ),
        ),
    ),
)
_HEALTH = Row(
    "Health",
    8,
    (
        Panel(
            "Nodes by room",
            "In GPUs: what is left on GPUs that take new containers.",
            "none",
            (Query(f"sort_desc{recorded('node:vcuda_gpu_cores_free_ratio:sum')}"),),
            Shape.TABLE,
        ),
        Panel(
            "Critical errors of GPUs within a day",
            "XIDs that make a GPU unhealthy, and double-bit errors.",
            "none",
            (Query("increase(vcuda_gpu_xid_errors_total[1d]) > 0"),),
            Shape.TABLE,
        ),
        Panel(
            "Containers refused",
            "In the last 5 minutes: allocations and starts that agents refused, by kind of error.",
            "none",
            (
                Query('sum by (reason) (increase(vcuda_allocations_total{outcome="refused"}[5m])) > 0', "{{reason}}"),
                Query(
                    'sum by (reason) (increase(vcuda_container_starts_total{outcome="refused"}[5m])) > 0',
                    "start: {{reason}}",
                ),
            ),
        ),
    ),
)
DASHBOARD = Dashboard(
    uid="vcuda-cluster",
    title="vcuda / Cluster",
    description="GPUs of the cluster: what is granted and used, who waits and why.",
    variables=(),
    rows=(_NOW, _USE, _NAMESPACES, _WAITING, _HEALTH),
)
