"""What is special about webhook configurations: defaults, what each webhook must say, and their generation.

In: a configuration as JSON, and the one that it replaces. Out: the same, changed in place, or an `ApiError`.
"""

import base64
import binascii

from sandbox.apiserver.status import ApiError, JsonObject, invalid

_DEFAULTS: JsonObject = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "timeoutSeconds": 10,
}


def admit(new: JsonObject, old: JsonObject | None) -> None:
    names = [str(hook.get("name", "")) for hook in new.get("webhooks") or ()]
    if len(set(names)) != len(names):
        raise _wrong(new, "webhooks: Duplicate value")
    for index, hook in enumerate(new.get("webhooks") or ()):
        hook |= {key: value for key, value in _DEFAULTS.items() if key not in hook}
        if new["kind"].startswith("Mutating"):
            hook.setdefault("reinvocationPolicy", "Never")
        _check(new, f"webhooks[{index}]", hook)
    changed = old is None or old.get("webhooks") != new.get("webhooks")
    new["metadata"]["generation"] = (old["metadata"].get("generation", 0) if old else 0) + changed


def _check(new: JsonObject, where: str, hook: JsonObject) -> None:
    if str(hook.get("name", "")).count(".") < 2:
        raise _wrong(new, f"{where}.name: Invalid value: should be a domain with at least three segments")
    if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
        raise _wrong(new, f"{where}.sideEffects: Required value: must specify one of None, NoneOnDryRun")
    if not hook.get("admissionReviewVersions"):
        raise _wrong(new, f"{where}.admissionReviewVersions: Required value")
    if not 1 <= hook["timeoutSeconds"] <= 30:
        raise _wrong(new, f"{where}.timeoutSeconds: Invalid value: must be between 1 and 30 seconds")
    client = hook.get("clientConfig") or {}
    if ("url" in client) is ("service" in client):
        raise _wrong(new, f"{where}.clientConfig: Required value: exactly one of url or service is required")
    try:  # whether it is a certificate shows only when the webhook is called (seen on 1.36)
        base64.b64decode(client.get("caBundle") or "", validate=True)
    except binascii.Error as error:
        raise ApiError(400, f"{where}.clientConfig.caBundle: illegal base64 data: {error}") from None


def _wrong(new: JsonObject, why: str) -> Exception:
    return invalid(new["kind"], new["metadata"]["name"], why)
