"""What an answer of the API server means: advice only where its own words prove it."""

import json

import pytest

from deviceplugin.kube.api_errors import lacks_right, refusal

ACCOUNT = "system:serviceaccount:kube-system:vcuda-scheduler"
CANNOT = 'cannot create resource "resourceclaimtemplates" in API group "resource.k8s.io" in the namespace "a"'
OBJECT = 'resourceclaimtemplates.resource.k8s.io "x" is forbidden: '
USER = f'{OBJECT}User "{ACCOUNT}" {CANNOT}'
BY_POLICY = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
BY_WEBHOOK = 'admission webhook "policy.example.org" denied the request: no'
IMPERSONATING = 'users "a" is forbidden: User "b" cannot impersonate resource "users" in API group ""'
SAID: dict[str, tuple[int, str, str]] = {
    # pkg/registry/rbac, apiserver/pkg/endpoints/handlers/responsewriters/errors.go
    "a right": (403, USER, "grant it in the ClusterRole of its service account"),
    "a person's right": (403, USER.replace(ACCOUNT, "alice"), "grant it to this user"),
    "a right to a path": (403, f'forbidden: User "{ACCOUNT}" cannot get path "/metrics"', "in the ClusterRole"),
    "impersonation": (403, IMPERSONATING, "leave out the impersonation"),
    "nobody": (403, USER.replace(ACCOUNT, "system:anonymous"), "no credentials were sent"),
    # plugin/pkg/admission and apiserver/pkg/admission
    "quota": (403, f"{OBJECT}exceeded quota: gpu, requested: count/x=1, used: count/x=9", "raise that quota"),
    "a quota that needs more": (403, f"{OBJECT}failed quota: compute: must specify limits.cpu for: main", "that quota"),
    "a quota of nobody": (403, f"{OBJECT}insufficient quota to match these scopes: [x]", "that quota"),
    "termination": (403, f"{OBJECT}unable to create new content because it is being terminated", "is being deleted"),
    "a policy": (403, f"{OBJECT}{BY_POLICY}", "that policy"),
    "a policy by another code": (422, BY_POLICY, "that policy"),
    "Pod Security": (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged', "that policy"),
    "a webhook": (403, BY_WEBHOOK, "that webhook"),
    "a webhook by another code": (400, BY_WEBHOOK, "that webhook"),
    "a webhook that is away": (500, 'Internal error occurred: failed calling webhook "x": no', "does not answer"),
    "a node": (403, 'nodes "b" is forbidden: node "a" is not allowed to modify node "b"', ""),
    "a limit range": (403, 'pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2', ""),
    "a proxy on the way": (403, "<html>Access denied by Proxy</html>", ""),
    "a token": (401, "Unauthorized", "missing, expired or not of this cluster"),
    "a fault of the server": (500, "etcdserver: request timed out", ""),
    "a server that is busy": (429, "too many requests", ""),
    "what is not there": (404, "the server could not find the requested resource", ""),
}
"""What Kubernetes 1.36 says, by code, and what to do."""


def _status(code: int, said: str) -> bytes:
    document = json.dumps({"kind": "Status", "message": said, "code": code})
    return said.encode() if said.startswith("<") else document.encode()


def test_the_advice_is_what_the_answer_proves(subtests: pytest.Subtests) -> None:
    for name, (code, said, advice) in SAID.items():
        with subtests.test(name):
            message = refusal(code, _status(code, said), what="create x").message
            head, _, tail = message.partition("): ")
            assert head.startswith(f"the API server refused to create x ({code}")
            assert (advice in head, bool(advice)) == (True, "; " in head), message
            assert tail == said, "the server's own words stay whole"


def test_only_a_missing_right_is_one() -> None:
    rights = {name for name, (code, said, _) in SAID.items() if lacks_right(code, said)}
    assert rights == {"a right", "a person's right", "a right to a path", "impersonation"}
