"""The checks of the nodes: what their agents wrote about the GPUs, what kubelet offers, and who else offers them.

In: the nodes of the cluster, each reduced to `NodeFacts`, what the slices of all drivers name, and the pods of the
agents. Out: findings that name the first nodes.
"""

import re
from collections.abc import Collection, Iterable, Sequence

import msgspec

from deviceplugin.cli.doctor.findings import CheckResult, count, failed, named, ok, warning
from deviceplugin.errors import ParseError
from deviceplugin.kube.cluster_objects import cluster_node
from deviceplugin.kube.structs import ClusterNodeObject, NodeStatus, parse_quantity
from deviceplugin.model.node import parse_inventory
from deviceplugin.model.units import CORES_PER_GPU, Resource, ResourceNames

_GPU_LABEL = re.compile(r"nvidia\.com/gpu\.present|feature\.node\.kubernetes\.io/pci-(030[02]_)?10de(_\w+)?\.present")
"""Of GPU Feature Discovery, and of Node Feature Discovery with the vendor alone, or with the class before it."""

_GPU_RESOURCE = re.compile(r"[vqp]?gpu([.-].+)?|gpu(mem|cores|mem-percentage)|mig-.+|vcuda-(core|memory)")
"""How plugins name a GPU of NVIDIA, or a part of one: NVIDIA's, HAMi's, Volcano's, Alibaba's, AWS', Tencent's, ours."""

_OTHER_MAKERS = re.compile(
    r"(.*\.)?(amd|intel|huawei|cambricon|hygon|iluvatar|metax-tech|mthreads|enflame|kunlunxin|birentech|vastaitech)\.\w+"
)


class NodeFacts(msgspec.Struct, frozen=True):
    """`expected` and `offered`: cores and blocks, of the available GPUs of the inventory, and allocatable.

    `malformed`: why the inventory cannot be read. `foreign`: resources of other device plugins that are offered.
    `uuids`: of the GPUs of the inventory.
    """

    name: str
    ready: bool
    has_inventory: bool
    malformed: str
    expected: tuple[int, int]
    offered: tuple[int, int]
    foreign: tuple[str, ...]
    labelled: bool
    uuids: frozenset[str]

    @property
    def is_ours(self) -> bool:
        return self.has_inventory or any(self.offered)


def node_facts(item: ClusterNodeObject, names: ResourceNames) -> NodeFacts:
    node = cluster_node(item, names)
    malformed, expected, uuids = "", (0, 0), frozenset[str]()
    if node.inventory:
        try:
            inventory, _ = parse_inventory(node.inventory)
            available = [gpu for gpu in inventory.gpus if inventory.is_available(gpu)]
            expected = (CORES_PER_GPU * len(available), sum(gpu.blocks for gpu in available))
            uuids = frozenset(gpu.uuid for gpu in inventory.gpus)
        except ParseError as error:
            malformed = error.message
    labels = item.metadata.labels or {}
    return NodeFacts(
        name=node.name,
        ready=node.ready,
        has_inventory=bool(node.inventory),
        malformed=malformed,
        expected=expected,
        offered=(node.cores, node.blocks),
        foreign=_foreign((item.status or NodeStatus()).allocatable or {}, names),
        labelled=any(value == "true" and _GPU_LABEL.fullmatch(label) for label, value in labels.items()),
        uuids=uuids,
    )


def _foreign(allocatable: dict[str, str | int], names: ResourceNames) -> tuple[str, ...]:
    own = {names.of(resource) for resource in Resource}
    found = (name for name in allocatable if name not in own and _is_gpu(name))
    return tuple(sorted(name for name in found if _is_offered(allocatable[name])))


def _is_gpu(resource: str) -> bool:
    """Network cards, switches and GPUs behind vfio have names of NVIDIA too, and are no GPUs of this driver."""
    domain, slash, name = resource.partition("/")
    return bool(slash and _GPU_RESOURCE.fullmatch(name) and not _OTHER_MAKERS.fullmatch(domain))


def _is_offered(amount: str | int) -> bool:
    try:
        return parse_quantity(amount) > 0
    except ParseError:
        return False


def inventories(nodes: Sequence[NodeFacts], agents: Collection[str]) -> CheckResult:
    """`agents`: the nodes with a ready agent."""
    malformed = [each for each in nodes if each.malformed]
    if malformed:
        return failed(
            f"the inventory of {count(len(malformed), 'node')} cannot be read, and no GPU pod is placed there: "
            f"{named([each.name for each in malformed])}: {malformed[0].malformed}",
            "agent and scheduler are of versions that do not fit together, or somebody else wrote the annotation: "
            "bring both to one version and delete the agent's pod on that node",
        )
    missing = sorted(each.name for each in nodes if not each.has_inventory and each.name in agents)
    if missing:
        return failed(
            f"{count(len(missing), 'node')} with a ready agent without an inventory: {named(missing)}",
            f"read the agent's log on {missing[0]}, and run vcuda doctor node there",
        )
    stale = sorted(each.name for each in nodes if each.has_inventory and each.name not in agents)
    if stale:
        return warning(
            f"{count(len(stale), 'node')} with an inventory and without a ready agent: {named(stale)}",
            "start the agent there; on a node that is to have none, remove the annotation vcuda-inventory",
        )
    found = [each for each in nodes if each.has_inventory]
    if not found:
        return warning("no node has an inventory of GPUs", "label the GPU nodes as the value gpuNodes says")
    return ok(f"{count(len(found), 'node')} with an inventory that can be read")


def offers(nodes: Sequence[NodeFacts], agents: Collection[str]) -> CheckResult:
    """Where the agent is down kubelet offers nothing; that is a finding of another check."""
    differ = [
        each
        for each in nodes
        if each.has_inventory and not each.malformed and each.name in agents and each.offered != each.expected
    ]
    if differ:
        first = differ[0]
        return warning(
            f"{count(len(differ), 'node')} whose kubelet does not offer what the agent found: "
            f"{named([each.name for each in differ])}; {first.name} offers {_amount(first.offered)} and has "
            f"{_amount(first.expected)} that are available",
            "kubelet follows within seconds; if it lasts, delete the agent's pod on that node, then restart kubelet",
        )
    total = sum(each.offered[0] for each in nodes) // CORES_PER_GPU
    return ok(f"kubelets offer what the agents found: {count(total, 'GPU')}")


def _amount(offer: tuple[int, int]) -> str:
    return f"{offer[0]} cores and {offer[1]} blocks"


def other_plugins(nodes: Sequence[NodeFacts]) -> CheckResult:
    both = [each for each in nodes if each.is_ours and each.foreign]
    if not both:
        return ok("no other device plugin offers GPUs on nodes with an agent")
    resources = sorted({name for each in both for name in each.foreign})
    return failed(
        f"{count(len(both), 'node')} whose GPUs another device plugin offers too, as {named(resources)}: "
        f"{named([each.name for each in both])}; a GPU can be given away twice",
        "keep that device plugin off the nodes with vcuda; NVIDIA's with the GPU operator: "
        "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false",
    )


def other_drivers(nodes: Sequence[NodeFacts], offered: Iterable[tuple[str, str]], own: str) -> CheckResult:
    """`own`: what vcuda's driver is called. `offered`: drivers with the texts in attributes of their devices.

    A slice need not be of one node, so its devices are told by their UUIDs, which are among those texts.
    """
    owners = {uuid: each.name for each in nodes for uuid in each.uuids}
    found = {(driver, owners[text]) for driver, text in offered if driver != own and text in owners}
    if not found:
        return ok("no other device plugin and no other DRA driver offers GPUs of nodes with an agent")
    drivers, names = ({each[part] for each in found} for part in (0, 1))
    return failed(
        f"{count(len(names), 'node')} whose GPUs another driver offers to claims, {named(sorted(drivers))}: "
        f"{named(sorted(names))}; a GPU can be given away twice",
        "keep that driver off the nodes with vcuda; NVIDIA's with its chart: --set resources.gpus.enabled=false",
    )


def without_agent(nodes: Sequence[NodeFacts], agents: Collection[str]) -> list[str]:
    """Nodes that are labelled as having GPUs, which neither vcuda nor another plugin offers."""
    return sorted(
        each.name
        for each in nodes
        if each.labelled and each.name not in agents and not each.is_ours and not each.foreign
    )
