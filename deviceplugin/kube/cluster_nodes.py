"""The nodes of the cluster as the scheduler watches them.

In: JSON of the API server. Out: `cluster_nodes`, a collection of nodes as `ClusterNode` by name. A heartbeat of kubelet
gives an equal value, so subscribers do not see it.
"""

from collections.abc import Mapping, Sequence

from deviceplugin.errors import ParseError
from deviceplugin.kube.collection import Collection, reader
from deviceplugin.kube.pod_resources import node_offers
from deviceplugin.kube.quantity import parse_quantity
from deviceplugin.kube.structs import ClusterNodeObject, Condition, NodeSpec, NodeStatus
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.cluster_node import ClusterNode, cordon_words
from deviceplugin.model.units import ResourceNames

_HAMI_CORDON = "hami.io/device-cordon"


def cluster_nodes(names: ResourceNames = ResourceNames(), *, only: str = "") -> Collection[str, ClusterNode]:
    """All nodes, because a node may get GPUs at any time; or one, selected by the API server, as kubelet does."""
    what = f"node {only}" if only else "nodes of the cluster"
    return Collection(
        what=what,
        path="/api/v1/nodes",
        query={"fieldSelector": f"metadata.name={only}"} if only else {},
        read=reader(ClusterNodeObject, lambda item: cluster_node(item, names), what=what),
        key=lambda node: node.name,
        identity=lambda node: node.uid,
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
        ready=_is_ready(status.conditions or ()),
        deleting=bool(meta.deletion_timestamp),
        cores=_count(allocatable, names.core),
        blocks=_count(allocatable, names.memory),
        allocatable=node_offers(allocatable),
        discouraged=any(each.effect == "PreferNoSchedule" for each in spec.taints or ()),
    )


def _is_ready(conditions: Sequence[Condition]) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def _count(allocatable: Mapping[str, str | int], name: str) -> int:
    """A quantity that cannot be read counts as 0."""
    try:
        return max(0, parse_quantity(allocatable.get(name, 0)))
    except ParseError:
        return 0
