"""The pods and nodes of the whole cluster as the scheduler watches them.

In: JSON of the API server. Out: `cluster_pods`, a collection by the API server's UID: a `ClusterPod` for each pod that
requests vcuda's resources, or with `claims` a device by a ResourceClaim, a `PlainPod` for each other pod on a node. A
search in the bytes tells them apart, so that of the other pods, which are nearly all, little is parsed. Of what a user
may write at will, names of claims and gates and long texts, a bounded part is kept (see `pods`). The API server leaves
out pods that have ended; a watcher sees this as a deletion. A pod's extended resources and claims never change.

The nodes of the cluster as the scheduler watches them.

In: JSON of the API server. Out: `cluster_nodes`, a collection of nodes as `ClusterNode` by name. A heartbeat of kubelet
gives an equal value, so subscribers do not see it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from deviceplugin.errors import ParseError
from deviceplugin.kube.collection import Collection, ObjectKind, Seen
from deviceplugin.kube.pods import api_pod, node_offers, pod_needs
from deviceplugin.kube.structs import (
    Affinity,
    ClusterNodeObject,
    Condition,
    NodeSpec,
    NodeStatus,
    PodObject,
    PodSpec,
    PodStatus,
    decode,
    parse_quantity,
)
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import MOST_CLAIMS, PodClaim
from deviceplugin.model.node import ClusterNode, cordon_words
from deviceplugin.model.pod import ClusterPod, Gang, PlainPod, ScheduledCondition, gang_of
from deviceplugin.model.preferences import AFFINITIES, SCHEDULE_ANYWAY, SPREAD
from deviceplugin.model.units import ResourceNames

_WHAT = "pods of the cluster"
_DONE = ScheduledCondition(is_true=True)
_LONGEST_MESSAGE = 4096
_LONGEST_REASON = 1024
_MOST_GATES = 64
_CLAIMS = b'"resourceClaims"'
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"

AnyPod = ClusterPod | PlainPod


def cluster_pods(names: ResourceNames = ResourceNames(), *, claims: bool = False) -> Collection[PodUid, AnyPod]:
    sieve = f'"{names.domain}/vcuda-'.encode()

    def read(raw: bytes) -> Seen[AnyPod]:
        item = decode(PodObject, raw, what=_WHAT)
        found = cluster_pod(item, names, claims=claims) if sieve in raw or (claims and _CLAIMS in raw) else None
        is_kept = found is not None and (found.pod.is_gpu or found.has_claims)
        return Seen(item.metadata.resource_version, found if is_kept else _plain(item))

    return Collection(
        what=_WHAT,
        path="/api/v1/pods",
        query={"fieldSelector": _LIVE},
        read=read,
        key=lambda found: found.uid,
        identity=lambda found: found.uid,
    )


def _plain(item: PodObject) -> PlainPod | None:
    """Only a pod on a node takes something of it. Names of nodes are stored once."""
    spec = item.spec
    if spec is None or not spec.node_name:
        return None
    needs = pod_needs(spec, item.status or PodStatus())
    return PlainPod(PodUid(item.metadata.uid), sys.intern(spec.node_name), needs)


def cluster_pod(item: PodObject, names: ResourceNames, *, claims: bool = False) -> ClusterPod:
    spec, status = item.spec or PodSpec(), item.status or PodStatus()
    for each in (*(spec.init_containers or ()), *(spec.containers or ())):
        each.env = None  # only agents need it
    # Without the states of its containers: the scheduler need not hear of their changes.
    said = PodStatus(status.phase, status.reason)
    if claims:
        said.resource_claim_statuses = status.resource_claim_statuses
        said.extended_resource_claim_status = status.extended_resource_claim_status
    return ClusterPod(
        pod=api_pod(PodObject(item.metadata, spec, said), names),
        priority=spec.priority or 0,
        nominated_node=status.nominated_node_name or "",
        gang=_gang(item, spec),
        condition=_scheduled(status.conditions or ()),
        needs=pod_needs(spec, status),
        gates=tuple(sys.intern(each.name) for each in islice(spec.scheduling_gates or (), _MOST_GATES)),
        claims=tuple(_claims(spec, said)) if claims else (),
        whole_gpus=tuple(_whole_gpus(spec, names)) if claims else (),
        soft_rules=_soft_rules(spec),
    )


def _soft_rules(spec: PodSpec) -> tuple[str, ...]:
    """By the names of `model.soft_rules`. Most pods have none."""
    if spec.affinity is None and not spec.topology_spread_constraints:
        return ()
    affinity = spec.affinity or Affinity()
    kinds = zip(AFFINITIES, (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity), strict=True)
    found = [rule for rule, each in kinds if each and each.preferred_during_scheduling_ignored_during_execution]
    if any(each.when_unsatisfiable == SCHEDULE_ANYWAY for each in spec.topology_spread_constraints or ()):
        found.append(SPREAD)
    return tuple(found)


def _claims(spec: PodSpec, status: PodStatus) -> Iterator[PodClaim]:
    """One that is made from a template has its name in the status; so has the one for extended resources."""
    made = {each.name: each.resource_claim_name or "" for each in status.resource_claim_statuses or ()}
    for each in islice(spec.resource_claims or (), MOST_CLAIMS):
        claim = each.resource_claim_name or made.get(each.name, "")
        yield PodClaim(each.name, claim, each.resource_claim_template_name or "")
    if (extended := status.extended_resource_claim_status) is not None:
        yield PodClaim("", extended.resource_claim_name)


def _whole_gpus(spec: PodSpec, names: ResourceNames) -> Iterator[tuple[str, int]]:
    for each in (*(spec.init_containers or ()), *(spec.containers or ())):
        limits = (each.resources.limits if each.resources else None) or {}
        try:
            count = parse_quantity(limits.get(names.whole_gpu, 0))
        except ParseError:
            continue
        if count > 0:
            yield each.name, count


def _gang(item: PodObject, spec: PodSpec) -> Gang | None:
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
    reason = sys.intern((found.reason or "")[:_LONGEST_REASON])
    return ScheduledCondition(is_true=False, reason=reason, text=hash(message), message=kept)


_HAMI_CORDON = "hami.io/device-cordon"


def cluster_nodes(names: ResourceNames = ResourceNames(), *, only: str = "") -> Collection[str, ClusterNode]:
    """All nodes, because a node may get GPUs at any time; or one, selected by the API server, as kubelet does."""
    kind = ObjectKind(
        "v1", "nodes", "Node", "node", ClusterNodeObject, lambda item: cluster_node(item, names), lambda node: node.uid
    )
    return kind.collection(
        f"node {only}" if only else "nodes of the cluster",
        key=lambda node: node.name,
        query={"fieldSelector": f"metadata.name={only}"} if only else {},
    )


def cluster_node(item: ClusterNodeObject, names: ResourceNames) -> ClusterNode:
    meta, spec, status = item.metadata, item.spec or NodeSpec(), item.status or NodeStatus()
    annotations, known = meta.annotations or {}, annotation_names(names.domain)
    allocatable = status.allocatable or {}
    return ClusterNode(
        name=meta.name,
        uid=meta.uid,
        inventory=annotations.get(known.inventory, ""),
        cordon=cordon_words(annotations.get(known.cordon, ""), annotations.get(_HAMI_CORDON, "")),
        close_nvml=annotations.get(known.close_nvml, "false") != "false",
        unschedulable=bool(spec.unschedulable),
        ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        deleting=bool(meta.deletion_timestamp),
        cores=_count(allocatable, names.core),
        blocks=_count(allocatable, names.memory),
        allocatable=node_offers(allocatable),
        discouraged=any(each.effect == "PreferNoSchedule" for each in spec.taints or ()),
    )


def _count(allocatable: Mapping[str, str | int], name: str) -> int:
    """A quantity that cannot be read counts as 0."""
    try:
        return max(0, parse_quantity(allocatable.get(name, 0)))
    except ParseError:
        return 0
