"""Whose token it is, what its owner may, and who asks: TokenReview, SubjectAccessReview and SelfSubjectReview.

In: the objects as clients create them (k8s.io/api authentication/v1 and authorization/v1, types.go). Out: the same with
their status, as kube-apiserver 1.36 fills it in. A token names its account and its audiences itself, as a JSON web
token does, but it is not signed: everybody in the sandbox can make one. The account VIEWER may get /vcuda/view, as the
chart's ClusterRole says, and no account may list pods.
"""

import base64
import json

from sandbox.apiserver.status import JsonObject

VIEWER = "system:serviceaccount:kube-system:vcuda-view"
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def token_of(account: str, *audiences: str) -> str:
    claims = {"sub": account, "aud": audiences}
    return ".".join(_part(part) for part in ({"alg": "none"}, claims, {}))


def reviewed(path: str, document: JsonObject) -> JsonObject:
    """`path` is TOKENS or ACCESS."""
    return document | {"status": _of_token(document["spec"]) if path == TOKENS else _of_access(document["spec"])}


def who_asks(document: JsonObject, authorization: str) -> JsonObject:
    """The account that the caller's token names; he may be somebody else, who has no UID."""
    try:
        claims = json.loads(base64.urlsafe_b64decode(f"{authorization.split('.')[1]}=="))
        user = {"username": str(claims["sub"]), "uid": f"uid-of-{claims['sub']}"}
    except (ValueError, IndexError, KeyError, TypeError):
        user = {"username": "kubernetes-admin"}
    return document | {"status": {"userInfo": user}}


def _of_token(spec: JsonObject) -> JsonObject:
    try:
        claims = json.loads(base64.urlsafe_b64decode(f"{spec['token'].split('.')[1]}=="))
        account, audiences = str(claims["sub"]), set(claims["aud"]) & set(spec.get("audiences") or ())
    except (ValueError, IndexError, KeyError, TypeError):
        audiences = set()
    if not audiences:
        return {"user": {}, "error": "[invalid bearer token, Token has been invalidated]"}
    return {"authenticated": True, "user": {"username": account}, "audiences": sorted(audiences)}


def _of_access(spec: JsonObject) -> JsonObject:
    asked = spec.get("nonResourceAttributes") or {}
    return {"allowed": (spec.get("user"), asked.get("path"), asked.get("verb")) == (VIEWER, "/vcuda/view", "get")}


def _part(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")
