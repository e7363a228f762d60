"""Nodes: each GPU, the containers on it, and the agent. Temperature and power are of dcgm-exporter, where it runs."""

from scripts.dashboards.grafana import Dashboard, Panel, Query, Row, Shape, Variable

_ON = '{node=~"$node"}'
_NAMED = f"* on (node, uuid) group_left (index) vcuda_gpu_info{_ON}"
_GPU = "{{node}} GPU {{index}}"
_CONTAINER = "{{namespace}}/{{pod}}/{{container}}"


def _of_dcgm(metric: str) -> str:
    """dcgm-exporter calls the UUID of a GPU `UUID`, and its index `gpu`."""
    return (
        f'label_replace({metric}, "uuid", "$1", "UUID", "(.+)") '
        f"* on (uuid) group_left (node, index) vcuda_gpu_info{_ON}"
    )


_NOW = Row(
    "Now",
    4,
    (
        Panel("GPUs", "GPUs of the chosen nodes.", "none", (Query(f"count(vcuda_gpu_info{_ON})"),), Shape.STAT),
        Panel(
            "GPUs unhealthy",
            "They get no new containers.",
            "none",
            (Query(f"count(vcuda_gpu_info{_ON}) - sum(vcuda_gpu_healthy{_ON})"),),
            Shape.STAT,
            alarm=1,
        ),
        Panel(
            "GPU time granted",
            "Share of the GPUs that containers hold.",
            "percentunit",
            (Query(f"avg(vcuda_gpu_cores_allocated_ratio{_ON})"),),
            Shape.STAT,
        ),
        Panel(
            "GPU time used",
            "Share of the time in which the GPUs worked.",
            "percentunit",
            (Query(f"avg(vcuda_gpu_utilization_ratio{_ON})"),),
            Shape.STAT,
        ),
        Panel(
            "Memory granted",
            "Share of the GPUs' memory that containers hold.",
            "percentunit",
            (Query(f"sum(vcuda_gpu_memory_allocated_bytes{_ON}) / sum(vcuda_gpu_memory_capacity_bytes{_ON})"),),
            Shape.STAT,
        ),
        Panel(
            "Containers",
            "Containers that hold GPUs of these nodes.",
            "none",
            (Query(f"count(count by (namespace, pod, container) (vcuda_container_memory_limit_bytes{_ON}))"),),
            Shape.STAT,
        ),
    ),
)
_GPUS = Row(
    "GPUs",
    9,
    (
        Panel(
            "GPU time granted",
            "Share of each GPU that containers hold.",
            "percentunit",
            (Query(f"vcuda_gpu_cores_allocated_ratio{_ON} {_NAMED}", _GPU),),
            most=1,
        ),
        Panel(
            "GPU time used",
            "Share of the time in which each GPU worked.",
            "percentunit",
            (Query(f"vcuda_gpu_utilization_ratio{_ON} {_NAMED}", _GPU),),
            most=1,
        ),
        Panel(
            "GPU memory used",
            "By any process, as the driver counts it.",
            "bytes",
            (Query(f"vcuda_gpu_memory_used_bytes{_ON} {_NAMED}", _GPU),),
        ),
    ),
)
_CONTAINERS = Row(
    "Containers",
    9,
    (
        Panel(
            "GPU time used",
            "In GPUs, over the last sample period.",
            "percentunit",
            (Query(f"vcuda_container_cores_used_ratio{_ON}", _CONTAINER),),
        ),
        Panel(
            "GPU memory used",
            "The driver's overhead included. What is not known is not shown.",
            "bytes",
            (Query(f"vcuda_container_memory_used_bytes{_ON}", _CONTAINER),),
        ),
        Panel(
            "Held back at the limit",
            "Seconds in each second, summed over threads.",
            "s",
            (Query(f"rate(vcuda_container_throttled_seconds_total{_ON}[$__rate_interval])", _CONTAINER),),
        ),
    ),
)
_LIMITS = Row(
    "Limits and errors",
    8,
    (
        Panel(
            "Containers over their limit",
            "The kind is in `breach`; the event GPUOverLimit on the pod says more.",
            "none",
            (Query(f"vcuda_container_over_limit{_ON}"),),
            Shape.TABLE,
            alarm=1,
        ),
        Panel(
            "Critical errors of GPUs",
            "XIDs that make a GPU unhealthy, and double-bit errors, within 5 minutes.",
            "none",
            (Query(f"increase(vcuda_gpu_xid_errors_total{_ON}[5m])", "{{node}} {{uuid}}"),),
        ),
        Panel(
            "Drivers",
            "GPUs with their driver, and the CUDA that it has.",
            "none",
            (Query(f"count by (node, product, driver, cuda) (vcuda_gpu_info{_ON})"),),
            Shape.TABLE,
        ),
    ),
)
_SENSORS = Row(
    "Sensors (of dcgm-exporter, where it runs)",
    8,
    (
        Panel("Temperature", "Of each GPU.", "celsius", (Query(_of_dcgm("DCGM_FI_DEV_GPU_TEMP"), _GPU),)),
        Panel("Power", "Of each GPU.", "watt", (Query(_of_dcgm("DCGM_FI_DEV_POWER_USAGE"), _GPU),)),
    ),
)
DASHBOARD = Dashboard(
    uid="vcuda-node",
    title="vcuda / Node",
    description="GPUs of nodes, the containers on them, and their agents.",
    variables=(Variable("node", "Node", "label_values(vcuda_gpu_info, node)"),),
    rows=(_NOW, _GPUS, _CONTAINERS, _LIMITS, _SENSORS),
)
