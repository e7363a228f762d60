"""What is special about Secrets: base64, write-only text, types and size.

In: a Secret as JSON, and the one that it replaces. Out: the same, changed in place, or an `ApiError`.
"""

import base64
import binascii

from sandbox.apiserver.status import ApiError, JsonObject, invalid

_MOST_BYTES = 1 << 20
_REQUIRED = {"kubernetes.io/tls": ("tls.crt", "tls.key")}


def admit(new: JsonObject, old: JsonObject | None) -> None:
    data = new["data"] = {**(new.get("data") or {})}
    for key, text in (new.pop("stringData", None) or {}).items():
        data[key] = base64.b64encode(text.encode()).decode()
    size = sum(len(_bytes(text)) for text in data.values())
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


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error as error:
        raise ApiError(400, f"Secret cannot be handled as a Secret: illegal base64 data: {error}") from None
