"""By whom and where a GPU pod is scheduled.

In: the pod's JSON. Out: `schedulerName`, where the pod left the default or names HAMi's and HAMi's pods are ours;
`nodeName` as a node affinity, where the pod is then ours; the runtime class, where one is set and the pod names none.

A pod with `nodeName` never comes to a scheduler, so kubelet would refuse it where its GPUs are taken. It becomes an
affinity on the field `metadata.name`, as the DaemonSet controller writes it, and no selector of the label
`kubernetes.io/hostname`: that label is the host's name, which need not be the node's.
"""

from deviceplugin.cluster.webhook.hami_pods import HAMI_SCHEDULER
from deviceplugin.cluster.webhook.pod_json import Json, made_child, objects, spec
from deviceplugin.config.webhook import HamiScope, WebhookSettings

DEFAULT_SCHEDULER = "default-scheduler"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = "nodeSelectorTerms"


def send_to_scheduler(pod: Json, settings: WebhookSettings) -> tuple[str, ...]:
    """Warnings about what was changed and the user may not expect."""
    inside = spec(pod)
    left = (None, "", DEFAULT_SCHEDULER, *([] if settings.hami.scope is HamiScope.OFF else [HAMI_SCHEDULER]))
    if settings.scheduler_name and inside.get("schedulerName") in left:
        inside["schedulerName"] = settings.scheduler_name
    if settings.runtime_class and not inside.get("runtimeClassName"):
        inside["runtimeClassName"] = settings.runtime_class
    node = inside.get("nodeName")
    if not node or not isinstance(node, str) or inside.get("schedulerName") != settings.scheduler_name:
        return ()
    del inside["nodeName"]
    _require(inside, node)
    return (f"spec.nodeName {node} was turned into a node affinity, so that the scheduler gives this pod its GPUs",)


def _require(inside: Json, node: str) -> None:
    wanted = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = made_child(made_child(made_child(inside, "affinity"), "nodeAffinity"), _REQUIRED)
    if required.get(_TERMS) is None:
        required[_TERMS] = [{"matchFields": [wanted]}]
    for term in objects(required, _TERMS):  # one of them is enough, so each must have it; an empty one matches nothing
        fields = objects(term, "matchFields")
        if (fields or term.get("matchExpressions")) and wanted not in fields:
            term["matchFields"] = [*fields, wanted]
