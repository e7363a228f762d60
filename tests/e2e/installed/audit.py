"""What the chart's accounts asked of the API server, from its audit log.

In: the cluster. Out: requests as (verb, resource) with who asked and how it was decided. Not here: what they may.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.cluster import Cluster
from sandbox.cluster.control_plane import AUDIT_LOG

TESTS = "python-urllib3"
"""Begins the User-Agent of `sandbox.cluster.client`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `program` is the first word of its User-Agent: both containers of a pod have one account."""

    account: str
    program: str
    verb: str
    group: str
    resource: str
    name: str
    namespace: str
    status: int
    allowed: bool
    said: str = ""

    def __str__(self) -> str:
        return (
            f"{self.account} ({self.program}): {self.verb} {self.resource} {self.namespace}/{self.name}: {self.status}"
        )


def refused(requests: Iterable[Asked]) -> list[Asked]:
    """Those that were refused for good.

    A busy API server learns of a Role after the pod that needs it has started, so one that is allowed later is none.
    In a namespace that is being deleted nobody creates anything.
    """
    last = {(each.account, each.verb, each.resource, each.namespace, each.name): each for each in requests}
    found = (each for each in last.values() if not each.allowed or each.status in (401, 403))
    return [each for each in found if "is being terminated" not in each.said]


def audited(cluster: Cluster) -> int:
    """Bytes of the log until now."""
    return _log(cluster).stat().st_size


def asked(cluster: Cluster, since: int) -> Iterator[Asked]:
    """Everything after so many bytes, by programs that used the two accounts; not what tests try with a token."""
    for line in _log(cluster).read_bytes()[since:].splitlines():
        event = json.loads(line)
        if event.get("userAgent", "").startswith(TESTS):
            continue
        target = event.get("objectRef") or {}
        parts = (target.get("resource", event["requestURI"]), target.get("subresource"))
        yield Asked(
            account=event["user"]["username"].rpartition(":")[2],
            program=event.get("userAgent", "").split("/")[0],
            verb=event["verb"],
            group=target.get("apiGroup", ""),
            resource="/".join(filter(None, parts)),
            name=target.get("name", ""),
            namespace=target.get("namespace", ""),
            status=event.get("responseStatus", {}).get("code", 0),
            allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
            said=event.get("responseStatus", {}).get("message", ""),
        )


def _log(cluster: Cluster) -> Path:
    return cluster.layout.logs / AUDIT_LOG
