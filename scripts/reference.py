"""Makes the reference pages from the code: settings, metrics and log events, the driver's functions, values.

In: `AGENT`, `SCHEDULER`, the two `FAMILIES`, `log_events`, `driver_functions` and `chart_values`. Out: `PAGES`, or with
--check an exit status that says whether what is committed is the same. Run as scripts/docs.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deviceplugin.cluster.http.metrics import FAMILIES as SCHEDULER_FAMILIES
from deviceplugin.config.agent import AGENT
from deviceplugin.config.command import API_VERSION, Program, Setting
from deviceplugin.config.scheduler import SCHEDULER
from deviceplugin.observe.metrics import FAMILIES
from scripts import chart_values, driver_functions, log_events

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "<!-- made by scripts/docs; edit the code instead -->"


def agent_flags() -> str:
    by_reason: dict[str, list[str]] = {}
    for flag, why in AGENT.retired.items():
        by_reason.setdefault(why, []).append(f"`--{flag}`")
    retired = "\n".join(f"- {', '.join(flags)}: {why}" for why, flags in by_reason.items())
    return f"""{_flags(AGENT, AGENT_EXAMPLE, printed_by="vcuda config print")}
Durations are written as in Go (`500ms`, `5s`, `1m30s`) or as seconds (`30`). Booleans are written as with Go's flags:
`--share-mode`, `--share-mode=true` or `--share-mode=false`.

{_sections(AGENT)}
## Accepted without effect

For start scripts of gpu-manager, Tencent's earlier device plugin. The agent logs at start that they have no effect.
As there, `_` in a flag is `-` (`--share_mode`), and `-v` is `--v`.

{retired}
"""


def scheduler_flags() -> str:
    return f"""{_flags(SCHEDULER, SCHEDULER_EXAMPLE, printed_by="vcuda config print-scheduler")}
Durations are written as in Go (`500ms`, `5s`, `1m30s`) or as seconds (`30`). Booleans are written as with Go's flags:
`--hide-gpus`, `--hide-gpus=true` or `--hide-gpus=false`.

{_sections(SCHEDULER)}"""


AGENT_EXAMPLE = ("query-port", "  shareMode: true\n  queryAddr: 0.0.0.0\n  nodeLabels:\n    team: vision")
SCHEDULER_EXAMPLE = ("node-policy", "  nodePolicy: fragmentation\n  gpuPolicy: link\n  leaderElection: kube-scheduler")


def _flags(program: Program[Any], example: tuple[str, str], *, printed_by: str) -> str:
    flag, spec = example
    setting = next(each for each in program.settings if each.flag == flag)
    variable, *_ = setting.variables(program.env_prefix)
    return f"""# Settings of `vcuda {program.command}`

{GENERATED}

Every setting has one name. `--{setting.flag}` on the command line is `{variable}` in the environment and
`{setting.key}` under `spec` in the file that `--config` (or `{program.env_prefix}_CONFIG`) names. The flag wins over
the variable, the variable over the file, the file over the default. An empty variable counts as unset.

```yaml
apiVersion: {API_VERSION}
kind: {program.kind}
spec:
{spec}
```

A key that is not in the tables below, or a value that cannot be used, ends the program at start. A sentence names the
flag, the variable, or the file and the key. `{printed_by}` takes the same flags and prints the
effective settings and the origin of each value; its output is itself such a file. The program logs at start what
differs from the defaults.
"""


def _sections(program: Program[Any]) -> str:
    tables = []
    for section in program.sections:
        rows = [_row(setting) for setting in section.settings if not setting.hidden]
        tables.append(f"## {section.title}\n\n{_table(('flag', 'takes', 'default', 'meaning'), rows)}")
    return "\n".join(tables)


def _row(setting: Setting) -> tuple[str, ...]:
    default = setting.derived or (f"`{setting.default_text}`" if setting.default_text else "")
    also = "".join(f" Also set by `{name}`." for name in setting.more_env)
    return (f"`--{setting.flag}`", setting.value_type.what, default, setting.doc + also)


def metrics() -> str:
    rows = [
        (f"`{each.name}`", each.type, ", ".join(f"`{label}`" for label in each.labels), each.help) for each in FAMILIES
    ]
    return f"""# Metrics of `vcuda agent`

{GENERATED}

Served on `--query-addr`:`--query-port` at `/metrics`, in Prometheus' text format or,
when asked for, OpenMetrics; gpu-manager's `/metric` has [its metrics](http-api.md#for-clients-of-gpu-manager) too.
Bytes, seconds and ratios from 0 to 1. `uuid` is the UUID of the GPU, the label `UUID` of
dcgm-exporter ([how to join](../how-to/monitoring.md#joins)). No metric mixes totals with
parts, so sums are right. What is not known has no series: no value is 0 for want of a better one. Scrape with
`honor_labels`, as the chart's PodMonitor does: metrics of containers name the container's own pod.

{_table(("name", "type", "labels", "meaning"), rows)}
Besides these, `process_*` describes the agent's own process: memory, CPU time, open files.

## Useful queries

- Room left, in GPUs: `sum(vcuda_gpu_available * (1 - vcuda_gpu_cores_allocated_ratio))`
- Pods that were refused, by kind of error: `sum by (reason) (rate(vcuda_allocations_total{{outcome="refused"}}[5m]))`
- An agent that kubelet does not know: `vcuda_kubelet_registered == 0`
- A node whose agent keeps NVML closed: `vcuda_nvml_open == 0`
- Errors that made a GPU unhealthy within a day: `increase(vcuda_gpu_xid_errors_total[1d]) > 0`; the numbers are
  in `vcuda_gpu_xids_total`
- A watch that fell silent: `time() - vcuda_watch_last_event_timestamp_seconds > 300`
- A node on which no share starts: `vcuda_shares_enforceable == 0`
- A driver newer than vcuda's library: `vcuda_driver_known == 0`; containers whose programs use what it brings:
  `vcuda_container_unknown_functions_total > 0`
- A driver with libraries missing, by name: `vcuda_driver_mirror_missing`
- Containers that take more than is allocated to them: `vcuda_container_over_limit`; those of which this is not known:
  `vcuda_container_use_known == 0`
- Containers that are throttled at their own limit: `rate(vcuda_container_throttled_seconds_total[5m]) > 0.1`
- Memory allocated but not used: `vcuda_gpu_memory_allocated_bytes - vcuda_gpu_memory_used_bytes`
"""


def scheduler_metrics() -> str:
    rows = [
        (f"`{each.name}`", each.type, ", ".join(f"`{label}`" for label in each.labels), each.help)
        for each in SCHEDULER_FAMILIES
    ]
    return f"""# Metrics of `vcuda scheduler`

{GENERATED}

Served over TLS on `--listen-addr`:`--listen-port` at `/metrics`, in Prometheus' text format or, when asked for,
OpenMetrics. Every replica has its own; what kube-scheduler asks is counted where it is answered, by the leader.

{_table(("name", "type", "labels", "meaning"), rows)}
Besides these, `process_*` describes the process: memory, CPU time, open files.

`reason` of pending pods and of rejected nodes is one of a fixed set of texts. A pod that nodes refused for several
reasons counts to the one of most nodes, of those that may go away when other pods end if there are any.

## Useful queries

- Why pods are Pending: `sum by (reason) (vcuda_scheduler_pending_pods) > 0`; of one pod: `kubectl vcuda explain POD`
- Filter too slow, as its 99th percentile:
  `histogram_quantile(0.99, rate(vcuda_scheduler_request_duration_seconds_bucket{{verb="filter"}}[5m])) > 0.01`
- Binds that failed: `rate(vcuda_scheduler_requests_total{{verb="bind",outcome!="bound"}}[5m])`
- Pods that were denied: `rate(vcuda_scheduler_requests_total{{verb="webhook",outcome="denied"}}[5m])`
- A certificate that is not renewed: `vcuda_scheduler_certificate_expiration_timestamp_seconds - time() < 14 * 86400`
- A watch that fell silent: `time() - vcuda_scheduler_watch_last_event_timestamp_seconds > 300`
- No replica or two that answer kube-scheduler: `sum(vcuda_scheduler_leader) != 1`
"""


def functions() -> str:
    return driver_functions.page(GENERATED)


def logged() -> str:
    return log_events.page(GENERATED)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


PAGES = {
    "docs/reference/agent-flags.md": agent_flags,
    "docs/reference/scheduler-flags.md": scheduler_flags,
    "docs/reference/metrics.md": metrics,
    "docs/reference/scheduler-metrics.md": scheduler_metrics,
    "docs/reference/log-events.md": logged,
    "docs/reference/driver-functions.md": functions,
    "daemonset/chart/values.schema.json": chart_values.schema,
    "daemonset/chart/README.md": chart_values.readme,
}


def main(*, check: bool) -> int:
    """Writes the pages, or compares them; the status is that of the process."""
    stale = [name for name, page in PAGES.items() if not _is_current(ROOT / name, page())]
    for name in stale:
        if check:
            print(f"docs: {name} is stale; run scripts/docs", file=sys.stderr)
        else:
            (ROOT / name).write_text(PAGES[name](), encoding="utf-8")
    return 1 if check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main(check="--check" in sys.argv[1:]))
