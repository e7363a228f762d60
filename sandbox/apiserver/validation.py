"""What the API server checks and fills in before it stores a Secret, a Lease, a claim template or a webhook.

In: an object as JSON, and the one that it replaces. Out: the same, changed in place, or an `ApiError`. Not here: pods
(`pods`), and who may hold a Lease: candidates agree on that by the version that they replace.
Limits and names are those of Kubernetes 1.36: staging/src/k8s.io/api/resource/v1/types.go, and
staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go and pkg/util/validation/validation.go.
"""

import base64
import binascii
import re

from sandbox.apiserver.status import ApiError, JsonObject, invalid

_MOST_BYTES = 1 << 20
_MOST_ANNOTATIONS = 256 << 10  # TotalAnnotationSizeLimitB: names and values of all
_LONGEST_SELECTOR = 10 << 10  # CELSelectorExpressionMaxLength
_MOST_REQUESTS = 32  # DeviceRequestsMaxSize
_MOST_SELECTORS = 32  # DeviceSelectorsMaxSize
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SURROGATE = re.compile(r"(?<!\\)(\\\\)*\\u[dD][89a-fA-F]")
_REQUIRED = {"kubernetes.io/tls": ("tls.crt", "tls.key")}


def check_annotations(kind: str, meta: JsonObject) -> None:
    """Of each object at each write, but for a Binding and a deletion, which change a pod unchecked (seen on 1.36)."""
    written = meta.get("annotations") or {}
    if sum(len(name.encode()) + len(text.encode()) for name, text in written.items()) > _MOST_ANNOTATIONS:
        raise invalid(
            kind,
            meta["name"],
            f"metadata.annotations: Too long: may not be more than {_MOST_ANNOTATIONS} bytes",
        )


def admit_claim_template(new: JsonObject, _old: JsonObject | None) -> None:
    """Requests of `exactly`. Of an expression only escapes are read, as CEL's language definition says them."""
    requests = new["spec"]["spec"]["devices"].get("requests") or []
    name, where = new["metadata"]["name"], "spec.spec.devices.requests"
    if len(requests) > _MOST_REQUESTS:
        raise invalid(
            new["kind"], name, f"{where}: Too many: {len(requests)}: must have at most {_MOST_REQUESTS} items"
        )
    for at, request in enumerate(requests):
        if not DNS_LABEL.fullmatch(str(request.get("name", ""))):
            raise invalid(new["kind"], name, f"{where}[{at}].name: Invalid value: a lowercase RFC 1123 label")
        exactly = request["exactly"]
        if exactly.get("count", 1) < 1:
            raise invalid(new["kind"], name, f"{where}[{at}].exactly.count: Invalid value: must be greater than zero")
        _check_selectors(new, f"{where}[{at}].exactly.selectors", exactly.get("selectors") or [])


def _check_selectors(new: JsonObject, where: str, selectors: list[JsonObject]) -> None:
    if len(selectors) > _MOST_SELECTORS:
        raise invalid(new["kind"], new["metadata"]["name"], f"{where}: Too many: {len(selectors)}")
    for at, each in enumerate(selectors):
        text = str(each["cel"]["expression"])
        here = f"{where}[{at}].cel.expression"
        if len(text.encode()) > _LONGEST_SELECTOR:
            why = f"{here}: Too long: may not be more than {_LONGEST_SELECTOR} bytes"
            raise invalid(new["kind"], new["metadata"]["name"], why)
        if _SURROGATE.search(text):
            raise invalid(new["kind"], new["metadata"]["name"], f"{here}: Invalid value: invalid unicode code point")


def admit_secret(new: JsonObject, old: JsonObject | None) -> None:
    data = new["data"] = {**(new.get("data") or {})}
    for key, text in (new.pop("stringData", None) or {}).items():
        data[key] = base64.b64encode(text.encode()).decode()
    size = sum(len(_decoded(text)) for text in data.values())
    if not data:
        del new["data"]
    new.setdefault("type", "Opaque")
    name = new["metadata"]["name"]
    if size > _MOST_BYTES:
        raise invalid("Secret", name, f"data: Too long: may not be more than {_MOST_BYTES} bytes")
    for key in _REQUIRED.get(new["type"], ()):
        if key not in data:
            raise invalid("Secret", name, f"data[{key}]: Required value")
    if old is not None:
        _check_immutable(new, old)


def _check_immutable(new: JsonObject, old: JsonObject) -> None:
    name = new["metadata"]["name"]
    if new["type"] != old["type"]:
        raise invalid("Secret", name, f'type: Invalid value: "{new["type"]}": field is immutable')
    if old.get("immutable") and (new.get("data") != old.get("data") or not new.get("immutable")):
        raise invalid("Secret", name, "data: Forbidden: field is immutable when `immutable` is set")


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error as error:
        raise ApiError(400, f"Secret cannot be handled as a Secret: illegal base64 data: {error}") from None


# MicroTime is parsed with exactly six digits of a second; a time as other objects have it is refused.
_MICRO_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}(Z|[+-]\d{2}:\d{2})", re.ASCII)


def admit_lease(new: JsonObject, _old: JsonObject | None) -> None:
    spec, name = new.setdefault("spec", {}), new["metadata"]["name"]
    for field in ("acquireTime", "renewTime"):
        text = spec.get(field)
        if text is not None and not _MICRO_TIME.fullmatch(str(text)):
            raise ApiError(400, f'Lease in version "v1" cannot be handled as a Lease: parsing time "{text}"')
    if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
        raise invalid("Lease", name, f"spec.leaseDurationSeconds: Invalid value: {seconds}: must be greater than 0")
    if (count := spec.get("leaseTransitions")) is not None and count < 0:
        raise invalid("Lease", name, f"spec.leaseTransitions: Invalid value: {count}: must be at least 0")


_WEBHOOK_DEFAULTS: JsonObject = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "timeoutSeconds": 10,
}


def admit_webhooks(new: JsonObject, old: JsonObject | None) -> None:
    names = [str(hook.get("name", "")) for hook in new.get("webhooks") or ()]
    if len(set(names)) != len(names):
        raise _wrong_webhook(new, "webhooks: Duplicate value")
    for index, hook in enumerate(new.get("webhooks") or ()):
        hook |= {key: value for key, value in _WEBHOOK_DEFAULTS.items() if key not in hook}
        if new["kind"].startswith("Mutating"):
            hook.setdefault("reinvocationPolicy", "Never")
        _check_webhook(new, f"webhooks[{index}]", hook)
    changed = old is None or old.get("webhooks") != new.get("webhooks")
    new["metadata"]["generation"] = (old["metadata"].get("generation", 0) if old else 0) + changed


def _check_webhook(new: JsonObject, where: str, hook: JsonObject) -> None:
    if str(hook.get("name", "")).count(".") < 2:
        raise _wrong_webhook(new, f"{where}.name: Invalid value: should be a domain with at least three segments")
    if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
        raise _wrong_webhook(new, f"{where}.sideEffects: Required value: must specify one of None, NoneOnDryRun")
    if not hook.get("admissionReviewVersions"):
        raise _wrong_webhook(new, f"{where}.admissionReviewVersions: Required value")
    if not 1 <= hook["timeoutSeconds"] <= 30:
        raise _wrong_webhook(new, f"{where}.timeoutSeconds: Invalid value: must be between 1 and 30 seconds")
    client = hook.get("clientConfig") or {}
    if ("url" in client) is ("service" in client):
        raise _wrong_webhook(new, f"{where}.clientConfig: Required value: exactly one of url or service is required")
    try:  # whether it is a certificate shows only when the webhook is called (seen on 1.36)
        base64.b64decode(client.get("caBundle") or "", validate=True)
    except binascii.Error as error:
        raise ApiError(400, f"{where}.clientConfig.caBundle: illegal base64 data: {error}") from None


def _wrong_webhook(new: JsonObject, why: str) -> Exception:
    return invalid(new["kind"], new["metadata"]["name"], why)
