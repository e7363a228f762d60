"""Refusals as the API server words them: an HTTP code and a `Status` object.

In: what was wrong. Out: an `ApiError`, which `http` turns into an answer and `watch` into an ERROR line.
"""

from typing import Any

JsonObject = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """The server's refusal of one request."""

    def __init__(self, code: int, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.status = status(code, message, reason=reason)


def status(code: int, message: str, *, reason: str = "") -> JsonObject:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS.get(code, "Unknown"),
        "code": code,
    }


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> ApiError:
    return ApiError(409, f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> ApiError:
    return ApiError(422, f'{kind} "{name}" is invalid: {why}')


def expired(version: int, oldest: int) -> ApiError:
    return ApiError(410, f"too old resource version: {version} ({oldest})")
