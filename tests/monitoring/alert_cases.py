"""For each alert the series that must make it fire, and series that look alike and must not.

A value in promtool's notation: `0x60` is 0 for an hour, `0+1x60` grows by one each minute. Each case is judged after 50
minutes, with `time()` at 3000.
"""

from dataclasses import dataclass

AT = "50m"
LATER = "7h"


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series with their values; `at`: when it is judged."""

    alert: str
    fires: dict[str, str]
    quiet: dict[str, str]
    at: str = AT


_GPU = 'node="n1",uuid="GPU-1"'
_CONTAINER = f'{_GPU},namespace="ml",pod="p",container="c"'
_OWNER = 'node="n1",namespace="ml",pod="p",container="c"'
_AGENT = 'job="vcuda-agent",instance="i",node="n1"'
_SCHEDULER = 'job="vcuda-scheduler",instance="i",pod="vcuda-scheduler-a"'
_ALLOCATIONS = f"vcuda_allocations_total{{{_AGENT}"
_STARTS = f"vcuda_container_starts_total{{{_AGENT}"
_EXPIRATION = "vcuda_scheduler_certificate_expiration_timestamp_seconds"
_OVERCOMMITTED = "vcuda_scheduler_overcommitted_gpus"
_REQUESTS = f"vcuda_scheduler_requests_total{{{_SCHEDULER}"
_BUCKET = f'vcuda_scheduler_request_duration_seconds_bucket{{{_SCHEDULER},verb="filter"'

CASES = (
    AlertCase(
        "VcudaAgentDown",
        {f"up{{{_AGENT}}}": "1x30 0x30"},
        {f"up{{{_AGENT}}}": "1x47 0x1 1x20", 'up{job="node-exporter"}': "0x60"},
    ),
    AlertCase(
        "VcudaAgentNotRegistered",
        {f"vcuda_kubelet_registered{{{_AGENT}}}": "1x30 0x30"},
        {f"vcuda_kubelet_registered{{{_AGENT}}}": "1x47 0x60"},
    ),
    AlertCase(
        "VcudaAgentWatchStale",
        {f"process_start_time_seconds{{{_AGENT}}}": "0x60"},
        {
            f"vcuda_watch_last_event_timestamp_seconds{{{_AGENT}}}": "0+60x60",
            f"process_start_time_seconds{{{_AGENT}}}": "0x60",
        },
    ),
    AlertCase(
        "VcudaGpuUnhealthy",
        {f"vcuda_gpu_healthy{{{_GPU}}}": "1x30 0x30", 'vcuda_nvml_open{node="n1"}': "1x60"},
        {f"vcuda_gpu_healthy{{{_GPU}}}": "1x30 0x30", 'vcuda_nvml_open{node="n1"}': "1x30 0x30"},
    ),
    AlertCase(
        "VcudaGpuErrors",
        {f"vcuda_gpu_xid_errors_total{{{_GPU}}}": "0x30 1x30"},
        {f"vcuda_gpu_xid_errors_total{{{_GPU}}}": "1x60"},
    ),
    AlertCase(
        "VcudaGpuRepairPending",
        {f"vcuda_gpu_memory_repair_pending{{{_GPU}}}": "1x600"},
        {f"vcuda_gpu_memory_repair_pending{{{_GPU}}}": "0x390 1x200"},
        at=LATER,
    ),
    AlertCase(
        "VcudaSharesNotEnforceable",
        {f"vcuda_shares_enforceable{{{_AGENT}}}": "0x60"},
        {f"vcuda_shares_enforceable{{{_AGENT}}}": "1x60"},
    ),
    AlertCase(
        "VcudaDriverNotKnown",
        {'vcuda_driver_known{node="n1",cuda="99.0"}': "0x60"},
        {'vcuda_driver_known{node="n1",cuda="12.4"}': "1x60"},
    ),
    AlertCase(
        "VcudaContainerOverLimit",
        {f'vcuda_container_over_limit{{{_CONTAINER},breach="memory"}}': "1x60"},
        {f'vcuda_container_over_limit{{{_CONTAINER},breach="memory"}}': "_x47 1x20"},
    ),
    AlertCase(
        "VcudaContainerUseUnknown",
        {f"vcuda_container_use_known{{{_OWNER}}}": "0x60"},
        {f"vcuda_container_use_known{{{_OWNER}}}": "0x45 1x20"},
    ),
    AlertCase(
        "VcudaAllocationsRefused",
        {f'{_ALLOCATIONS},outcome="refused",reason="capacity"}}': "0x45 1x20"},
        {
            f'{_ALLOCATIONS},outcome="refused",reason="capacity"}}': "0x10 1x50",
            f'{_ALLOCATIONS},outcome="allocated",reason=""}}': "0+1x60",
        },
    ),
    AlertCase(
        "VcudaContainerStartsRefused",
        {f'{_STARTS},outcome="refused",reason="ownership"}}': "0+1x60"},
        {
            f'{_STARTS},outcome="refused",reason="ownership"}}': "0x45 1x20",
            f'{_STARTS},outcome="started",reason=""}}': "0+1x60",
        },
    ),
    AlertCase(
        "VcudaLedgerRepaired",
        {f"vcuda_ledger_repairs_total{{{_AGENT}}}": "0x30 1x30"},
        {f"vcuda_ledger_repairs_total{{{_AGENT}}}": "3x60"},
    ),
    AlertCase(
        "VcudaShareIdle",
        {
            f"vcuda_container_cores_limit_ratio{{{_CONTAINER}}}": "0.5x500",
            f"vcuda_container_gpu_seconds_total{{{_CONTAINER}}}": "7x500",
        },
        {
            f"vcuda_container_cores_limit_ratio{{{_CONTAINER}}}": "0.01x500",
            f"vcuda_container_gpu_seconds_total{{{_CONTAINER}}}": "0+0.6x500",
            f"vcuda_container_cores_used_ratio{{{_CONTAINER}}}": "0x500",
            'vcuda_container_cores_limit_ratio{namespace="ml",pod="unmeasured"}': "0.5x500",
            'vcuda_container_cores_limit_ratio{namespace="ml",pod="whole"}': "8x500",
            'vcuda_container_cores_used_ratio{namespace="ml",pod="whole"}': "0x300 4x200",
        },
        at=LATER,
    ),
    AlertCase(
        "VcudaSchedulerAbsent",
        {f"up{{{_SCHEDULER}}}": "0x60"},
        {f'vcuda_scheduler_build_info{{{_SCHEDULER},version="1"}}': "1x60"},
    ),
    AlertCase(
        "VcudaSchedulerNotReady",
        {f"vcuda_scheduler_ready{{{_SCHEDULER}}}": "0x60"},
        {f"vcuda_scheduler_ready{{{_SCHEDULER}}}": "0x46 1x20"},
    ),
    AlertCase(
        "VcudaSchedulerLeaders",
        {'vcuda_scheduler_leader{instance="a"}': "0x60", 'vcuda_scheduler_leader{instance="b"}': "0x60"},
        {'vcuda_scheduler_leader{instance="a"}': "1x60", 'vcuda_scheduler_leader{instance="b"}': "0x60"},
    ),
    AlertCase(
        "VcudaSchedulerWatchStale",
        {f'vcuda_scheduler_watch_last_event_timestamp_seconds{{{_SCHEDULER},kind="pods"}}': "600x60"},
        {f'vcuda_scheduler_watch_last_event_timestamp_seconds{{{_SCHEDULER},kind="pods"}}': "0+60x60"},
    ),
    AlertCase(
        "VcudaSchedulerSlow",
        {f'{_BUCKET},le="1.0"}}': "0x60", f'{_BUCKET},le="5.0"}}': "0+10x60", f'{_BUCKET},le="+Inf"}}': "0+10x60"},
        {f'{_BUCKET},le="1.0"}}': "0+10x60", f'{_BUCKET},le="5.0"}}': "0+10x60", f'{_BUCKET},le="+Inf"}}': "0+10x60"},
    ),
    AlertCase(
        "VcudaWebhookFailing",
        {f'{_REQUESTS},verb="webhook",outcome="failed"}}': "0+1x60"},
        {
            f'{_REQUESTS},verb="webhook",outcome="failed"}}': "0x60",
            f'{_REQUESTS},verb="webhook",outcome="denied"}}': "0+1x60",
            f'{_REQUESTS},verb="filter",outcome="unavailable"}}': "0+1x60",
        },
    ),
    AlertCase(
        "VcudaCertificateExpires",
        {f'{_EXPIRATION}{{{_SCHEDULER},certificate="server"}}': "600000x500"},
        {f'{_EXPIRATION}{{{_SCHEDULER},certificate="server"}}': "6000000x500"},
        at=LATER,
    ),
    AlertCase(
        "VcudaCaExpires",
        {f'{_EXPIRATION}{{{_SCHEDULER},certificate="ca"}}': "6000000x500"},
        {f'{_EXPIRATION}{{{_SCHEDULER},certificate="ca"}}': "8000000x500"},
        at=LATER,
    ),
    AlertCase(
        "VcudaBindsRefused",
        {f'{_REQUESTS},verb="bind",outcome="refused"}}': "0+1x60"},
        {
            f'{_REQUESTS},verb="bind",outcome="refused"}}': "0x45 2x20",
            f'{_REQUESTS},verb="bind",outcome="bound"}}': "0+9x60",
        },
    ),
    AlertCase(
        "VcudaGpusOvercommitted",
        {f'{_OVERCOMMITTED}{{instance="a"}}': "0x60", f'{_OVERCOMMITTED}{{instance="b"}}': "1x60"},
        {f'{_OVERCOMMITTED}{{instance="a"}}': "0x60"},
    ),
    AlertCase(
        "VcudaNodesWithoutAgent",
        {f"vcuda_scheduler_nodes_without_agent{{{_SCHEDULER}}}": "2x60"},
        {f"vcuda_scheduler_nodes_without_agent{{{_SCHEDULER}}}": "2x44 0x20"},
    ),
    AlertCase(
        "VcudaPodsPending",
        {f'vcuda_scheduler_pending_pods{{{_SCHEDULER},reason="insufficient whole GPUs"}}': "0x5 1x60"},
        {
            f'vcuda_scheduler_pending_pods{{{_SCHEDULER},reason="insufficient whole GPUs"}}': "1x30 0x30",
            f'vcuda_scheduler_pending_pods{{{_SCHEDULER},reason="it has scheduling gates"}}': "1x60",
        },
    ),
    AlertCase(
        "VcudaVersionsDiffer",
        {'vcuda_build_info{version="1"}': "1x500", 'vcuda_scheduler_build_info{version="2"}': "1x500"},
        {'vcuda_build_info{version="1"}': "1x500", 'vcuda_scheduler_build_info{version="1"}': "1x500"},
        at=LATER,
    ),
)
