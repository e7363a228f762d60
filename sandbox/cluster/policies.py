"""Where admission policies and webhooks are in the API server, and waiting until new policies are in force.

In: the admin's client, after the policies and their bindings were stored or changed. Out: nothing, once the API server
applies them all. Invariant: no policy of the caller has to be broken to find out.

The API server reads policies and bindings by one watch each, and takes over what both have brought once a second
(k8s.io/apiserver, pkg/admission/plugin/policy/generic/policy_source.go). A probe of one policy says nothing of the
next; one that was stored after all of them does, because a watch keeps the order.
"""

import contextlib
import uuid

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.waiting import wait_until

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS = f"{ADMISSION}/mutatingwebhookconfigurations"
POLICIES, BINDINGS = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
ADMISSION_PATHS = {
    "MutatingWebhookConfiguration": WEBHOOKS,
    "ValidatingAdmissionPolicy": POLICIES,
    "ValidatingAdmissionPolicyBinding": BINDINGS,
}
"""By kind."""
_PROBES = "/api/v1/namespaces/default/configmaps?dryRun=All"


def wait_until_in_force(admin: Client) -> None:
    """Every policy and binding that was stored before the call."""
    name = f"last-{uuid.uuid4().hex}"
    try:
        admin.post(POLICIES, {"metadata": {"name": name}, "spec": _refusing(name)})
        binding = {"policyName": name, "validationActions": ["Deny"]}
        admin.post(BINDINGS, {"metadata": {"name": name}, "spec": binding})
        wait_until(lambda: _is_refused(admin, name), "the policies are in force")
    finally:
        for path in (BINDINGS, POLICIES):
            with contextlib.suppress(ApiError):
                admin.delete(f"{path}/{name}")


def _refusing(name: str) -> JsonObject:
    """A policy against one name that nobody else gives."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    refused = {"expression": f"object.metadata.name != '{name}'", "message": name}
    return {"matchConstraints": {"resourceRules": [rule]}, "validations": [refused]}


def _is_refused(admin: Client, name: str) -> bool:
    try:
        admin.post(_PROBES, {"metadata": {"name": name}})
    except ApiError as error:
        if name not in str(error):
            raise
        return True
    return False
