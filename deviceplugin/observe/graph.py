"""`/graph` as text and, for programs, as JSON: the topology tree with its GPUs, their usage, and who holds them.

In: a picture. Out: `Graph`, whose fields are the document; lines of at most 100 columns, in box characters or plain
ASCII. Of the lines each ancestor shows how many GPUs
below it are free, as placement counts them; each GPU has one bar for cores and one for memory, and its owners below it.
A bar is empty only for nothing and full only when all is taken, so a single held core is visible. GPUs are named by
their minor, as in events and annotations, and by nvidia-smi's index where the two differ.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from deviceplugin.ledger.grant import Grant
from deviceplugin.model.allocation import ContainerRole, GpuShare
from deviceplugin.model.gpu import ComputeMode, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import UNKNOWN_DISTANCE, Level, TopologyNode
from deviceplugin.model.units import CORES_PER_GPU, memory_of, memory_text
from deviceplugin.observe.glyphs import BOXES, Glyphs
from deviceplugin.observe.node_view import NodePicture
from deviceplugin.observe.usage import GpuUsage, gpu_usage

WIDTH = 100
_BAR = 10
_WIDE_BAR = 20
_MEANINGS = {
    Level.NVLINK: "joined by NVLink",
    Level.INTERNAL: "one board",
    Level.PIX: "one PCIe switch",
    Level.PXB: "several PCIe switches",
    Level.PHB: "one PCIe host bridge",
    Level.NODE: "one NUMA node",
    Level.SYS: "between NUMA nodes",
}


def draw(picture: NodePicture, glyphs: Glyphs = BOXES) -> str:
    """The whole picture, ending with a newline."""
    if picture.inventory is None or not picture.gpus:
        why = "this node has no GPU" if picture.inventory else "the driver has not answered yet"
        return f"{glyphs.clip(picture.node, 40)}: {why}\n"
    drawing = _Drawing(picture, picture.inventory, glyphs)
    lines = [*drawing.head(), "", *drawing.tree(), *drawing.orphans(), *drawing.legend()]
    return "".join(f"{glyphs.clip(line.rstrip(), WIDTH)}\n" for line in lines)


class _Row(msgspec.Struct, frozen=True):
    """A line of the tree before the columns are aligned: an ancestor, a GPU or an owner."""

    prefix: str
    name: str
    gpu: Gpu | None = None
    rest: str = ""


class _Drawing:
    """One picture on its way to text."""

    def __init__(self, picture: NodePicture, inventory: Inventory, glyphs: Glyphs) -> None:
        self._picture = picture
        self._inventory = inventory
        self._glyphs = glyphs
        self._by_minor = {gpu.minor: gpu for gpu in inventory.gpus}
        self._mixed = len({gpu.model for gpu in inventory.gpus}) > 1
        self._root = inventory.topology.tree
        self._digits = max(len(self._memory(gpu)) for gpu in inventory.gpus)

    def head(self) -> Iterator[str]:
        gpus, driver = self._inventory.gpus, self._inventory.driver
        models = Counter(gpu.model for gpu in gpus)
        named = ", ".join(f"{count} {self._glyphs.times} {model}" for model, count in models.items())
        cuda = ".".join(map(str, driver.cuda))
        tail = self._joined("", f"driver {driver.version}", f"CUDA {cuda}")
        node = self._glyphs.clip(self._picture.node, 40)
        yield self._joined(node, self._glyphs.clip(named, WIDTH - len(node) - len(tail) - 5)) + tail
        cores = sum(self._picture.taken_of(gpu.uuid).cores for gpu in gpus)
        blocks = sum(self._picture.taken_of(gpu.uuid).blocks for gpu in gpus)
        all_cores, all_blocks = CORES_PER_GPU * len(gpus), sum(gpu.blocks for gpu in gpus)
        yield (
            f"cores  {self._glyphs.bar(cores, all_cores, _WIDE_BAR)} {cores}/{all_cores}   "
            f"memory {self._glyphs.bar(blocks, all_blocks, _WIDE_BAR)} {memory_of(blocks, all_blocks, '/')}"
        )

    def tree(self) -> Iterator[str]:
        rows = list(self._rows(self._root, "", "", numa_known=False))
        width = max(len(row.prefix) + len(row.name) for row in rows if row.gpu)
        yield f"{'':{width}}  {'cores':{_BAR + 4}}  memory"
        for row in rows:
            yield self._gpu_line(row, row.gpu, width) if row.gpu else row.prefix + row.name + row.rest

    def orphans(self) -> Iterator[str]:
        for grant in self._picture.orphans:
            gone = [uuid for uuid in sorted(grant.allocation.uuids) if self._inventory.gpu(uuid) is None]
            yield f"{self._glyphs.mark} {', '.join(gone)} is gone and still allocated to {self._owner(grant)}"

    def legend(self) -> Iterator[str]:
        levels = sorted({node.level for node in self._root.walk() if node.level is not None})
        if levels:
            yield ""
            yield self._joined(*(f"{level.name} {_MEANINGS[level]}" for level in levels))

    def _rows(self, node: TopologyNode, first: str, further: str, *, numa_known: bool) -> Iterator[_Row]:
        """`first` stands before the node itself, `further` before what hangs on it."""
        if node.is_leaf:
            yield from self._leaf_rows(self._by_minor[node.minors[0]], first, further)
            return
        if len(node.children) == 1:  # a node with one GPU has nothing to join
            yield from self._rows(node.children[0], first, further, numa_known=numa_known)
            return
        numa = "" if numa_known else self._numa(node)
        yield _Row(first, node.level.name if node.level else "no common ancestor", rest=self._free_below(node) + numa)
        for number, child in enumerate(node.children):
            branch, below = self._glyphs.branch(last=number == len(node.children) - 1)
            yield from self._rows(child, further + branch, further + below, numa_known=numa_known or bool(numa))

    def _leaf_rows(self, gpu: Gpu, first: str, further: str) -> Iterator[_Row]:
        index = f" (index {gpu.index})" if gpu.index != gpu.minor else ""
        yield _Row(first, f"GPU {gpu.minor}{index}", gpu)
        grants = self._picture.grants_on(gpu.uuid)
        for number, grant in enumerate(grants if len(grants) > 1 else ()):
            branch, _ = self._glyphs.branch(last=number == len(grants) - 1)
            yield _Row(further + branch, self._share(grant, gpu.uuid))

    def _gpu_line(self, row: _Row, gpu: Gpu, width: int) -> str:
        taken = self._picture.taken_of(gpu.uuid)
        name = f"{row.prefix}{row.name}".ljust(width)
        cores = f"{self._glyphs.bar(taken.cores, CORES_PER_GPU, _BAR)} {taken.cores:>3}"
        memory = f"{self._glyphs.bar(taken.blocks, gpu.blocks, _BAR)} {self._memory(gpu):>{self._digits}}"
        return f"{name}  {cores}  {memory}  {self._joined(*self._notes(gpu))}"

    def _memory(self, gpu: Gpu) -> str:
        return memory_of(self._picture.taken_of(gpu.uuid).blocks, gpu.blocks, "/")

    def _notes(self, gpu: Gpu) -> Iterator[str]:
        health, sample = self._inventory.health_of(gpu.uuid), self._picture.samples.get(gpu.uuid)
        grants = self._picture.grants_on(gpu.uuid)
        if not health.healthy:
            yield f"{self._glyphs.mark} unavailable: {health.reason or 'no reason given'}"
        if gpu.mig_enabled or gpu.compute_mode is ComputeMode.PROHIBITED:
            yield f"{self._glyphs.mark} unavailable: {'MIG mode' if gpu.mig_enabled else 'compute mode prohibited'}"
        if gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS:
            yield "compute mode exclusive, allocated whole only"
        if gpu.uuid in self._picture.cordoned:
            yield f"{self._glyphs.mark} cordoned"
        if gpu.uuid in self._picture.repairs_pending:
            yield f"{self._glyphs.mark} reset it when it is free: a memory repair is pending"
        if len(grants) == 1:
            yield self._owner(grants[0])
        if sample and sample.utilization_percent:
            yield f"{sample.utilization_percent}% busy"
        if self._mixed:
            yield gpu.model

    def _share(self, grant: Grant, uuid: GpuUuid) -> str:
        share = _share_on(grant, uuid)
        return f"{share.cores:>3} cores  {memory_text(share.blocks):>9}  {self._owner(grant)}"

    def _owner(self, grant: Grant) -> str:
        role = grant.allocation.role
        remarks = [*([] if role is ContainerRole.APP else [role.value]), *([] if grant.proved else ["unverified"])]
        return f"{grant.allocation.owner} ({', '.join(remarks)})" if remarks else str(grant.allocation.owner)

    def _free_below(self, node: TopologyNode) -> str:
        gpus = (self._by_minor[minor] for minor in node.minors)
        free = sum(self._picture.is_available(gpu) and not self._picture.grants_on(gpu.uuid) for gpu in gpus)
        return f"  {len(node.minors)} GPUs, {free} free"

    def _numa(self, node: TopologyNode) -> str:
        """The NUMA node, at the highest ancestor whose GPUs all belong to it."""
        numas = {self._by_minor[minor].numa for minor in node.minors}
        return f", NUMA node {numas.pop()}" if len(numas) == 1 and None not in numas else ""

    def _joined(self, *parts: str) -> str:
        return f" {self._glyphs.dot} ".join(parts)


def _share_on(grant: Grant, uuid: GpuUuid) -> GpuShare:
    return next(share for share in grant.allocation.shares if share.uuid == uuid)


VERSION = 1


class Owner(msgspec.Struct, frozen=True):
    """A container that holds a part of the GPU on whose leaf it stands."""

    namespace: str
    pod: str
    container: str
    cores: int
    blocks: int


class GraphNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """An ancestor with its children, or a GPU; `minors` are all GPUs below it.

    `level` is that of `nvidia-smi topo -m`, null if nothing joins the children; `distance` is what the
    link evaluator adds up.
    """

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
    owner, share = grant.allocation.owner, _share_on(grant, uuid)
    return Owner(owner.pod.namespace, owner.pod.name, owner.name, share.cores, share.blocks)
