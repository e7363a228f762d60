"""`vcuda explain POD`: why a pod is pending, node by node and GPU by GPU, and what would have to change.

In: a pod's name, and where the scheduler is: its URL, or a kubeconfig to call it through the API server's proxy. Out:
text or JSON; one sentence and status 1 where the scheduler does not know the pod.
"""

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import Any

import click

from deviceplugin import log
from deviceplugin.cli.scheduler_client import explain_by_proxy, explain_by_url
from deviceplugin.errors import ConfigError, VcudaError

_MOST_GPUS = 16


@click.command("explain")
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's namespace.")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    envvar="KUBECONFIG",
    help="Kubeconfig file for the API server; default: ~/.kube/config, in a pod its service account.",
)
@click.option("--url", help="URL of the scheduler, such as https://10.0.0.7:8443; then the API server is not used.")
@click.option("--ca-file", type=click.Path(dir_okay=False), help="With --url: PEM file with the CA of its certificate.")
@click.option("--insecure", is_flag=True, help="With --url: do not verify its certificate.")
@click.option(
    "--scheduler-namespace", default="kube-system", show_default=True, help="Namespace of the scheduler's service."
)
@click.option("--service", default="vcuda-scheduler", show_default=True, help="The scheduler's service.")
@click.option("--port", type=int, default=8443, show_default=True, help="HTTPS port of the scheduler's pods.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def explain(
    pod: str,
    namespace: str,
    kubeconfig: str | None,
    url: str | None,
    ca_file: str | None,
    insecure: bool,
    scheduler_namespace: str,
    service: str,
    port: int,
    output: str,
) -> None:
    """Explain why a pod is on its node, or why it is pending.

    POD is a name, or NAMESPACE/NAME. Prints the last decision about the pod for each node and GPU, and what would have
    to change for it to fit. If kube-scheduler has not called the extender for the pod, the decision is made now.
    """
    log.open_log(level="error", format_="console")  # warnings about credentials are not part of the answer
    if "/" in pod:
        namespace, _, pod = pod.partition("/")
    if url:
        asking = explain_by_url(url, namespace, pod, ca_file=ca_file, insecure=insecure)
    elif ca_file or insecure:
        raise ConfigError("--ca-file and --insecure go with --url; for the API server the kubeconfig names the CA")
    else:
        path = Path(kubeconfig.split(":")[0]) if kubeconfig else _default_kubeconfig()
        asking = explain_by_proxy(
            path, namespace, pod, scheduler_namespace=scheduler_namespace, service=service, port=port
        )
    found = asyncio.run(asking)
    click.echo(json.dumps(found, indent=2) if output == "json" else _as_text(found))


def _default_kubeconfig() -> Path | None:
    path = Path.home() / ".kube" / "config"
    return path if path.exists() else None


def _as_text(found: dict[str, Any]) -> str:
    try:
        lines = [f"{found['pod']}: {found['sentence']}", *(f"  {asked}" for asked in found["asked"])]
        if found["at"]:
            lines.append(f"  kube-scheduler last asked at {_clock(found['at'])}")
        if found.get("condition"):
            lines.append(f"  the pod's condition PodScheduled says: {found['condition']}")
        if found["reasons"]:
            lines.append("")
            lines += (f"{count:>6} node{'s' * (count != 1)}: {reason}" for reason, count in found["reasons"].items())
        for node in found["nodes"]:
            lines += ["", *_node_lines(node)]
        if found["left_out"] and found["nodes"]:
            lines += ["", f"{found['left_out']} further nodes are not shown"]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, OSError):
        raise VcudaError("the scheduler's answer is of another version of vcuda; use its own `vcuda explain`") from None
    return "\n".join(lines)


def _clock(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _node_lines(node: dict[str, Any]) -> list[str]:
    lines = [f"node {node['node']}: {node['reason']}"]
    if node["change"]:
        lines.append(f"  to change: {node['change']}")
    for gpu in node["gpus"][:_MOST_GPUS]:
        lines.append(f"  GPU {gpu['minor']} ({gpu['model']}): {gpu['against'] or 'would do'}")
        lines += [f"    {holder}" for holder in gpu["holders"]]
    return lines
