"""The checks of the agents: the DaemonSet, its pods, and that every node with GPUs has one.

In: the DaemonSet, its pods and the nodes. Out: findings with the words of kubelet about a pod that does not run.
"""

from deviceplugin.cli.doctor.cluster import AGENT, ClusterFacts
from deviceplugin.cli.doctor.findings import CheckOutcome, CheckResult, count, failed, named, ok, skipped, warning
from deviceplugin.cli.doctor.nodes import inventories, offers, other_drivers, other_plugins, without_agent
from deviceplugin.errors import KubeError
from deviceplugin.model.claims import ClaimNames


async def agents(facts: ClusterFacts) -> CheckResult:
    daemon_set = await facts.agent()
    if daemon_set is None:
        if await facts.scheduler() is not None:
            return skipped("the chart installed no agent (value agent.enabled)")
        return failed(
            f"there is no DaemonSet {AGENT} in namespace {facts.namespace}",
            "install the chart, or give --scheduler-namespace",
        )
    status = daemon_set.status
    desired, ready = status.desired_number_scheduled, status.number_ready
    if not desired:
        return warning(
            "no node is selected for the agent",
            "label the GPU nodes: kubectl label node NODE nvidia-device-enable=enable",
        )
    if ready < desired:
        return failed(
            f"{ready} of {count(desired, 'agent')} ready: {await _troubles(facts)}",
            f"kubectl -n {facts.namespace} describe pods -l app.kubernetes.io/name={AGENT}",
        )
    if status.updated_number_scheduled < desired:
        return warning(
            f"{desired} agents ready, {desired - status.updated_number_scheduled} of them of an older revision",
            f"kubectl -n {facts.namespace} rollout status daemonset/{AGENT}; with updateStrategy OnDelete delete them",
        )
    return ok(f"{ready} of {count(desired, 'agent')} ready")


async def _troubles(facts: ClusterFacts) -> str:
    try:
        pods = await facts.agent_pods()
    except KubeError as error:
        return error.message
    bad = [f"{pod.metadata.name} on {pod.spec.node_name}: {pod.trouble}" for pod in pods if not pod.is_ready]
    return named(sorted(bad)) if bad else "their pods are not there yet"


async def _ready_nodes(facts: ClusterFacts) -> set[str]:
    return {pod.spec.node_name or "" for pod in await facts.agent_pods() if pod.is_ready}


async def gpu_nodes(facts: ClusterFacts) -> CheckResult:
    nodes, ready = await facts.nodes(), await _ready_nodes(facts)
    not_ready = sorted(each.name for each in nodes if each.is_ours and not each.ready)
    if not_ready:
        return warning(
            f"{count(len(not_ready), 'GPU node')} that kubelet or the network makes not Ready: {named(not_ready)}",
            f"kubectl describe node {not_ready[0]}",
        )
    missing = without_agent(nodes, ready)
    if missing:
        return warning(
            f"{count(len(missing), 'node')} labelled as having NVIDIA GPUs, and nothing offers them: {named(missing)}",
            "if vcuda shall share them, label them as the value agent.nodeSelector says",
        )
    if not ready:
        return skipped("no agent is ready")
    return ok(f"{count(len(ready), 'node')} with a ready agent, of {len(nodes)}")


async def annotations(facts: ClusterFacts) -> CheckResult:
    return inventories(await facts.nodes(), await _ready_nodes(facts))


async def allocatable(facts: ClusterFacts) -> CheckResult:
    return offers(await facts.nodes(), await _ready_nodes(facts))


async def plugins(facts: ClusterFacts) -> CheckResult:
    """The slices are not looked at where a node says enough: not everybody may list them."""
    nodes = await facts.nodes()
    found = other_plugins(nodes)
    if found.outcome is not CheckOutcome.OK:
        return found
    return other_drivers(nodes, await facts.slices(), ClaimNames((await facts.names()).domain).driver)
