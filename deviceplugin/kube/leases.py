"""Leases of coordination.k8s.io as values, and the holder of a lease by the local clock.

In: JSON of the API server. Out: `Lease`; bodies that create or change one; `LeaseView`, which says whether a lease is
valid without trusting the clock of another machine: a term counts from the moment at which it was first seen. Times
inside a lease are for users.
"""

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from deviceplugin.kube.structs import Object, decode
from deviceplugin.kube.transport import group_path

GROUP = "coordination.k8s.io/v1"


class Term(msgspec.Struct, frozen=True):
    """spec of a lease: the leader, the seconds from each renewal, and since when. No holder: the lease was released."""

    holder: str | None = msgspec.field(default=None, name="holderIdentity")
    seconds: int | None = msgspec.field(default=None, name="leaseDurationSeconds")
    acquired: str | None = msgspec.field(default=None, name="acquireTime")
    renewed: str | None = msgspec.field(default=None, name="renewTime")
    transitions: int | None = msgspec.field(default=0, name="leaseTransitions")


class LeaseObject(Object):
    """A lease."""

    spec: Term | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease with its term; `version` is empty before it is created."""

    namespace: str
    name: str
    term: Term
    version: str = ""

    def created_as(self) -> dict[str, object]:
        meta = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": GROUP, "kind": "Lease", "metadata": meta, "spec": self.term}

    def changed_to(self) -> dict[str, object]:
        """A merge patch that fails if the lease has changed since it was read."""
        return {"metadata": {"resourceVersion": self.version}, "spec": self.term}


class LeaseView:
    """What was seen of one lease, by the local monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._term = Term()
        self._seen = clock()

    def see(self, term: Term) -> None:
        """Any change of the term shows that the holder is alive; a new version alone does not."""
        if term != self._term:
            self._term, self._seen = term, self._clock()

    @property
    def holder(self) -> str:
        """The current leader; empty if the lease has expired or was released."""
        is_valid = self._clock() < self._seen + (self._term.seconds or 0)
        return (self._term.holder or "") if is_valid else ""


def lease_path(namespace: str, *name: str) -> str:
    return group_path(GROUP, "namespaces", namespace, "leases", *name)


def read_lease(body: bytes) -> Lease:
    found = decode(LeaseObject, body, what="the lease")
    meta = found.metadata
    return Lease(meta.namespace, meta.name, found.spec or Term(), meta.resource_version)


def micro_time(moment: dt.datetime) -> str:
    """With exactly six digits after the second: the API server refuses any other form in a lease."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
