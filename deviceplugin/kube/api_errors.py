"""What the API server's error answers mean.

In: the code and the body of an answer, or the Status inside a watch. Out: one of our errors. Not here: answers that
never came (`transport`). Nothing of HTTP is imported, so that reading objects from a file does not need it.
"""

from deviceplugin.errors import KubeConflictError, KubeError, KubeGoneError, KubeNotFoundError, ParseError, one_line
from deviceplugin.kube.structs import StatusObject, decode

TOO_LARGE = 413
_BY_CODE: dict[int, type[KubeError]] = {404: KubeNotFoundError, 409: KubeConflictError, 410: KubeGoneError}
_HINTS = {
    401: "; its credentials are missing or have expired",
    403: "; grant it in the ClusterRole of its service account",
}


def refusal(code: int, body: bytes, *, what: str) -> KubeError:
    try:
        status = decode(StatusObject, body, what="the refusal")
        said = status.message or status.reason or ""
    except ParseError:
        said = body[:2000].decode(errors="replace")
    kind = _BY_CODE.get(code, KubeError)
    return kind(f"the API server refused to {what} ({code}{_HINTS.get(code, '')}): {one_line(said)}", code=code)
