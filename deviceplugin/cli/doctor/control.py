"""The checks of a cluster: API server, scheduler, webhook, kube-scheduler, versions, agents, pending pods, rights.

In: what `ClusterFacts` reads, and a pod that the API server admits without creating it (`dryRun=All`). Out: findings,
with the words of kubelet about a pod that does not run. The trial is the proof of the webhook: the API server itself
calls it, over TLS, with the caBundle that it has.
"""

import base64
import binascii
import re
import time

from cryptography import x509

from deviceplugin import __version__
from deviceplugin.cli.doctor.cluster import AGENT, NAMESPACES, SCHEDULER, ClusterFacts, lacking
from deviceplugin.cli.doctor.findings import (
    Check,
    CheckOutcome,
    CheckResult,
    count,
    failed,
    named,
    ok,
    skipped,
    warning,
)
from deviceplugin.cli.doctor.nodes import inventories, offers, other_drivers, other_plugins, without_agent
from deviceplugin.cluster.certificates.issuer import CA_ENDS_SOON
from deviceplugin.errors import KubeError, one_line
from deviceplugin.kube.api_errors import lacks_right
from deviceplugin.kube.cluster_client import WebhookConfiguration
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.pods import PODS
from deviceplugin.kube.structs import PodSpec
from deviceplugin.model.claims import ClaimNames

OLDEST = (1, 32)
"""README: Kubernetes 1.32 or newer."""
_FORBIDDEN = 403
_TOKEN = ("create", "serviceaccounts", "token")
_NUMBERS = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?", re.ASCII)


async def api_server(facts: ClusterFacts) -> CheckResult:
    try:
        found = await facts.api.version()
    except KubeError as error:
        if error.code == _FORBIDDEN:
            raise
        return failed(
            error.finding,
            error.advice or "correct the kubeconfig, or choose another context; kubectl version tries the same",
        )
    version = _numbers(found)
    if version is None:
        return warning(
            f"the API server answers with a version that cannot be read: {found[:40]!r}",
            "check that the kubeconfig names an API server",
        )
    if version[:2] < OLDEST:
        return failed(
            f"Kubernetes {found} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest that vcuda supports",
            "update the cluster, or read docs/install.md about clusters without agent.confined",
        )
    return ok(f"Kubernetes {found}")


_NO_SCHEDULER = "the chart installed no scheduler (value scheduler.enabled)"


async def _is_agent_only(facts: ClusterFacts) -> bool:
    """Agents alone are an installation, too; without the right to see that, a scheduler is expected."""
    try:
        return await facts.scheduler() is None and await facts.agent() is not None
    except KubeError:
        return False


async def scheduler(facts: ClusterFacts) -> CheckResult:
    """Through the API server's proxy, as all commands ask it."""
    if await _is_agent_only(facts):
        return skipped(_NO_SCHEDULER)
    view = await facts.view()
    leader = view.leader or "none"
    if not view.leader:
        return failed(
            f"replica {view.replica} answers, and none leads: no GPU pod is placed",
            f"kubectl -n {facts.namespace} get lease {SCHEDULER} -o yaml, and read the log of kube-scheduler",
        )
    return ok(f"replica {view.replica} answers, {leader} leads")


def _absent(facts: ClusterFacts, kind: str, name: str) -> CheckResult:
    return failed(
        f"there is no {kind} {name} in namespace {facts.namespace}", "install the chart, or give --scheduler-namespace"
    )


async def replicas(facts: ClusterFacts) -> CheckResult:
    if await _is_agent_only(facts):
        return skipped(_NO_SCHEDULER)
    deployment = await facts.scheduler()
    if deployment is None:
        return _absent(facts, "Deployment", SCHEDULER)
    wanted = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    ready = deployment.status.ready_replicas
    if ready < wanted:
        bad = await _troubles(facts)
        made = failed if not ready else warning
        return made(
            f"{ready} of {count(wanted, 'replica')} ready{bad}",
            f"kubectl -n {facts.namespace} describe pods -l app.kubernetes.io/name={SCHEDULER}",
        )
    if deployment.status.updated_replicas < wanted:
        return warning(
            f"{wanted - deployment.status.updated_replicas} of {count(wanted, 'replica')} of an older revision",
            f"kubectl -n {facts.namespace} rollout status deployment/{SCHEDULER}",
        )
    return ok(f"{ready} of {count(wanted, 'replica')} ready")


async def _troubles(facts: ClusterFacts) -> str:
    try:
        pods = await facts.scheduler_pods()
    except KubeError as error:
        return f"; {error.message}"
    bad = sorted(f"{pod.metadata.name}: {pod.trouble}" for pod in pods if not pod.is_ready)
    return f": {named(bad)}" if bad else ""


async def versions(facts: ClusterFacts) -> CheckResult:
    """docs/how-to/upgrade.md: within one release of each other."""
    found: set[str] = set()
    if not await _is_agent_only(facts):
        found.add((await facts.view()).scheduler_version)
        found |= {each.label("vcuda_scheduler_build_info", "version") for each in await facts.replicas()}
    not_asked = ""
    try:
        known, unknown = await facts.agent_versions()
        found |= set(known)
    except KubeError as error:
        unknown = error.message
    if unknown:  # a NetworkPolicy may keep the API server away from them
        not_asked = f"; agents could not be asked: {unknown}"
    kinds = sorted(found - {""})
    text = f"installed: {', '.join(kinds)}; this command: {__version__}{not_asked}"
    distance = _distance([*kinds, __version__])
    if distance > 1:
        return failed(
            f"versions are more than one release apart; {text}",
            "upgrade by one release at a time, agent and scheduler together, and use their version of this command",
        )
    if len({*kinds, __version__}) > 1:
        return warning(
            f"versions differ; {text}", "finish the upgrade, and use the scheduler's version of this command"
        )
    return ok(f"scheduler, agents and this command all run {__version__}{not_asked}")


def _numbers(text: str) -> tuple[int, int, int] | None:
    found = _NUMBERS.match(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def _distance(texts: list[str]) -> int:
    """In releases: of the second number; another first number is far away, and so is what cannot be read."""
    numbers = {_numbers(text) for text in texts}
    known = [each for each in numbers if each is not None]
    if len(known) < len(numbers) or len({each[0] for each in known}) > 1:
        return 2
    minors = [each[1] for each in known]
    return max(minors) - min(minors)


async def kube_scheduler(facts: ClusterFacts) -> CheckResult:
    """Whether one asks the extender: what its replicas have counted since they started."""
    if await _is_agent_only(facts):
        return skipped(_NO_SCHEDULER)
    every = [each for each in await facts.replicas() if each.error is None]
    counted = "vcuda_scheduler_requests_total"
    refused = sum(
        sum(each.values(counted, outcome=outcome)) for each in every for outcome in ("non_loopback", "unauthorized")
    )
    answered = sum(
        sum(each.values(counted, verb="filter", outcome=outcome)) for each in every for outcome in ("chosen", "refused")
    )
    if refused:
        return warning(
            f"the extender refused {count(int(refused), 'request')} of a caller that it does not know",
            "a kube-scheduler elsewhere needs a client certificate: values scheduler.callers (docs/scheduler.md)",
        )
    if answered:
        return ok(f"kube-scheduler has asked the extender about {count(int(answered), 'pod')} since it started")
    if (await facts.view()).pods_pending:
        return failed(
            "GPU pods are Pending, and no kube-scheduler has asked the extender since it started",
            "with leaderElection=own configure your kube-scheduler as docs/scheduler.md says; else read the log of the "
            f"container kube-scheduler: kubectl -n {facts.namespace} logs deployment/{SCHEDULER} -c kube-scheduler",
        )
    return ok("no kube-scheduler has asked the extender since it started, and no GPU pod is Pending")


async def pending(facts: ClusterFacts) -> CheckResult:
    if await _is_agent_only(facts):
        return skipped(_NO_SCHEDULER)
    view = await facts.view()
    if not view.pods_pending:
        return ok(f"no GPU pod is Pending; {view.pods_bound} are bound")
    reasons = sorted(view.pending_by_reason.items(), key=lambda each: (-each[1], each[0]))
    shown = named([f"{number} × {reason}" for reason, number in reasons])
    return warning(
        f"{count(view.pods_pending, 'GPU pod')} pending{': ' if shown else ''}{shown}",
        "kubectl vcuda pods -A --status pending, and kubectl vcuda explain POD for one of them",
    )


async def rights(facts: ClusterFacts) -> CheckResult:
    """Those that the other commands need, for the answer with names: of all pods, or of the caller's own namespace."""
    proxy = ("get", "services", "proxy", f"https:{SCHEDULER}:https")
    if missing := await lacking(facts.api, [proxy], namespace=facts.namespace):
        return warning(
            f"in namespace {facts.namespace} you may not {named(missing)}, which the other commands use",
            "an administrator gives you the right with the chart's value operators.subjects or tenants.subjects",
        )
    if not await lacking(facts.api, [(*_TOKEN, "vcuda-view")], namespace=facts.namespace):
        return ok("you have the rights that the other commands need, for all pods")
    own = facts.trial_namespace
    if missing := await lacking(facts.api, [(*_TOKEN, "default")], namespace=own):
        return warning(
            f"you may not {named(missing)}, neither in namespace {own} nor of vcuda-view: the other commands show sums",
            f"an administrator gives you the ClusterRole edit in namespace {own}, or all pods with operators.subjects",
        )
    return ok(f"you have the rights that the other commands need, for the pods of namespace {own} and sums of all")


async def agents(facts: ClusterFacts) -> CheckResult:
    daemon_set = await facts.agent()
    if daemon_set is None:
        if await facts.scheduler() is not None:
            return skipped("the chart installed no agent (value agent.enabled)")
        return _absent(facts, "DaemonSet", AGENT)
    status = daemon_set.status
    desired, ready = status.desired_number_scheduled, status.number_ready
    if not desired:
        return warning(
            "no node is selected for the agent",
            "label the GPU nodes: kubectl label node NODE nvidia-device-enable=enable",
        )
    if ready < desired:
        return failed(
            f"{ready} of {count(desired, 'agent')} ready: {await _agent_troubles(facts)}",
            f"kubectl -n {facts.namespace} describe pods -l app.kubernetes.io/name={AGENT}",
        )
    if status.updated_number_scheduled < desired:
        return warning(
            f"{desired} agents ready, {desired - status.updated_number_scheduled} of them of an older revision",
            f"kubectl -n {facts.namespace} rollout status daemonset/{AGENT}; with updateStrategy OnDelete delete them",
        )
    return ok(f"{ready} of {count(desired, 'agent')} ready")


async def _agent_troubles(facts: ClusterFacts) -> str:
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
            "to let vcuda share them, label the nodes as the value gpuNodes says",
        )
    if not ready:
        return skipped("no agent is ready")
    return ok(f"{count(len(ready), 'node')} with a ready agent, of {len(nodes)}")


async def agent_inventories(facts: ClusterFacts) -> CheckResult:
    return inventories(await facts.nodes(), await _ready_nodes(facts))


async def allocatable(facts: ClusterFacts) -> CheckResult:
    return offers(await facts.nodes(), await _ready_nodes(facts))


async def other_offers(facts: ClusterFacts) -> CheckResult:
    """The slices are not looked at where a node says enough: not everybody may list them."""
    nodes = await facts.nodes()
    found = other_plugins(nodes)
    if found.outcome is not CheckOutcome.OK:
        return found
    return other_drivers(nodes, await facts.slices(), ClaimNames((await facts.names()).domain).driver)


_DEFAULT_SCHEDULER = "default-scheduler"
_EXPIRATION = "vcuda_scheduler_certificate_expiration_timestamp_seconds"


async def webhook(facts: ClusterFacts) -> CheckResult:
    """The configuration, and its caBundle beside what the replicas have."""
    found = await facts.webhook()
    if found is None or not found.webhooks:
        if await facts.scheduler() is None:
            return skipped("vcuda's scheduler is not installed, and so neither is the webhook")
        return warning(
            "there is no webhook: nothing completes and checks GPU pods", "set the value webhook.enabled=true"
        )
    service = found.webhooks[0].client_config.service
    if service is not None and service.namespace != facts.namespace:
        return failed(
            f"the webhook configuration calls a service in namespace {service.namespace}, and the scheduler is looked "
            f"for in {facts.namespace}",
            "give --scheduler-namespace, or remove the configuration that an older release has left",
        )
    return await _trust(facts, found)


async def _trust(facts: ClusterFacts, found: WebhookConfiguration) -> CheckResult:
    bundle = (found.webhooks or [])[0].client_config.ca_bundle
    if not bundle:
        return failed(
            "the webhook configuration has no caBundle, so the API server does not trust the webhook",
            f"read the scheduler's log: kubectl -n {facts.namespace} logs deployment/{SCHEDULER} -c extender",
        )
    try:
        trusted = x509.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
    except (ValueError, binascii.Error) as error:
        return failed(
            f"the caBundle of the webhook configuration cannot be read: {one_line(str(error), most=100)}",
            "run helm upgrade; with webhook.certificates.patch=true remove it, and the scheduler writes it again; with "
            "from: secret give webhook.certificates.caBundle",
        )
    ends = {each.not_valid_after_utc.timestamp() for each in trusted}
    try:
        own = {value for each in await facts.replicas() for value in each.values(_EXPIRATION, certificate="ca")}
    except KubeError:  # without the right to ask them the trial pod still proves it
        own = set()
    if own and not own <= ends:
        return failed(
            "the caBundle of the webhook configuration has not the CA that the scheduler uses",
            "run helm upgrade, which writes it from the Secret; with webhook.certificates.patch=true something else "
            "writes over the scheduler's (a GitOps tool, say): let it ignore /webhooks/0/clientConfig/caBundle",
        )
    if own and min(own) < time.time() + CA_ENDS_SOON.total_seconds():
        return warning(
            f"the CA of the webhook ends on {time.strftime('%Y-%m-%d', time.gmtime(min(own)))}",
            "replace it before, at a time of your choice: docs/scheduler.md#certificates",
        )
    of = " of the scheduler" if own else ""
    return ok(f"configured, and its caBundle has the CA{of}")


async def admission(facts: ClusterFacts) -> CheckResult:
    """A pod that requests a share comes back completed."""
    found = await facts.webhook()
    if found is None:
        return skipped("there is no webhook to try")
    namespace = facts.trial_namespace
    if label := found.excluding(namespace, await _labels(facts, namespace)):
        return skipped(
            f"the webhook leaves out namespace {namespace} by the label {label}", "name another namespace with -n"
        )
    names = await facts.names()
    pod, query = _trial(names.core, names.memory), {"dryRun": "All", "fieldManager": "vcuda-doctor"}
    what = f"create pods in namespace {namespace} (nothing would be created)"
    try:
        admitted = await facts.api.create(PODS, namespace, pod, what=what, query=query)
    except KubeError as error:
        return _refused(error, namespace, found)
    chosen = (admitted.spec or PodSpec()).scheduler_name
    if chosen in (None, "", _DEFAULT_SCHEDULER):
        return failed(
            f"the webhook does not change a GPU pod in namespace {namespace}; {_DEFAULT_SCHEDULER} would place it",
            "with webhook.failurePolicy=Ignore the API server's log says why; else webhook.objectSelector or "
            f"a label of the namespace may leave it out: kubectl get namespace {namespace} --show-labels",
        )
    return ok(f"the API server calls the webhook; a trial pod in namespace {namespace} would go to {chosen}")


async def _labels(facts: ClusterFacts, namespace: str) -> dict[str, str]:
    """None of them without the right to read them; the name is known all the same."""
    try:
        return await facts.api.get(NAMESPACES, ObjectRef("", namespace), what="get namespaces")
    except KubeError:
        return {}


def _trial(core: str, memory: str) -> dict[str, object]:
    """It keeps the strictest rules of Pod Security, so that only the webhook decides."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    amount = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "trial",
        "image": "vcuda-doctor",
        "resources": {"requests": amount, "limits": {**amount, core: "1", memory: "1"}},
        "securityContext": restricted,
    }
    return {
        "metadata": {"generateName": "vcuda-doctor-"},
        "spec": {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False},
    }


def _refused(error: KubeError, namespace: str, found: WebhookConfiguration) -> CheckResult:
    said = error.said
    ours = [each.name for each in found.webhooks or ()]
    if "failed calling webhook" in said and any(name in said for name in ours):
        return failed(
            f"the API server cannot call the webhook: {said}",
            "if it says x509: the caBundle is not the scheduler's; if it times out: a NetworkPolicy or firewall is "
            "between the API server and the scheduler's pods (values scheduler.networkPolicy, scheduler.hostNetwork)",
        )
    if "denied the request" in said and any(name in said for name in ours):
        return ok(f"the API server calls the webhook; it denies a trial pod: {said}")
    if not error.code or lacks_right(error.code, said):
        raise error
    return skipped(
        f"namespace {namespace} does not take the trial pod ({error.code}): {said}", "give another namespace with -n"
    )


CHECKS = (
    Check("api-server", api_server, needed=True),
    Check("rights", rights),
    Check("scheduler", scheduler),
    Check("scheduler-replicas", replicas),
    Check("versions", versions),
    Check("webhook", webhook),
    Check("admission", admission),
    Check("kube-scheduler", kube_scheduler),
    Check("agents", agents),
    Check("gpu-nodes", gpu_nodes),
    Check("inventories", agent_inventories),
    Check("allocatable", allocatable),
    Check("other-plugins", other_offers),
    Check("pending-pods", pending),
)
