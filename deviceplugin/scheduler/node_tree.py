"""The picture of a node's GPUs, drawn from the scheduler's cache as the agent draws it from its ledger.

In: a node of the cache, and whose names the caller may read. Out: the text of the agent's `/graph`. Containers whose
GPU is not known yet are not in it; a reservation is marked as not proved.
"""

from dataclasses import replace

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.view.rows import Shown
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.model.allocation import Allocation, ContainerRef, PodRef
from deviceplugin.observe.graph_text import draw
from deviceplugin.observe.node_view import NodePicture


def tree_of(info: NodeInfo, shown: Shown) -> str:
    """The lines of the picture."""
    inventory = info.inventory
    cordoned = info.node.cordoned(inventory) if info.node is not None and inventory is not None else frozenset()
    grants = tuple(_grant(hold, one, shown) for hold in info.holds.values() for one in hold.allocations)
    return draw(NodePicture(node=info.name, inventory=inventory, grants=grants, cordoned=cordoned))


def _grant(hold: PodHold, one: Allocation, shown: Shown) -> Grant:
    namespace, name = shown.of(hold.pod)
    pod = PodRef(hold.pod.uid, namespace or "pod", name or hold.pod.uid)
    owner = ContainerRef(pod, one.owner.name)
    return Grant(
        id=GrantId(f"{hold.pod.uid}/{one.owner.name}"),
        allocation=replace(one, owner=owner),
        answered=frozenset(),
        source=Source.APISERVER,
        proved=hold.is_bound,
        created=0.0,
    )
