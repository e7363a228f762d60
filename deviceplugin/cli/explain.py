"""`vcuda explain POD`: why a pod is Pending, the main reason first, and what would have to change.

In: a pod's name, and where the scheduler is: its URL, or a kubeconfig to call it through the API server's proxy. Out:
text of at most 40 lines, all of it with --all, or JSON; one sentence and status 1 where the scheduler does not know the
pod.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import click
import msgspec

from deviceplugin.cli.command import OperatorCommand, output_option, pod_name
from deviceplugin.cli.completion import complete_pod
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.scheduler_client import SchedulerClient, asked, scheduler_refusal
from deviceplugin.cli.terminal import say, show_document
from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.pods import PODS
from deviceplugin.kube.structs import PodObject, PodSpec, PodStatus, Resources
from deviceplugin.model.cluster_view import Explanation, GpuVerdict, NodeVerdict
from deviceplugin.placement.describe import gpus_text

_OTHER_NAMESPACE = "if it is in another namespace, give -n"
_NEAREST = 3
_MOST_ASKED = 4
_MOST_OF_BOUND = 24
_MOST_REASONS = 4
_MOST_GPUS = 16
_MOST_GPU_LINES, _MOST_OTHERS = 3, 2
_MOST_HOLDERS = 3
_EXAMPLES = (
    ("Why a pod of the context's namespace is Pending, or why it is where it is.", "explain llm"),
    ("A pod of another namespace.", "explain research/llm"),
    ("Every GPU of the nodes, with the pods on it.", "explain research/llm --all"),
    ("With the namespace as kubectl has it.", "explain pod/llm -n research"),
)


@click.command("explain", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("pod", shell_complete=complete_pod)
@click.option("--all", "full", is_flag=True, help="Show up to 20 nodes, each GPU, and every pod on it.")
@output_option("table", "json", "yaml")
@connected
def explain(pod: str, full: bool, output: str, connection: Connection) -> None:
    """Explain why a pod is on its node, or why it is Pending.

    POD is a name, pod/NAME, or NAMESPACE/NAME. Prints the main reason, the reasons of all nodes, and what would have to
    change on the three nodes that are nearest to fitting. Cores are 1/100 of a GPU's time. If kube-scheduler has not
    called the extender for the pod, the decision is made now.
    """
    found = asked(connection, lambda client: _explained(client, pod))
    if output == "table":
        say(*_as_lines(found, full=full))
    else:
        show_document(msgspec.to_builtins(found), output)


async def _explained(client: SchedulerClient, pod: str) -> Explanation:
    namespace, name = pod_name(pod, client.namespace, given=client.connection.namespace)
    where = f"{quote(namespace, safe='')}/{quote(name, safe='')}"
    answer = await client.get(f"/explain?pod={where}")
    if answer.status == 404:
        sentence = await _why_unknown(client, namespace, name)
        raise KubeError(sentence or f"{scheduler_refusal(404, answer.body).message}; {_OTHER_NAMESPACE}", code=404)
    return answer.read(Explanation)


async def _why_unknown(client: SchedulerClient, namespace: str, name: str) -> str:
    """Why the scheduler does not know a pod, by what the caller may read of it; empty if that does not tell."""
    if client.api is None:
        return ""
    pod = ObjectRef(namespace, name)
    try:
        return why_unknown(str(pod), await client.api.get(PODS, pod))
    except KubeNotFoundError:
        return f"pod {pod} does not exist; {_OTHER_NAMESPACE} (a suspended Job, or one without quota, has no pods)"
    except VcudaError:
        return ""


def why_unknown(pod: str, item: PodObject) -> str:
    spec, phase = item.spec or PodSpec(), (item.status or PodStatus()).phase
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    requested = {name for each in containers for name in ((each.resources or Resources()).limits or {})}
    if phase in ("Succeeded", "Failed"):
        return f"pod {pod} has finished ({phase}) and has no GPU any more"
    if spec.resource_claims or any(resource.endswith("/vcuda-gpu") for resource in requested):
        return f"pod {pod} asks by ResourceClaims, which the scheduler watches with the chart's agent.dra.enabled only"
    if not any("/vcuda-" in resource for resource in requested):
        return f"pod {pod} requests no vcuda resources: no container has limits of vcuda-core or vcuda-memory"
    return ""


def _as_lines(found: Explanation, *, full: bool) -> list[str]:
    most = _MOST_ASKED if found.nodes else _MOST_OF_BOUND
    about = _cut_list([*found.asked, *found.why], most, full=full)
    lines = [*_heading(found), *(f"  {line}" for line in about)]
    lines += ["  cores: 1/100 of a GPU's time"] * any(" cores" in line for line in about)
    if found.at:
        at = dt.datetime.fromtimestamp(found.at, dt.UTC)
        lines.append(f"  kube-scheduler last asked at {at:%Y-%m-%d %H:%M:%S UTC}")
    if found.condition:
        lines.append(f"  the pod's condition PodScheduled says: {found.condition}")
    if found.reasons:
        counted = [f"{count:>6} node{'s' * (count != 1)}: {reason}" for reason, count in found.reasons.items()]
        lines += ["", *_cut_list(counted, _MOST_REASONS, full=full)]
    shown = found.nodes if full else () if found.node else found.nodes[:_NEAREST]
    for node in shown:
        lines += ["", *(_every_line(node) if full else _short_lines(node))]
    return [*lines, *_left_out(found, len(shown))]


def _heading(found: Explanation) -> list[str]:
    """The main reason first: it is what people look for."""
    if not found.main_reason:
        return [f"{found.pod}: {found.sentence}"]
    return [f"{found.pod} is Pending: {found.main_reason}", f"  {found.sentence}"]


def _left_out(found: Explanation, shown: int) -> list[str]:
    hidden, unseen = len(found.nodes) - shown, found.left_out * bool(found.nodes)
    if hidden and not shown:
        return ["", f"--all shows {hidden} of the other nodes in full."]
    if hidden:
        farther = f"; of {unseen} more only the reason is counted above" if unseen else ""
        return ["", f"These are the {shown} nodes nearest to fitting. --all shows {hidden} more in full{farther}."]
    return ["", f"Of {unseen} more nodes, farther from fitting, only the reason is counted above."] if unseen else []


def _cut_list(lines: Sequence[str], most: int, *, full: bool = False) -> list[str]:
    if full or len(lines) <= most:
        return [*lines]
    return [*lines[: most - 1], f"  {len(lines) - most + 1} more lines with --all"]


def _every_line(node: NodeVerdict) -> Iterator[str]:
    yield from _node_heading(node)
    for gpu in node.gpus[:_MOST_GPUS]:
        yield f"  GPU {gpu.minor} ({gpu.model}): {gpu.against or 'fits'}"
        yield from (f"    {holder}" for holder in gpu.holders)
    if len(node.gpus) > _MOST_GPUS:
        yield f"  {len(node.gpus) - _MOST_GPUS} more GPUs"


def _node_heading(node: NodeVerdict) -> Iterator[str]:
    yield f"node {node.node}: {node.reason}"
    if node.fix:
        yield f"  fix: {node.fix}"


def _short_lines(node: NodeVerdict) -> list[str]:
    """The GPUs nearest to fitting with their pods, the others by what speaks against them."""
    nearest = [gpu for gpu in node.gpus if gpu.nearest]
    lines = [f"  GPU {gpu.minor}: {gpu.against or 'fits'}{_holders_text(gpu)}" for gpu in nearest]
    alike: dict[str, list[int]] = {}
    for gpu in node.gpus:
        if not gpu.nearest:
            alike.setdefault(gpu.against, []).append(gpu.minor)
    others = [f"  {gpus_text(minors)}: {against or _fit(len(minors))}" for against, minors in alike.items()]
    if len(others) > _MOST_OTHERS:
        others = [f"  {len(node.gpus) - len(nearest)} further GPUs: see --all"]
    return [*_node_heading(node), *_cut_list(lines, _MOST_GPU_LINES), *others]


def _fit(gpus: int) -> str:
    return "fits" if gpus == 1 else "fit"


def _holders_text(gpu: GpuVerdict) -> str:
    if not gpu.holders:
        return ""
    more = len(gpu.holders) - _MOST_HOLDERS
    return f"; {'; '.join(gpu.holders[:_MOST_HOLDERS])}" + (f"; {more} more" if more > 0 else "")
