"""`/graph` as JSON: the same tree as the text, for programs.

In: a picture. Out: `Graph`, whose fields are the document. A node is an ancestor (with `children`) or a GPU (with
`gpu`); `level` is that of `nvidia-smi topo -m`, null if nothing joins the children. `distance` is what the link
evaluator adds up.
"""

import msgspec

from deviceplugin.ledger.grant import Grant
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.topology import UNKNOWN_DISTANCE, TopologyNode
from deviceplugin.observe.graph import draw
from deviceplugin.observe.node_view import NodePicture
from deviceplugin.observe.usage import GpuUsage, gpu_usage

VERSION = 1


class Owner(msgspec.Struct, frozen=True):
    """A container that holds a part of the GPU on whose leaf it stands."""

    namespace: str
    pod: str
    container: str
    cores: int
    blocks: int


class GraphNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """An ancestor or a GPU; `minors` are all GPUs below it."""

    minors: tuple[int, ...]
    level: str | None = None
    distance: int | None = None
    children: tuple["GraphNode", ...] = ()
    gpu: GpuUsage | None = None
    owners: tuple[Owner, ...] = ()


class Graph(msgspec.Struct, frozen=True):
    """The document; `tree` is null until the driver has answered. `graph` is the text, as in gpu-manager's answer."""

    version: int
    node: str
    driver: str
    cuda: str
    tree: GraphNode | None
    graph: str


def graph_of(picture: NodePicture) -> Graph:
    inventory = picture.inventory
    if inventory is None:
        return Graph(version=VERSION, node=picture.node, driver="", cuda="", tree=None, graph=draw(picture))
    driver = inventory.driver
    tree = _node(picture, inventory, inventory.topology.tree) if inventory.gpus else None
    cuda = ".".join(map(str, driver.cuda))
    return Graph(version=VERSION, node=picture.node, driver=driver.version, cuda=cuda, tree=tree, graph=draw(picture))


def _node(picture: NodePicture, inventory: Inventory, node: TopologyNode) -> GraphNode:
    if node.is_leaf:
        gpu = next(gpu for gpu in inventory.gpus if gpu.minor == node.minors[0])
        owners = tuple(_owner(grant, gpu.uuid) for grant in picture.grants_on(gpu.uuid))
        return GraphNode(minors=node.minors, gpu=gpu_usage(picture, inventory, gpu), owners=owners)
    return GraphNode(
        minors=node.minors,
        level=node.level.name if node.level else None,
        distance=int(node.level) if node.level else UNKNOWN_DISTANCE,
        children=tuple(_node(picture, inventory, child) for child in node.children),
    )


def _owner(grant: Grant, uuid: GpuUuid) -> Owner:
    owner = grant.allocation.owner
    share = next(share for share in grant.allocation.shares if share.uuid == uuid)
    return Owner(owner.pod.namespace, owner.pod.name, owner.name, share.cores, share.blocks)
