"""What a Kubernetes event says, as a value and as the API server wants it.

In: a subject, a reason, a message, when and how often. Out: an Event of core/v1 as JSON-able data.
"""

import datetime as dt
import enum
from dataclasses import dataclass

from deviceplugin.errors import VcudaError


class EventReason(enum.Enum):
    """The reasons that appear in `kubectl describe`, each with its event type."""

    ALLOCATED = ("GPUAllocated", "Normal")
    ALLOCATION_FAILED = ("GPUAllocationFailed", "Warning")
    CONFIG_WRITTEN = ("GPUConfigWritten", "Normal")
    UNHEALTHY = ("GPUUnhealthy", "Warning")
    RECOVERED = ("GPURecovered", "Normal")
    LEDGER_REPAIRED = ("GPULedgerRepaired", "Warning")
    START_FAILED = ("GPUStartFailed", "Warning")
    OVER_LIMIT = ("GPUOverLimit", "Warning")

    @property
    def word(self) -> str:
        return self.value[0]

    @classmethod
    def of(cls, error: VcudaError) -> "EventReason":
        """The reason that an error names."""
        return next((reason for reason in cls if reason.word == error.reason), cls.ALLOCATION_FAILED)


@dataclass(frozen=True, slots=True)
class Subject:
    """What the event is about."""

    kind: str
    name: str
    namespace: str
    uid: str

    @property
    def event_namespace(self) -> str:
        """Events about things without a namespace live in `default`."""
        return self.namespace or "default"


@dataclass(frozen=True, slots=True)
class EventKey:
    """Two events with the same key are one event that happened twice."""

    subject: Subject
    reason: EventReason
    message: str


@dataclass(slots=True)
class Occurrences:
    """When the event happened first and last, and how often."""

    first: dt.datetime
    last: dt.datetime
    count: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """Who reports."""

    component: str
    host: str


def event_object(key: EventKey, seen: Occurrences, name: str, *, source: Source) -> dict[str, object]:
    """An Event of core/v1."""
    subject = {"apiVersion": "v1", "kind": key.subject.kind, "name": key.subject.name, "uid": key.subject.uid}
    if key.subject.namespace:
        subject["namespace"] = key.subject.namespace
    word, kind = key.reason.value
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": key.subject.event_namespace},
        "involvedObject": subject,
        "reason": word,
        "message": key.message,
        "type": kind,
        "source": {"component": source.component, "host": source.host},
        "reportingComponent": source.component,
        "reportingInstance": source.host,
        "firstTimestamp": timestamp(seen.first),
        "lastTimestamp": timestamp(seen.last),
        "count": seen.count,
    }


def timestamp(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
