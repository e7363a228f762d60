"""Secrets as values.

In: JSON of the API server. Out: `Secret`; bodies that create or change one. A repr never contains values, because it
may end in a log.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.errors import ParseError
from deviceplugin.kube.structs import Object, decode


class SecretObject(Object):
    """A Secret; values are base64."""

    data: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret; `version` is empty before it is created."""

    namespace: str
    name: str
    data: Mapping[str, bytes] = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Written when it is created, and not read."""

    def created_as(self) -> dict[str, object]:
        names = {"name": self.name, "namespace": self.namespace}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**names, "labels": dict(self.labels), "annotations": dict(self.annotations)},
            "type": "Opaque",
            "data": {key: _base64(value) for key, value in self.data.items()},
        }

    def changed_to(self, data: Mapping[str, bytes | None]) -> dict[str, object]:
        """A merge patch that fails if the secret has changed since it was read."""
        values = {key: None if value is None else _base64(value) for key, value in data.items()}
        return {"metadata": {"resourceVersion": self.version}, "data": values}


def read_secret(body: bytes) -> Secret:
    found = decode(SecretObject, body, what="the secret")
    meta = found.metadata
    try:
        data = {key: base64.b64decode(text, validate=True) for key, text in (found.data or {}).items()}
    except binascii.Error:
        raise ParseError(f"secret {meta.namespace}/{meta.name} contains data that is not base64") from None
    return Secret(meta.namespace, meta.name, data, meta.labels or {}, meta.resource_version)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
