"""What the API server's error answers mean.

In: the code and the body of an answer, or the Status inside a watch. Out: one of our errors. Invariant: advice is given
where the server's own words prove it, and nowhere else; 403 alone says only that somebody refused. Not here: answers
that never came (`transport`). Nothing of HTTP is imported, so that reading objects from a file does not need it.
"""

import re

from deviceplugin.errors import KubeConflictError, KubeError, KubeGoneError, KubeNotFoundError, ParseError, one_line
from deviceplugin.kube.structs import StatusObject, decode

TOO_LARGE = 413
_FORBIDDEN = 403
_BY_CODE: dict[int, type[KubeError]] = {404: KubeNotFoundError, 409: KubeConflictError, 410: KubeGoneError}
_CREDENTIALS = "its credentials are missing, expired or not of this cluster"
_RIGHT = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) (?:resource|path) ')
_ACCOUNT = "system:serviceaccount:"
_ANONYMOUS = "system:anonymous"
_POLICY, _WEBHOOK = "ask the owner of that policy", "ask the owner of that webhook"
_BY_WORDS = (
    (re.compile(r"exceeded quota: |failed quota: |insufficient quota to match "), "raise that quota, or free some"),
    (re.compile(r"because it is being terminated"), "the namespace is being deleted"),
    (re.compile(r"ValidatingAdmissionPolicy '[^']*' with binding |violates PodSecurity "), _POLICY),
    (re.compile(r'admission webhook "[^"]*" denied the request'), _WEBHOOK),
    (re.compile(r'failed calling webhook "'), "that webhook does not answer"),
)
"""Words of the server's admission: `plugin/pkg/admission` and `apiserver/pkg/admission` of Kubernetes."""


def refusal(code: int, body: bytes, what: str) -> KubeError:
    said = words_of(body)
    advice = _advice(code, said)
    hint = f"; {advice}" if advice else ""
    return refused(code, said, f"the API server refused to {what} ({code}{hint}): {one_line(said)}")


def refused(code: int, said: str, finding: str, *, advice: str = "") -> KubeError:
    """The error of this code with a sentence of the caller's."""
    return _BY_CODE.get(code, KubeError)(finding, code=code, said=one_line(said), advice=advice)


def words_of(body: bytes) -> str:
    """What the server says in a Status, or in any other answer."""
    try:
        status = decode(StatusObject, body, what="the refusal")
    except ParseError:
        return body[:2000].decode(errors="replace")
    return status.message or status.reason or ""


def lacks_right(code: int, said: str) -> bool:
    """Whether it is a right that somebody known does not have: quotas, policies and webhooks answer 403 too."""
    found = _RIGHT.search(said) if code == _FORBIDDEN else None
    return found is not None and found["user"] != _ANONYMOUS


def _advice(code: int, said: str) -> str:
    if code == 401:
        return _CREDENTIALS
    if code == _FORBIDDEN and (found := _RIGHT.search(said)):
        return _of_right(found["user"], found["verb"])
    return next((advice for words, advice in _BY_WORDS if words.search(said)), "") if code >= 400 else ""


def _of_right(user: str, verb: str) -> str:
    if user == _ANONYMOUS:
        return "no credentials were sent, or none that count"
    if verb == "impersonate":
        return "grant that right, or leave out the impersonation of the kubeconfig"
    return (
        "grant it in the ClusterRole of its service account" if user.startswith(_ACCOUNT) else "grant it to this user"
    )
