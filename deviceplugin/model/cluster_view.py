"""The documents of the scheduler's cluster-wide view: what `/view/...` and `/explain` answer, and what the command and
the page read.

In: the scheduler fills them from its cache, and from the agents where a caller asks for use. Out: JSON whose names
are an interface; clients decode it into the same types and ignore fields that they do not know.

Cores: 100 are one GPU. Blocks: 256 MiB. Times: Unix seconds. Null: not known, or not measured.
"""

import enum
from collections.abc import Mapping

import msgspec

VERSION = 1
MOST_ROWS = 5000
"""Of a page: each page walks over all nodes or pods, so few large ones cost least."""
MOST_IN_DETAIL = 250
"""Of a page with GPUs."""
TOKEN_HEADER = "X-Vcuda-Token"  # noqa: S105 - the name of a header
"""In the place of Authorization, which the API server's proxy removes; several tokens have commas between them."""
MOST_TOKENS = 8
"""Of a question: some 8 KB, and many proxies read no longer header."""


class PodStage(enum.Enum):
    """PENDING has no node. RESERVED: the scheduler chose its GPUs, and the Binding is not confirmed yet."""

    PENDING = "pending"
    RESERVED = "reserved"
    BOUND = "bound"


class ShareSource(enum.Enum):
    """How a GPU is offered or a part of one is asked for: the device plugin's resources, or a ResourceClaim."""

    PLUGIN = "device-plugin"
    CLAIM = "claim"


class ClusterEventKind(enum.Enum):
    """What happened: a pod got its node and GPUs, fits nowhere, or ended; a node or a GPU is available, or not."""

    PLACED = "placed"
    PENDING = "pending"
    ENDED = "ended"
    NODE = "node"
    GPU = "gpu"


def idle_of(allocated: int, used: float | None) -> float | None:
    """Cores that are allocated and not used; a share with a soft limit may use more than it has."""
    return None if used is None else max(0.0, allocated - used)


class GpuLive(msgspec.Struct, frozen=True):
    """What the driver says of a whole GPU."""

    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    processes: int | None = None


class ShareLive(msgspec.Struct, frozen=True):
    """What a container uses of one GPU; see `/usage` of the agent for the meaning of each field."""

    cores_used: float | None = None
    cores_in_force: float | None = None
    memory_used_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_refusals: int | None = None
    throttled_seconds: float | None = None


class ShareRow(msgspec.Struct, frozen=True):
    """A container's part of one GPU. `minor` is null if the node has no such GPU any more."""

    uuid: str
    minor: int | None
    cores: int
    blocks: int
    live: ShareLive | None = None


class ContainerRow(msgspec.Struct, frozen=True):
    """A container with GPUs. `shares` is empty while no GPU is chosen, or while the agent has not reported it.

    `over_limit`: sentences about limits that it exceeds now; null if the agent was not asked. `claim`: the name of
    the ResourceClaim, of which all containers that name it have the shares together; null if kube-scheduler has still
    to make it.
    """

    name: str
    cores: int
    blocks: int
    shares: tuple[ShareRow, ...] = ()
    over_limit: tuple[str, ...] | None = None
    source: ShareSource = ShareSource.PLUGIN
    claim: str | None = None


class PodRow(msgspec.Struct, frozen=True):
    """A pod that requests GPUs and has not ended. `reason`: why it is pending, or what is wrong with its GPUs."""

    uid: str
    namespace: str
    pod: str
    stage: PodStage
    node: str | None
    created: float
    containers: tuple[ContainerRow, ...]
    reason: str = ""
    priority: int = 0
    gang: str | None = None
    scheduler: str = ""


class HolderRow(msgspec.Struct, frozen=True):
    """Who holds a part of the GPU on which it stands.

    With the source `claim` and other `users` than one container, `uid` and `pod` are the claim's and `container` is its
    request.
    """

    uid: str
    namespace: str
    pod: str
    container: str
    stage: PodStage
    cores: int
    blocks: int
    live: ShareLive | None = None
    over_limit: tuple[str, ...] | None = None
    source: ShareSource = ShareSource.PLUGIN
    claim: str | None = None
    users: int = 1


class GpuRow(msgspec.Struct, frozen=True):
    """One GPU. `reason` says why it is not `available` for new pods (unhealthy, cordoned, MIG, the node's `problem`);
    empty if it is.

    `pods` counts the pods and shared claims that hold a part; `holders` names them, if the caller asked for that.

    `source`: how it is offered. Of one that only claims get, `index` is the minor, and `memory_bytes` whole blocks.
    """

    uuid: str
    index: int
    minor: int
    model: str
    numa: int | None
    memory_bytes: int
    blocks: int
    cores_allocated: int
    blocks_allocated: int
    healthy: bool
    available: bool
    reason: str = ""
    live: GpuLive | None = None
    pods: int = 0
    holders: tuple[HolderRow, ...] = ()
    source: ShareSource = ShareSource.PLUGIN


class NodeRow(msgspec.Struct, frozen=True):
    """One node with an agent, or with pods that hold GPUs. `problem`: why it is unavailable; empty if it is not.

    `free_gpus`: available GPUs of which nothing is allocated. `gpus` is empty unless the caller asked for GPUs.
    `live_error`: why there is no live use, where it was asked for; empty otherwise. `live`, `cores_used`, `cores_idle`
    and `gpus_measured` are of the GPUs that report: `cores_used` the utilization of `gpus_measured` GPUs added up,
    `cores_idle` what is allocated of them and not used. `unavailable_by_reason`: the minors of single unavailable GPUs;
    empty where `problem` says it of all.
    """

    node: str
    problem: str
    driver: str
    cuda: str
    models: dict[str, int]
    gpu_count: int
    free_gpus: int
    unavailable_gpus: int
    cores: int
    cores_allocated: int
    blocks: int
    blocks_allocated: int
    pods: int
    gpus: tuple[GpuRow, ...] = ()
    live: GpuLive | None = None
    live_error: str = ""
    cores_used: float | None = None
    cores_idle: float | None = None
    gpus_measured: int | None = None
    unavailable_by_reason: dict[str, tuple[int, ...]] = {}


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What each answer begins with. `replica` answered, `leader` schedules; `at` is when the answer was made."""

    version: int = VERSION
    at: float
    replica: str
    leader: str


class ClusterView(Head, frozen=True, kw_only=True):
    """`/view/cluster`. `pending_by_reason` counts pending pods by the sentence why they have no node.

    `gpus_of_unavailable_nodes`: how many of the unavailable GPUs are on nodes with a problem. What is used is null
    unless the caller asked for it: `cores_used` is the utilization of `gpus_measured` GPUs added up, and
    `memory_used_bytes` is of all GPUs whose agents answer.

    `namespace`: of vcuda. `node_label`: of the nodes on which the agent runs, KEY=VALUE or KEY.
    """

    scheduler_version: str
    nodes: int
    nodes_with_problem: int
    gpus: int
    free_gpus: int
    unavailable_gpus: int
    cores: int
    cores_allocated: int
    blocks: int
    blocks_allocated: int
    pods_bound: int
    pods_reserved: int
    pods_pending: int
    pending_by_reason: dict[str, int]
    models: dict[str, int]
    cores_used: float | None = None
    memory_used_bytes: int | None = None
    gpus_measured: int | None = None
    gpus_of_unavailable_nodes: int = 0
    grafana_url: str = ""
    namespace: str = ""
    resource_domain: str = ""
    node_label: str = ""


class NodesView(Head, frozen=True, kw_only=True):
    """`/view/nodes`: one page. `more` is the token of the next page, empty on the last; `total` counts all pages."""

    items: tuple[NodeRow, ...]
    total: int
    more: str = ""


class OneNodeView(Head, frozen=True, kw_only=True):
    """`/view/nodes/NAME`: one node with its GPUs and who holds them."""

    item: NodeRow


class ClusterEventRow(msgspec.Struct, frozen=True):
    """Something that happened to a pod or a node; `uid`, `namespace`, `pod` and `node` are empty if it is about none.

    `first` and `at` are its first and its last time, `count` how often: a pod that waits has one event, whose sentence
    is the last one.
    """

    kind: ClusterEventKind
    first: float
    at: float
    count: int
    uid: str
    namespace: str
    pod: str
    node: str
    sentence: str


class ClusterEventsView(Head, frozen=True, kw_only=True):
    """`/view/events`: one page, the newest first. `since`: when `replica` began to note them; `dropped`: how many it
    has not any more, for it keeps the last 500 of each kind."""

    items: tuple[ClusterEventRow, ...]
    total: int
    since: float
    dropped: int
    more: str = ""


class PodsView(Head, frozen=True, kw_only=True):
    """`/view/pods`: one page."""

    items: tuple[PodRow, ...]
    total: int
    more: str = ""


class UseSample(msgspec.Struct, frozen=True):
    """What all shares of a pod used at a time; `throttled_seconds` is since the containers started."""

    at: float
    cores_used: float | None
    memory_used_bytes: int | None
    throttled_seconds: float | None


class OnePodView(Head, frozen=True, kw_only=True):
    """`/view/pods/NAMESPACE/NAME`. `history`: the samples that `replica` has of the last quarter of an hour, one a
    minute, the oldest first."""

    item: PodRow
    history: tuple[UseSample, ...] = ()


class NamespaceRow(msgspec.Struct, frozen=True):
    """What the pods of a namespace have of the GPUs and use of it; pods without GPUs count nothing.

    `cores_measured`: allocated to the shares whose use is known; `cores_idle`: of these, not used.
    """

    namespace: str
    pods: int
    cores: int
    blocks: int
    cores_used: float | None = None
    cores_idle: float | None = None
    memory_used_bytes: int | None = None
    throttled_seconds: float | None = None
    cores_measured: int | None = None


class NamespacesView(Head, frozen=True, kw_only=True):
    """`/view/namespaces`: one page. `others` has the sums over namespaces whose names the caller may not know; null if
    there are none, or if namespaces were asked for by name."""

    items: tuple[NamespaceRow, ...]
    total: int
    more: str = ""
    others: NamespaceRow | None = None


class GpuVerdict(msgspec.Struct, frozen=True):
    """`against` is empty if this GPU can serve the pod; `holders` are pods with what they hold of it.

    `holders` is empty for callers who may read the pods of some namespaces only. `nearest`: it is one of the GPUs on
    which least must become free.
    """

    uuid: str
    minor: int
    model: str
    against: str
    holders: tuple[str, ...]
    nearest: bool = False


class NodeVerdict(msgspec.Struct, frozen=True):
    """`fix`: what must change for the pod to fit here."""

    node: str
    reason: str
    fix: str
    gpus: tuple[GpuVerdict, ...]


class Explanation(msgspec.Struct, frozen=True):
    """`at` is when filter was last asked, in Unix seconds; null if it never was.

    `now`: the nodes were judged for this answer, by what is known now; else they are as filter last judged them.
    `condition` is what the scheduler wrote into the pod's condition PodScheduled. `reasons` counts the nodes by reason,
    `left_out` those without detail. `why`: why a bound pod is there, and what was passed over; a line that
    begins with spaces belongs to the line before. `main_reason`: why most nodes do not carry the pod, with their
    number; empty if a node has room, or none is known.
    """

    pod: str
    sentence: str
    at: float | None = None
    node: str | None = None
    asked: tuple[str, ...] = ()
    reasons: Mapping[str, int] = msgspec.field(default_factory=dict)
    nodes: tuple[NodeVerdict, ...] = ()
    left_out: int = 0
    now: bool = False
    condition: str = ""
    why: tuple[str, ...] = ()
    main_reason: str = ""


class ErrorView(msgspec.Struct, frozen=True):
    """The body of every answer that is not 200; `leader` is the replica that may know more, empty if none."""

    error: str
    leader: str = ""
