"""The checks of the admission webhook: its configuration, whom the API server trusts, and whether it changes a pod.

In: the configuration, the metrics of the replicas, and a pod that the API server admits without creating it
(`dryRun=All`). Out: findings. The trial is the proof: the API server itself calls the webhook, over TLS, with the
caBundle that it has.
"""

import base64
import binascii
import time

from cryptography import x509

from deviceplugin.cli.doctor.cluster import SCHEDULER, ClusterFacts
from deviceplugin.cli.doctor.findings import CheckResult, failed, ok, skipped, warning
from deviceplugin.cli.doctor.objects import NAMESPACES
from deviceplugin.cluster.certificates.issuer import CA_ENDS_SOON
from deviceplugin.errors import KubeError, one_line
from deviceplugin.kube.api_errors import lacks_right
from deviceplugin.kube.cluster_client import WebhookConfiguration
from deviceplugin.kube.objects import ObjectRef
from deviceplugin.kube.pods import PODS
from deviceplugin.kube.structs import PodSpec

_DEFAULT_SCHEDULER = "default-scheduler"
_EXPIRATION = "vcuda_scheduler_certificate_expiration_timestamp_seconds"


async def configuration(facts: ClusterFacts) -> CheckResult:
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
            "replace it before, at a time of your choice: docs/install.md#certificates",
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
