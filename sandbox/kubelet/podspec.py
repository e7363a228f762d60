"""A pod as kubelet reads it: which containers, in which order, with which limits.

In: the API object as JSON. Out: frozen values; `raw` keeps the object for `GET /pods`. Not here: anything that
changes. Invariant: `containers` is kubelet's admission order, init containers (sidecars among them) before app
containers.
"""

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sandbox.kubelet.options import Json

_SUFFIXES = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(1 << 10),
    "Mi": Decimal(1 << 20),
    "Gi": Decimal(1 << 30),
    "Ti": Decimal(1 << 40),
}


class Role(enum.Enum):
    """When in the pod's life a container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Container:
    """One container; `limits` holds extended resources only."""

    name: str
    role: Role
    limits: Mapping[str, int]
    cpu_milli: int
    command: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; only `uid` names it."""

    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]
    created: str
    deleting: bool
    phase: str
    restart_policy: str
    sysctls: tuple[str, ...]
    raw: Json

    def of_role(self, *roles: Role) -> tuple[Container, ...]:
        return tuple(container for container in self.containers if container.role in roles)

    def container(self, name: str) -> Container:
        return next(container for container in self.containers if container.name == name)

    @property
    def terminal(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def parse_pod(raw: Json) -> Pod:
    """Reads an API object; a missing UID, namespace or phase is filled in as the API server would."""
    metadata = raw.setdefault("metadata", {})
    metadata.setdefault("uid", str(uuid.uuid4()))
    metadata.setdefault("namespace", "default")
    status = raw.setdefault("status", {})
    status.setdefault("phase", "Pending")
    spec = raw["spec"]
    init = tuple(_container(item, _init_role(item)) for item in spec.get("initContainers", ()))
    app = tuple(_container(item, Role.APP) for item in spec["containers"])
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        containers=init + app,
        created=metadata.get("creationTimestamp", ""),
        deleting=metadata.get("deletionTimestamp") is not None,
        phase=status["phase"],
        restart_policy=spec.get("restartPolicy", "Always"),
        sysctls=tuple(item["name"] for item in spec.get("securityContext", {}).get("sysctls", ())),
        raw=raw,
    )


def parse_quantity(text: str | int) -> Decimal:
    """A Kubernetes quantity in its base unit."""
    value = str(text)
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if value.endswith(suffix):
            return Decimal(value.removesuffix(suffix)) * _SUFFIXES[suffix]
    return Decimal(value)


def _init_role(item: Mapping[str, Any]) -> Role:
    return Role.SIDECAR if item.get("restartPolicy") == "Always" else Role.INIT


def _container(item: Mapping[str, Any], role: Role) -> Container:
    resources = item.get("resources", {})
    limits = resources.get("limits", {})
    cpu = resources.get("requests", {}).get("cpu", limits.get("cpu", 0))
    return Container(
        name=item["name"],
        role=role,
        limits={name: int(parse_quantity(value)) for name, value in limits.items() if "/" in name},
        cpu_milli=int(parse_quantity(cpu) * 1000),
        command=(*item.get("command", ()), *item.get("args", ())),
        env={entry["name"]: entry.get("value", "") for entry in item.get("env", ())},
    )
