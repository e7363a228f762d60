"""Namespaces: what their pods hold of GPUs and use of it. Workloads are of kube-state-metrics, where it runs."""

from scripts.dashboards.grafana import Dashboard, Panel, Query, Row, Shape, Variable

_OF = '{namespace=~"$namespace",pod=~"$pod"}'
_POD = "{{namespace}}/{{pod}}"


def _by_pod(metric: str) -> str:
    return f"sum by (namespace, pod) ({metric}{_OF})"


def _rate_by_pod(metric: str) -> str:
    return f"sum by (namespace, pod) (rate({metric}{_OF}[$__rate_interval]))"


_LIMIT, _USED = _by_pod("vcuda_container_memory_limit_bytes"), _by_pod("vcuda_container_memory_used_bytes")
_OWNERS = (
    "sum by (namespace, owner_kind, owner_name) "
    f"({_by_pod('vcuda_container_cores_limit_ratio')} * on (namespace, pod) group_left (owner_kind, owner_name) "
    "max by (namespace, pod, owner_kind, owner_name) (kube_pod_owner))"
)
_NOW = Row(
    "Now",
    4,
    (
        Panel(
            "Pods",
            "Pods that hold GPUs.",
            "none",
            (Query(f"count(count by (namespace, pod) (vcuda_container_memory_limit_bytes{_OF}))"),),
            Shape.STAT,
        ),
        Panel(
            "GPUs granted",
            "In GPUs: 1 is all time of one GPU.",
            "none",
            (Query(f"sum(vcuda_container_cores_limit_ratio{_OF})"),),
            Shape.STAT,
        ),
        Panel(
            "GPUs used",
            "In GPUs, over the last sample period.",
            "none",
            (Query(f"sum(vcuda_container_cores_used_ratio{_OF})"),),
            Shape.STAT,
        ),
        Panel(
            "Memory granted",
            "Of GPUs.",
            "bytes",
            (Query(f"sum(vcuda_container_memory_limit_bytes{_OF})"),),
            Shape.STAT,
        ),
        Panel(
            "Memory used",
            "Of GPUs; what is not known is not counted.",
            "bytes",
            (Query(f"sum(vcuda_container_memory_used_bytes{_OF})"),),
            Shape.STAT,
        ),
        Panel(
            "Allocations refused within an hour",
            "Calls that failed at the memory limit: the program wanted more than it holds.",
            "none",
            (Query(f"sum(increase(vcuda_container_memory_refusals_total{_OF}[1h]))"),),
            Shape.STAT,
            warn=1,
        ),
    ),
)
_TIME = Row(
    "GPU time",
    9,
    (
        Panel(
            "Granted",
            "In GPUs, by pod.",
            "none",
            (Query(_by_pod("vcuda_container_cores_limit_ratio"), _POD),),
            stacked=True,
        ),
        Panel(
            "Used",
            "In GPUs, by pod.",
            "none",
            (Query(_by_pod("vcuda_container_cores_used_ratio"), _POD),),
            stacked=True,
        ),
        Panel(
            "Held back at the limit",
            "Seconds in each second, summed over threads. A pod that waits here would be faster with more cores.",
            "s",
            (Query(_rate_by_pod("vcuda_container_throttled_seconds_total"), _POD),),
        ),
    ),
)
_MEMORY = Row(
    "GPU memory",
    9,
    (
        Panel("Granted", "By pod.", "bytes", (Query(_LIMIT, _POD),), stacked=True),
        Panel("Used", "By pod; what is not known is not shown.", "bytes", (Query(_USED, _POD),), stacked=True),
        Panel("Granted and not used", "By pod.", "bytes", (Query(f"{_LIMIT} - {_USED}", _POD),)),
    ),
)
_MORE = Row(
    "Limits and workloads",
    8,
    (
        Panel(
            "Containers over their limit",
            "The kind is in `breach`; the event GPUOverLimit on the pod says more.",
            "none",
            (Query(f"vcuda_container_over_limit{_OF}"),),
            Shape.TABLE,
            alarm=1,
        ),
        Panel(
            "GPUs by workload (of kube-state-metrics, where it runs)",
            "In GPUs: what the pods of each ReplicaSet, Job and so on hold.",
            "none",
            (Query(_OWNERS, "{{namespace}}/{{owner_kind}} {{owner_name}}"),),
            stacked=True,
        ),
    ),
)
DASHBOARD = Dashboard(
    uid="vcuda-namespace",
    title="vcuda / Namespace",
    description="What the pods of namespaces hold of GPUs, and what they use of it.",
    variables=(
        Variable("namespace", "Namespace", "label_values(vcuda_container_memory_limit_bytes, namespace)"),
        Variable("pod", "Pod", 'label_values(vcuda_container_memory_limit_bytes{namespace=~"$namespace"}, pod)'),
    ),
    rows=(_NOW, _TIME, _MEMORY, _MORE),
)
