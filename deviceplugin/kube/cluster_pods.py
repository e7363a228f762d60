"""The pods of the whole cluster that ask for our resources, as the extender follows them.

In: JSON of the API server. Out: `cluster_pods`, a collection of `ClusterPod` by the API server's UID. Pods that ask for
nothing of ours are dropped by a search of their bytes; the server itself leaves out those that have ended, which for a
watcher is their deletion: kubelet says so only when all containers have stopped.
"""

import sys
from collections.abc import Sequence

from deviceplugin.kube.cluster_structs import ClusterPodObject, ClusterPodSpec, ClusterPodStatus, Condition
from deviceplugin.kube.collection import Collection, reader
from deviceplugin.kube.pods import pod_from
from deviceplugin.kube.structs import PodObject, PodStatus
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.cluster_pod import ClusterPod, ScheduledCondition
from deviceplugin.model.gang import Gang, gang_of
from deviceplugin.model.units import ResourceNames

_WHAT = "pods of the cluster"
_DONE = ScheduledCondition(is_true=True)
_LONGEST_MESSAGE = 4096
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def cluster_pods(names: ResourceNames = ResourceNames()) -> Collection[PodUid, ClusterPod]:
    """Those with a container that asks for our resources, whichever scheduler they name."""
    return Collection(
        what=_WHAT,
        path="/api/v1/pods",
        query={"fieldSelector": _LIVE},
        read=reader(
            ClusterPodObject,
            lambda item: cluster_pod(item, names),
            what=_WHAT,
            sieve=f'"{names.domain}/vcuda-'.encode(),
            keeps=lambda found: found.pod.is_gpu,
        ),
        key=lambda found: found.uid,
        identity=lambda found: found.uid,
    )


def cluster_pod(item: ClusterPodObject, names: ResourceNames) -> ClusterPod:
    spec, status = item.spec or ClusterPodSpec(), item.status or ClusterPodStatus()
    return ClusterPod(
        pod=pod_from(PodObject(item.metadata, spec, PodStatus(status.phase, status.reason)), names),
        scheduler=spec.scheduler_name or "",
        priority=spec.priority or 0,
        nominated_node=status.nominated_node_name or "",
        gang=_gang(item, spec),
        condition=_scheduled(status.conditions or ()),
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
    # Pods that ask for the same are refused in the same words, and there may be thousands.
    kept = sys.intern(message[:_LONGEST_MESSAGE])
    return ScheduledCondition(is_true=False, reason=found.reason or "", text=hash(message), message=kept)
