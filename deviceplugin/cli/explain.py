"""`vcuda explain POD`: why a pod is pending, node by node and GPU by GPU, and what would have to change.

In: a pod's name, and where the scheduler is: its URL, or a kubeconfig to call it through the API server's proxy. Out:
text or JSON; one sentence and status 1 where the scheduler does not know the pod.
"""

import datetime as dt
from collections.abc import Iterator
from urllib.parse import quote

import click
import msgspec

from deviceplugin.cli.command import OperatorCommand, output_option, pod_name
from deviceplugin.cli.completion import complete_pod
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.scheduler_client import SchedulerClient, asked
from deviceplugin.cli.table import say, show_document
from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.pods import PODS
from deviceplugin.kube.structs import PodObject, PodSpec, PodStatus, Resources
from deviceplugin.model.cluster_view import Explanation, NodeVerdict

_MOST_GPUS = 16
_EXAMPLES = (
    ("Why a pod of the context's namespace waits, or why it is where it is.", "explain llm"),
    ("A pod of another namespace.", "explain research/llm"),
    ("With the namespace as kubectl has it.", "explain pod/llm -n research"),
)


@click.command("explain", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("pod", shell_complete=complete_pod)
@output_option("table", "json", "yaml")
@connected
def explain(pod: str, output: str, connection: Connection) -> None:
    """Explain why a pod is on its node, or why it is pending.

    POD is a name, pod/NAME, or NAMESPACE/NAME. Prints the last decision about the pod for each node and GPU, and what
    would have to change for it to fit. If kube-scheduler has not called the extender for the pod, the decision is made
    now.
    """
    found = asked(connection, lambda client: _explained(client, pod))
    if output == "table":
        say(*_as_lines(found))
    else:
        show_document(msgspec.to_builtins(found), output)


async def _explained(client: SchedulerClient, pod: str) -> Explanation:
    namespace, name = pod_name(pod, client.namespace)
    where = f"{quote(namespace, safe='')}/{quote(name, safe='')}"
    answer = await client.get(f"/explain?pod={where}")
    if answer.status == 404 and (sentence := await _why_unknown(client, namespace, name)):
        raise KubeError(sentence, code=404)
    return answer.read(Explanation)


async def _why_unknown(client: SchedulerClient, namespace: str, name: str) -> str:
    """Why the scheduler does not know a pod, by what the caller may read of it; empty if that does not tell."""
    if client.api is None:
        return ""
    pod = ObjectRef(namespace, name)
    try:
        return why_unknown(str(pod), await client.api.get(PODS, pod))
    except KubeNotFoundError:
        return f"pod {pod} does not exist; a suspended Job, or one without quota, has no pods"
    except VcudaError:
        return ""


def why_unknown(pod: str, item: PodObject) -> str:
    spec, phase = item.spec or PodSpec(), (item.status or PodStatus()).phase
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    requested = {name for each in containers for name in ((each.resources or Resources()).limits or {})}
    if phase in ("Succeeded", "Failed"):
        return f"pod {pod} has finished ({phase}) and holds nothing"
    if spec.resource_claims or any(resource.endswith("/vcuda-gpu") for resource in requested):
        return f"pod {pod} asks by ResourceClaims, which the scheduler watches with the chart's agent.dra.enabled only"
    if not any("/vcuda-" in resource for resource in requested):
        return f"pod {pod} requests no vcuda resources: no container has limits of vcuda-core or vcuda-memory"
    return ""


def _as_lines(found: Explanation) -> list[str]:
    lines = [f"{found.pod}: {found.sentence}", *(f"  {line}" for line in (*found.asked, *found.why))]
    if found.at:
        lines.append(
            f"  kube-scheduler last asked at {dt.datetime.fromtimestamp(found.at, dt.UTC):%Y-%m-%d %H:%M:%S UTC}"
        )
    if found.condition:
        lines.append(f"  the pod's condition PodScheduled says: {found.condition}")
    if found.reasons:
        lines.append("")
        lines += (f"{count:>6} node{'s' * (count != 1)}: {reason}" for reason, count in found.reasons.items())
    for node in found.nodes:
        lines += ["", *_node_lines(node)]
    if found.left_out and found.nodes:
        lines += ["", f"{found.left_out} further nodes are not shown"]
    return lines


def _node_lines(node: NodeVerdict) -> Iterator[str]:
    yield f"node {node.node}: {node.reason}"
    if node.change:
        yield f"  to change: {node.change}"
    for gpu in node.gpus[:_MOST_GPUS]:
        yield f"  GPU {gpu.minor} ({gpu.model}): {gpu.against or 'fits'}"
        yield from (f"    {holder}" for holder in gpu.holders)
