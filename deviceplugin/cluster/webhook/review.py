"""AdmissionReview v1: bytes in, bytes out.

In: the body of a POST from the API server, and the known GPUs. Out: a `Reply`. A body without a usable review (another
kind or version, no uid) is a ParseError, which the server answers with HTTP 400. Every other error is an answer with
`allowed: false` and one sentence, also if the review cannot be read beyond its uid: the failurePolicy may be Ignore,
and nobody passes the webhook by nesting something too deep. Requests that do not create a pod pass.
Invariant: nothing is stored or written, so a dry run needs no special case.
"""

import base64
import enum
import re

import msgspec

from deviceplugin.cluster.webhook.mutate import mutate, to_claims
from deviceplugin.cluster.webhook.pod_json import MIRROR, Json, Operation, annotations, difference, read_pod
from deviceplugin.cluster.webhook.resources import KnownGpus
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import ParseError, VcudaError
from deviceplugin.kube.structs import decode_strict

API_VERSION = "admission.k8s.io/v1"
_KIND = "AdmissionReview"
_MOST_WARNINGS = 8
_LONGEST_WARNING = 240


class _Resource(msgspec.Struct):
    group: str = ""
    resource: str = ""


class _User(msgspec.Struct):
    username: str = ""
    groups: list[str] | None = None

    @property
    def is_kubelet(self) -> bool:
        return self.username.startswith("system:node:") and "system:nodes" in (self.groups or ())


class ReviewRequest(msgspec.Struct, rename="camel"):
    """What is read of a request; the object is read when it concerns us."""

    uid: str
    resource: _Resource = msgspec.field(default_factory=_Resource)
    sub_resource: str | None = None
    operation: str = ""
    namespace: str | None = None
    user_info: _User = msgspec.field(default_factory=_User)
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: ReviewRequest | None = None


class _Place(msgspec.Struct):
    namespace: str | None = None


class _Placed(msgspec.Struct):
    request: _Place | None = None


_PLACED = msgspec.json.Decoder(_Placed)
_UID = re.compile(
    rb'\{"kind":"AdmissionReview","apiVersion":"admission\.k8s\.io/v1","request":\{"uid":"(?P<uid>[0-9a-f-]{36})",'
)
"""As the API server begins every review."""


class Outcome(enum.Enum):
    """The result of a review; the values are labels of a metric."""

    PASSED = "passed"
    CHANGED = "changed"
    DENIED = "denied"


class Reply(msgspec.Struct, frozen=True):
    """A review as the API server gets it, and its result."""

    body: bytes
    outcome: Outcome


class AdmissionWebhook(msgspec.Struct, frozen=True):
    """The webhook for one set of settings."""

    settings: WebhookSettings

    def answer(self, body: bytes, known: KnownGpus) -> Reply:
        try:
            review = read_review(body)
        except ParseError as error:
            return refused(body, error)
        return self.reply(review, known)

    def reply(self, request: ReviewRequest, known: KnownGpus) -> Reply:
        if not self._concerns(request):
            return _allowed(request.uid, (), ())
        try:
            pod = read_pod(request.object)
            if request.user_info.is_kubelet and MIRROR in annotations(pod):
                return _allowed(request.uid, (), ())  # the mirror of a static pod, which kubelet runs already
            mutation = mutate(pod, self.settings, known)
            warnings = (*mutation.warnings, *validate(mutation.pod, self.settings, known))
            if self.settings.claims:
                warnings += to_claims(mutation.pod, self.settings)
            return _allowed(request.uid, tuple(difference(pod, mutation.pod)), warnings)
        except ParseError as error:
            return _denied(request.uid, 400, error)
        except VcudaError as error:
            return _denied(request.uid, 403, error)

    def _concerns(self, request: ReviewRequest) -> bool:
        resource = request.resource
        is_new_pod = (resource.group, resource.resource, request.sub_resource or "") == ("", "pods", "")
        return is_new_pod and request.operation == "CREATE"


def namespace_of(body: bytes) -> str:
    """Empty if it cannot be read. Two milliseconds for 1 MiB as the API server sends it, whatever a pod says."""
    try:
        review = _PLACED.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
    return (review.request and review.request.namespace) or ""


def refused(body: bytes, error: ParseError) -> Reply:
    """Denies what the API server sent and `read_review` cannot read; raises the error for what others sent."""
    found = _UID.match(body)
    if found is None:
        raise error
    return _denied(found["uid"].decode(), 400, error)


def read_review(body: bytes) -> ReviewRequest:
    """Raises ParseError."""
    review = decode_strict(_Review, body, what="the admission review")
    if review.kind != _KIND or review.api_version != API_VERSION:
        raise ParseError(
            f"the admission review is {ascii(review.api_version)[:60]} {ascii(review.kind)[:60]}; send "
            f"{API_VERSION} {_KIND} (admissionReviewVersions: [v1])"
        )
    if review.request is None or not review.request.uid:
        raise ParseError("the admission review has no request with a uid, so it cannot be answered")
    return review.request


def _allowed(uid: str, patch: tuple[Operation, ...], warnings: tuple[str, ...]) -> Reply:
    response: Json = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = [warning[:_LONGEST_WARNING] for warning in warnings[:_MOST_WARNINGS]]
    return Reply(_written(response), Outcome.CHANGED if patch else Outcome.PASSED)


def _denied(uid: str, code: int, error: VcudaError) -> Reply:
    status = {"code": code, "reason": "BadRequest" if code == 400 else "Forbidden", "message": error.message}
    return Reply(_written({"uid": uid, "allowed": False, "status": status}), Outcome.DENIED)


def _written(response: Json) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": _KIND, "response": response})
