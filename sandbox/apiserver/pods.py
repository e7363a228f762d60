"""What is special about pods: defaults, the binding, and deletion in two steps.

In: pods as JSON. Out: changed copies, or an `ApiError`.
"""

from sandbox.apiserver.patch import merge
from sandbox.apiserver.status import JsonObject, conflict, invalid
from sandbox.apiserver.validation import DNS_LABEL

_DEFAULT_GRACE_SECONDS = 30


def admit(pod: JsonObject, _: JsonObject | None) -> None:
    """Fills in, in place, what admission and defaulting would."""
    spec = pod.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
    if not spec.get("containers"):
        raise invalid("Pod", pod["metadata"]["name"], "spec.containers: Required value")
    for at, claim in enumerate(spec.get("resourceClaims") or ()):
        if not DNS_LABEL.fullmatch(claim["name"]):  # ValidateDNS1123Label, pkg/apis/core/validation/validation.go
            where = f"spec.resourceClaims[{at}].name"
            raise invalid("Pod", pod["metadata"]["name"], f'{where}: Invalid value: "{claim["name"]}"')
    pod.setdefault("status", {}).setdefault("phase", "Pending")


def bound(pod: JsonObject, node: str, annotations: JsonObject) -> JsonObject:
    """All of it at once, or a conflict: the scheduler that comes second learns who came first."""
    name = pod["metadata"]["name"]
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if found := pod["spec"].get("nodeName"):
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{found}"')
    if pod["spec"].get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    others = [each for each in pod["status"].get("conditions") or [] if each["type"] != "PodScheduled"]
    change = {
        "metadata": {"annotations": annotations},
        "spec": {"nodeName": node},
        "status": {"conditions": [*others, {"type": "PodScheduled", "status": "True"}], "nominatedNodeName": None},
    }
    return merge(pod, change)


def grace_seconds(pod: JsonObject, asked: int | None) -> int:
    """How long the pod stays as Terminating; 0 where nothing runs that could be stopped."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(pod["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)


def deleting(pod: JsonObject, seconds: int, when: str) -> JsonObject:
    """The mark that a watcher sees before the deletion of a bound pod, with grace 0 too (seen on 1.36)."""
    if not pod["spec"].get("nodeName"):
        return pod
    return merge(pod, {"metadata": {"deletionTimestamp": when, "deletionGracePeriodSeconds": seconds}})
