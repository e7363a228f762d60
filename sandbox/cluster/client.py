"""A thin client of the API server: JSON in, JSON out.

In: the server's address and one identity (a client certificate or a token). Out: decoded objects, or `ApiError`.
Not here: waiting, and what the objects mean (`pods`). Invariant: every call has a time limit.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import urllib3

from sandbox.cluster.certificates import KeyPair

JsonObject = dict[str, Any]
MOST_IDLE = 8  # connections kept: hollow nodes call from several threads


class ApiError(Exception):
    """The server answered, and not with what was asked for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Client:
    """Calls to one server as one identity."""

    server: str
    pool: urllib3.PoolManager
    headers: dict[str, str]

    @classmethod
    def by_certificate(cls, server: str, ca: Path, pair: KeyPair) -> Self:
        pool = urllib3.PoolManager(
            maxsize=MOST_IDLE, ca_certs=str(ca), cert_file=str(pair.certificate), key_file=str(pair.key)
        )
        return cls(server, pool, {})

    @classmethod
    def by_token(cls, server: str, ca: Path, token: str) -> Self:
        return cls(server, urllib3.PoolManager(ca_certs=str(ca)), {"Authorization": f"Bearer {token}"})

    def close(self) -> None:
        self.pool.clear()

    def text(self, method: str, path: str, *, body: object = None, content_type: str = "application/json") -> str:
        reply = self.pool.request(
            method,
            self.server + path,
            body=None if body is None else json.dumps(body).encode(),
            headers={**self.headers, "Content-Type": content_type, "Accept": "application/json, */*"},
            timeout=urllib3.Timeout(30),
            retries=urllib3.Retry(2, connect=0, status=0, redirect=0),
        )
        words = reply.data.decode(errors="replace")
        if reply.status >= 300:
            raise ApiError(reply.status, _message(words))
        return words

    def get(self, path: str) -> JsonObject:
        return _object(self.text("GET", path))

    def post(self, path: str, body: JsonObject) -> JsonObject:
        return _object(self.text("POST", path, body=body))

    def merge(self, path: str, body: JsonObject) -> JsonObject:
        return _object(self.text("PATCH", path, body=body, content_type="application/merge-patch+json"))

    def delete(self, path: str) -> JsonObject:
        return _object(self.text("DELETE", path))

    def ready(self, path: str = "/readyz") -> bool:
        try:
            return bool(self.text("GET", path))
        except (ApiError, urllib3.exceptions.HTTPError):
            return False


def _object(words: str) -> JsonObject:
    decoded = json.loads(words)
    if not isinstance(decoded, dict):
        raise ApiError(200, f"expected an object, got {words[:200]}")
    return decoded


def _message(words: str) -> str:
    try:
        return str(_object(words).get("message", words))
    except (ValueError, ApiError):
        return words[:500]
