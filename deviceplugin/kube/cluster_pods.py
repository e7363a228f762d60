"""The pods of the whole cluster as the scheduler watches them.

In: JSON of the API server. Out: `cluster_pods`, a collection by the API server's UID: a `ClusterPod` for each pod that
requests vcuda's resources, a `PlainPod` for each other pod on a node. A search in the bytes tells them apart, so that
of the other pods, which are nearly all, little is parsed. The API server leaves out pods that have ended; a watcher
sees this as a deletion. A pod stays of one kind: the API server refuses to change its extended resources.
"""

import sys
from collections.abc import Sequence

from deviceplugin.kube.collection import Collection, Seen
from deviceplugin.kube.pod_resources import pod_needs
from deviceplugin.kube.pods import api_pod
from deviceplugin.kube.structs import (
    ClusterPodObject,
    ClusterPodSpec,
    ClusterPodStatus,
    Condition,
    PodObject,
    PodStatus,
    decode,
)
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod, Gang, PlainPod, ScheduledCondition, gang_of
from deviceplugin.model.units import ResourceNames

_WHAT = "pods of the cluster"
_DONE = ScheduledCondition(is_true=True)
_LONGEST_MESSAGE = 4096
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"

AnyPod = ClusterPod | PlainPod


def cluster_pods(names: ResourceNames = ResourceNames()) -> Collection[PodUid, AnyPod]:
    sieve = f'"{names.domain}/vcuda-'.encode()

    def read(raw: bytes) -> Seen[AnyPod]:
        item = decode(ClusterPodObject, raw, what=_WHAT)
        found = cluster_pod(item, names) if sieve in raw else None
        return Seen(item.metadata.resource_version, found if found is not None and found.pod.is_gpu else _plain(item))

    return Collection(
        what=_WHAT,
        path="/api/v1/pods",
        query={"fieldSelector": _LIVE},
        read=read,
        key=lambda found: found.uid,
        identity=lambda found: found.uid,
    )


def _plain(item: ClusterPodObject) -> PlainPod | None:
    """Only a pod on a node takes something of it. Names of nodes are stored once."""
    spec = item.spec
    if spec is None or not spec.node_name:
        return None
    needs = pod_needs(spec, item.status or ClusterPodStatus())
    return PlainPod(PodUid(item.metadata.uid), sys.intern(spec.node_name), needs)


def cluster_pod(item: ClusterPodObject, names: ResourceNames) -> ClusterPod:
    spec, status = item.spec or ClusterPodSpec(), item.status or ClusterPodStatus()
    return ClusterPod(
        # Without the states of its containers: the scheduler need not hear of their changes.
        pod=api_pod(PodObject(item.metadata, spec, PodStatus(status.phase, status.reason)), names),
        scheduler=spec.scheduler_name or "",
        priority=spec.priority or 0,
        nominated_node=status.nominated_node_name or "",
        gang=_gang(item, spec),
        condition=_scheduled(status.conditions or ()),
        needs=pod_needs(spec, status),
    )


def _gang(item: ClusterPodObject, spec: ClusterPodSpec) -> Gang | None:
    meta, group, workload = item.metadata, spec.scheduling_group, spec.workload_ref
    return gang_of(
        meta.namespace,
        annotations=meta.annotations or {},
        labels=meta.labels or {},
        group=(group.pod_group_name if group else None) or "",
        workload=(workload.name or "", workload.pod_group or "", workload.pod_group_replica_key or "")
        if workload
        else ("", "", ""),
    )


def _scheduled(conditions: Sequence[Condition]) -> ScheduledCondition | None:
    found = next((each for each in conditions if each.type == "PodScheduled"), None)
    if found is None:
        return None
    if found.status == "True":
        return _DONE
    message = found.message or ""
    # Thousands of equal pods may be rejected with the same message.
    kept = sys.intern(message[:_LONGEST_MESSAGE])
    return ScheduledCondition(is_true=False, reason=found.reason or "", text=hash(message), message=kept)
