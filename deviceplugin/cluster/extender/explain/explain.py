"""Why a pod waits: for each node and GPU what speaks against it and what must change; or where the pod is.

In: the cache as it is now, filter's last verdict, what kube-scheduler wrote into the pod's condition. Out: an
`Explanation`, which `/explain` writes as JSON. If filter was asked, its verdict gives the reasons of nodes. If it was
not, or kube-scheduler has decided since without asking, every node is evaluated now, and the answer says so. Nodes that
lack least come first; of a large cluster only those are shown in full. `docs/troubleshooting.md` explains the sentences
by their words.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.explain.evaluate import Evaluation, Evaluator, Lacking, Shortfall
from deviceplugin.cluster.extender.explain.verdicts import LastVerdict, Verdicts, gates_sentence, why_lines
from deviceplugin.cluster.extender.rejection import (
    CROWDED,
    FITS_NOW,
    GANG_YIELDED,
    MAYBE_ROOM,
    NOMINATED,
    NOT_LOOKED_AT,
    NOT_PLACED_YET,
    PREFERRED,
    ROOM,
    ROOM_FOR_CLAIMS,
    SEARCH_EXHAUSTED,
    TOGETHER,
    TOO_MANY_GPUS,
    UNREADABLE_INVENTORY,
    Rejection,
    rejection_of,
    summary_of,
)
from deviceplugin.cluster.extender.snapshot import ClusterSnapshot
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.cluster_view import Explanation, GpuVerdict, NodeVerdict
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import PodRequest, placeable_request
from deviceplugin.model.preferences import soft_line
from deviceplugin.model.units import memory_text
from deviceplugin.placement.describe import gpus_text, request_text
from deviceplugin.placement.fit import NOTHING, GpuAmount, NodeRejection
from deviceplugin.structs import replace

_STATES = {
    HoldState.RESERVED: "its GPUs are reserved, and kube-scheduler has not bound the pod yet",
    HoldState.ASSUMED: "the pod is being bound",
    HoldState.UNCONFIRMED: "its Binding got no answer; its GPUs are kept until the API server says whether it is bound",
    HoldState.BOUND: "the pod is bound",
}
_HAVE_ROOM = frozenset((ROOM, ROOM_FOR_CLAIMS, MAYBE_ROOM))
_CHANGE_BY_REJECTION = {
    ROOM: "nothing on its GPUs",
    PREFERRED: "nothing: the pod fits, and another node was preferred",
    NOMINATED: "the pod for which kube-scheduler makes room there must be bound first",
    NOT_PLACED_YET: "nothing: the next attempt goes on to place the pods for which kube-scheduler makes room there",
    GANG_YIELDED: "kube-scheduler must retry the gang, as it does when the other members have waited long enough",
    TOO_MANY_GPUS: "another device plugin for this node, as vcuda does not support so many GPUs",
    CROWDED: "its agent must report where they are, or their owner must delete them",
    UNREADABLE_INVENTORY: "the node's agent and the scheduler must have versions that understand each other",
}
_CHANGE_BY_PLACEMENT = {
    NOT_LOOKED_AT: "fewer GPU containers in one pod, or fewer GPUs by UUID; the next attempt compares further nodes",
    SEARCH_EXHAUSTED: "fewer containers in one pod, as not every combination was tried",
    TOGETHER: "room for all containers of the pod together",
    FITS_NOW: "nothing: the pod fits now and will be retried",
}
_MOST_APART = 2
_CHANGE_OF_REQUEST = {
    rejection_of(each): change
    for each, change in (
        (NodeRejection.TOO_SMALL, "request less memory, allow another GPU model, or add larger GPUs"),
        (NodeRejection.TOO_FEW, "request fewer GPUs, allow other GPUs, or add GPUs to the node"),
        (NodeRejection.TOO_FEW_ON_NUMA, "request fewer GPUs, or allow GPUs of several NUMA nodes"),
        (NodeRejection.POD_TOO_LARGE, "request fewer GPUs for the pod's containers together, or add GPUs to the node"),
        (NodeRejection.MODEL, "allow another GPU model, or add GPUs of a wanted model to the node"),
        (NodeRejection.UNWANTED, "allow other GPUs than those that the pod names by UUID"),
        (NodeRejection.NO_SHARES, "request whole GPUs, or start the node's agent with --share-mode"),
        (NodeRejection.NO_OPEN_GPU, "GPUs must become healthy, or be uncordoned"),
    )
}
_SCHEDULER_CHECKS = (
    "CPU, memory, taints, affinity, volumes or another check that kube-scheduler makes before it asks the extender"
)


def uncompared_sentence(nodes: int) -> str:
    """Follows a sentence about all nodes; what each GPU lacks is not known of these."""
    if not nodes:
        return ""
    return f"; {nodes} nodes were not compared GPU by GPU, because the pod has so many different GPU containers"


def request_lines(asked: PodRequest) -> tuple[str, ...]:
    return tuple(f"container {each.name}: {request_text(each.request)}" for each in asked.containers)


def hold_lines(held: PodHold, info: NodeInfo | None) -> tuple[str, ...]:
    """What is allocated or reserved for a pod, by container; `info`: of its node."""
    inventory = None if info is None else info.inventory
    located = (
        f"container {one.owner.name}: {share.cores} cores and {memory_text(share.blocks)} of "
        f"{_gpu_name(share.uuid, inventory)}"
        for one in held.allocations
        for share in one.shares
    )
    unlocated = (f"container {each.name}: the node's agent has not reported its GPU yet" for each in held.unlocated)
    return (*located, *unlocated)


def _gpu_name(uuid: GpuUuid, inventory: Inventory | None) -> str:
    gpu = None if inventory is None else inventory.gpu(uuid)
    return uuid if gpu is None else f"GPU {gpu.minor} ({uuid})"


def holder_lines(info: NodeInfo, *, but: PodUid) -> Mapping[GpuUuid, list[str]]:
    """Who holds each GPU, in both ways. A pod whose GPUs are not known yet is named for each GPU that it may be on."""
    found: dict[GpuUuid, list[str]] = defaultdict(list)
    for held in info.holds.values():
        if held.pod.uid == but:
            continue
        parts: dict[GpuUuid, GpuAmount] = defaultdict(GpuAmount)
        for one in held.allocations:
            for share in one.shares:
                parts[share.uuid] += GpuAmount(share.cores, share.blocks)
        for uuid, (cores, blocks) in parts.items():
            found[uuid].append(f"{held.pod}: {cores} cores, {memory_text(blocks)} ({held.state.value})")
        for gpu in info.inventory.gpus if held.unlocated and info.inventory is not None else ():
            if gpu.uuid not in parts:
                found[gpu.uuid].append(f"{held.pod}: on this node, its GPU is not known yet")
    for hold in info.claims.holds if info.claims.allocated else ():
        cores, blocks = hold.amount
        found[info.gpu_of(hold.device)[0]].append(f"{hold.holder.pod}: {cores} cores, {memory_text(blocks)} (claim)")
    return found


def node_verdict(
    node: str, info: NodeInfo | None, why: Rejection, lacks: Shortfall, change: str, *, but: PodUid, with_holders: bool
) -> NodeVerdict:
    holders = holder_lines(info, but=but) if info is not None and with_holders else {}
    nearest = {gpu.uuid for gpu, *_ in lacks.lacks or ()}
    gpus = [
        GpuVerdict(gpu.uuid, gpu.minor, gpu.model, text, tuple(holders.get(gpu.uuid, ())), gpu.uuid in nearest)
        for gpu, text in lacks.gpus()
    ]
    return NodeVerdict(node, why.text, change, tuple(gpus))


def change_text(why: Rejection, found: Shortfall) -> str:
    """What must change for the pod to fit on a node."""
    if why in _CHANGE_BY_REJECTION:
        return _CHANGE_BY_REJECTION[why]
    if found.together is not None:
        return _CHANGE_BY_PLACEMENT[found.together]
    if found.lacks:
        return must_become_free(found.lacks)
    if found.gpus():
        return _CHANGE_OF_REQUEST.get(why, "request less or other GPUs, or add GPUs to the node")
    return "the node's agent must run and report GPUs"


def must_become_free(lacks: Iterable[Lacking]) -> str:
    """Empty if nothing must. Of many GPUs it is said together."""
    short = [each for each in lacks if each[1:] != NOTHING]
    if len(short) <= _MOST_APART:
        return "; ".join([_of_gpus([gpu], cores, blocks) for gpu, cores, blocks in short])
    return _of_gpus([gpu for gpu, *_ in short], sum(each[1] for each in short), sum(each[2] for each in short))


def _of_gpus(gpus: list[Gpu], cores: int, blocks: int) -> str:
    parts = [f"{cores} more cores"] if cores else []
    parts += [f"{memory_text(blocks)} more"] if blocks else []
    together = " together" * (len(gpus) > 1)
    return f"{' and '.join(parts)} must become free on {gpus_text(gpu.minor for gpu in gpus)}{together}"


def verdict_sentence(verdict: LastVerdict, held: PodHold | None) -> str:
    """What filter answered last, and what the pod holds by it."""
    if held is not None:
        return f"node {held.node} was chosen; {_STATES[held.state]}"
    if verdict.node is not None:
        return (
            f"node {verdict.node} was chosen, but kube-scheduler has not bound the pod in time and its reservation has "
            "expired; its GPUs are reserved again when kube-scheduler asks again"
        )
    if verdict.fits:
        return "the pod fits on some nodes; kube-scheduler has not bound it yet"
    if len(verdict.names) == 1:
        return "the pod does not fit on the one node that kube-scheduler asked about"
    return f"the pod fits on none of the {len(verdict.names)} nodes that kube-scheduler asked about"


def never_asked_sentence(others: int, roomy: Sequence[str]) -> str:
    """Follows the verdict. `others`: nodes with GPUs about which kube-scheduler did not ask; `roomy` have room now."""
    if not others:
        return ""
    asked = f"; it has not asked about {others} more with GPUs"
    if not roomy:
        return f"{asked}, and none of these has room on its GPUs now"
    where = f"node {roomy[0]} has room on its GPUs" if len(roomy) == 1 else f"{len(roomy)} have room on their GPUs"
    first = "" if len(roomy) == 1 else f", node {roomy[0]} first by name"
    return (
        f"{asked}, of which {where}{first}: {_SCHEDULER_CHECKS} keeps kube-scheduler from it, or it asks about a part "
        "of the nodes only (percentageOfNodesToScore)"
    )


def history_sentence(pod: ClusterPod, verdict: LastVerdict | None, *, webhook_scheduler: str) -> str:
    """What kube-scheduler has done with a pod since filter's last verdict, if there is one.

    `webhook_scheduler`: the schedulerName that the webhook gives GPU pods, empty if it gives none.
    """
    if held := held_back(pod):
        return held
    if verdict is not None and not verdict.fits:
        return "kube-scheduler has asked about the pod, and has since refused it for a reason outside the extender"
    if verdict is not None:
        found = f"node {verdict.node} was chosen" if verdict.node else "some nodes had room"
        return f"{found} when kube-scheduler last asked, but it has since refused the pod"
    name = pod.scheduler or "default-scheduler"
    if webhook_scheduler and name != webhook_scheduler:
        return (
            f"no scheduler has asked about the pod; its schedulerName is {name}, the webhook gives GPU pods "
            f"{webhook_scheduler}, and {name} asks only if it has this extender"
        )
    if pod.condition is None:
        return (
            "kube-scheduler has neither asked about the pod nor written a condition for it; a kube-scheduler with the "
            f"profile {name} must run and have this extender"
        )
    return "kube-scheduler has not asked about the pod"


def held_back(pod: ClusterPod) -> str:
    """Why no scheduler looks for a node; empty if it may."""
    if pod.pod.deleting:
        return "the pod is being deleted"
    return f"{gates_sentence(pod)}; no scheduler chooses a node before" if pod.gates else ""


def evaluation_sentence(found: Evaluation, *, refused: bool) -> str:
    """What the nodes look like now. `refused`: kube-scheduler has refused the pod, and its reason is not known."""
    nodes = len(found.rejections)
    if not nodes:
        return "no node is known"
    if found.open:
        count = len(found.open)
        where = (
            f"node {found.open[0]} has room on its GPUs"
            if count == 1
            else f"{of_nodes(count, nodes)} have room on their GPUs"
        )
        return f"{where}, so the pod is Pending for another reason: {_SCHEDULER_CHECKS}" if refused else where
    if found.blocked:
        have = "may have" if found.several_containers else "have"
        where = of_nodes(found.blocked, nodes)
        return f"GPUs {have} room on {where}, but kube-scheduler can use none of these nodes, as their reasons say"
    none = "the pod does not fit on the one node" if nodes == 1 else f"the pod fits on none of the {nodes} nodes"
    tried = ", as far as its containers were placed together" if found.untried else ""
    return f"{none}{tried}{_resource_fit_text(found) if refused else ''}"


def _resource_fit_text(found: Evaluation) -> str:
    """kube-scheduler does not ask about nodes that its own sums exclude."""
    if not found.resource_fit:
        return "; kube-scheduler's own sums of cores and memory do not fit either, so it need not ask the extender"
    where = of_nodes(found.resource_fit, len(found.rejections))
    return f"; by kube-scheduler's own sums it fits on {where}, so kube-scheduler refuses it for another reason too"


def of_nodes(count: int, nodes: int) -> str:
    if nodes == 1:
        return "the one node"
    return f"all {nodes} nodes" if count == nodes else f"{count} of {nodes} nodes"


MOST_NODES = 20


class Explain:
    """Reads only. `claims` explains pods that name claims, as any replica can, by `claims.ClaimExplain`.

    `with_holders`: the answer names the pods on each GPU, which may be of other namespaces.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        verdicts: Verdicts,
        claims: Callable[..., Awaitable[Explanation | None]],
    ) -> None:
        self._snapshot, self._cache, self._settings = snapshot, snapshot.cache, snapshot.settings
        self._verdicts = verdicts
        self._claims = claims

    async def explain(
        self, namespace: str, name: str, *, leads: bool = True, with_holders: bool = True
    ) -> Explanation | None:
        """None if no pod of that name is known; `leads`: the verdicts and reservations are here."""
        if leads:
            found = await self._by_plugin(namespace, name, with_holders)
        else:
            found = self._bound(namespace, name)
        if not self._cache.claims.pods:
            return found
        return _joined(found, await self._claims(namespace, name, with_holders=with_holders))

    async def _by_plugin(self, namespace: str, name: str, with_holders: bool) -> Explanation | None:
        waiting = self._cache.waiting_pod(namespace, name)
        verdict = self._verdicts.find(namespace, name) if waiting is None else self._verdicts.of(waiting.uid)
        if verdict is not None and not self._is_superseded(verdict, waiting):
            return await self._as_judged(verdict, waiting, with_holders)
        if waiting is not None:
            return await self._as_evaluated(waiting, verdict, with_holders)
        return self._bound(namespace, name)

    def _bound(self, namespace: str, name: str) -> Explanation | None:
        """None if no pod of that name is bound. Looks through all pods: people ask rarely."""
        for node_info in self._cache.nodes.values():
            for held in node_info.holds.values():
                if held.is_bound and (held.pod.namespace, held.pod.name) == (namespace, name):
                    problem = f"; {held.problem}" if held.problem else ""
                    sentence = f"the pod is bound to node {node_info.name}{problem}"
                    lines = hold_lines(held, node_info)
                    why = why_lines(held.why, held.pod, held.node, held.allocations, node_info.inventory)
                    why += self._soft(self._cache.pod(held.pod.uid), node_info.name) if why else ()
                    return Explanation(f"{namespace}/{name}", sentence, node=node_info.name, asked=lines, why=why)
        return None

    def _soft(self, pod: ClusterPod | None, node: str | None = None) -> tuple[str, ...]:
        """What is preferred and does not count, where the extender chooses. `node`: where the pod is or will be."""
        if pod is None or not self._settings.one_node:
            return ()
        info = self._cache.nodes.get(node or "")
        is_discouraged = info is not None and info.node is not None and info.node.discouraged
        line = soft_line(pod.soft_rules, (node or "") if is_discouraged else "")
        return (line,) if line else ()

    def _is_superseded(self, verdict: LastVerdict, waiting: ClusterPod | None) -> bool:
        return waiting is not None and not any(self._cache.holds(waiting.uid)) and verdict.is_superseded_by(waiting)

    async def _as_judged(self, verdict: LastVerdict, waiting: ClusterPod | None, with_holders: bool) -> Explanation:
        pod, refused = verdict.pod, verdict.refused
        held = tuple(self._cache.holds(pod.uid))
        lines = tuple(line for each in held for line in hold_lines(each, self._cache.nodes.get(each.node)))
        lines += self._soft(pod, verdict.node)
        nodes: tuple[NodeVerdict, ...] = ()
        never_asked = uncompared = ""
        try:
            asked = placeable_request(pod.pod, self._settings.names)
        except (RequestError, ParseError):
            pass  # the reason of each node says it
        else:
            lines = (*request_lines(asked), *lines)
            evaluator = Evaluator(self._snapshot, pod, asked)
            nodes = await self._nodes(evaluator, pod.uid, refused, with_holders)
            uncompared = uncompared_sentence(evaluator.uncompared)
            if not verdict.fits and not held:
                others = self._snapshot.usable_but(refused)
                never_asked = never_asked_sentence(len(others), sorted(await evaluator.with_room(others)))
        return Explanation(
            pod=str(pod.pod.ref),
            sentence=verdict_sentence(verdict, next(iter(held), None)) + never_asked + uncompared,
            at=verdict.at,
            node=verdict.node,
            asked=lines,
            reasons=_counted(refused.values()),
            nodes=nodes,
            left_out=len(refused) - len(nodes),
            condition="" if held or waiting is None else _condition(waiting),
            main_reason="" if held or verdict.fits else _main_reason(refused.values()),
        )

    async def _as_evaluated(self, pod: ClusterPod, verdict: LastVerdict | None, with_holders: bool) -> Explanation:
        at = None if verdict is None else verdict.at
        history = history_sentence(pod, verdict, webhook_scheduler=self._settings.scheduler)
        try:
            asked = placeable_request(pod.pod, self._settings.names)
        except (RequestError, ParseError) as error:
            sentence = f"{history}; its request is wrong, so it fits on no node"
            return evaluated(pod, sentence, (error.message,), at=at)
        evaluator = Evaluator(self._snapshot, pod, asked)
        found = await evaluator.evaluate()
        refused = pod.is_refused and not pod.pod.deleting
        nodes = await self._nodes(evaluator, pod.uid, found.rejections, with_holders, changes=found.changes)
        sentence = f"{history}; evaluated now, {evaluation_sentence(found, refused=refused)}"
        lines = (*request_lines(asked), *self._soft(pod))
        return evaluated(
            pod, sentence + uncompared_sentence(evaluator.uncompared), lines, found.rejections, nodes, at=at
        )

    async def _nodes(
        self,
        evaluator: Evaluator,
        pod: PodUid,
        rejections: Mapping[str, Rejection],
        with_holders: bool,
        *,
        changes: Mapping[str, str] | None = None,
    ) -> tuple[NodeVerdict, ...]:
        """`changes`: by node, where they are known already."""
        verdicts: list[NodeVerdict] = []
        for name, lacks in await evaluator.nearest(rejections, most=MOST_NODES):
            info, why = self._cache.nodes.get(name), rejections[name]
            problem = f"{info.sentence}; " if info is not None and info.sentence else ""
            text = problem + ((changes or {}).get(name) or change_text(why, lacks))
            verdicts.append(node_verdict(name, info, why, lacks, text, but=pod, with_holders=with_holders))
        return tuple(verdicts)


def _joined(by_plugin: Explanation | None, by_claims: Explanation | None) -> Explanation | None:
    """A pod can ask in both ways: then the explanation of the first has the lines of its claims too."""
    if by_plugin is None or by_claims is None:
        return by_plugin or by_claims
    return replace(by_plugin, asked=(*by_plugin.asked, *by_claims.asked), why=(*by_plugin.why, *by_claims.why))


def evaluated(
    pod: ClusterPod,
    sentence: str,
    asked: tuple[str, ...],
    rejections: Mapping[str, Rejection] = {},
    nodes: tuple[NodeVerdict, ...] = (),
    *,
    at: float | None = None,
    why: tuple[str, ...] = (),
) -> Explanation:
    """Of a pod that waits, and whose nodes were judged for this answer."""
    return Explanation(
        *(str(pod.pod.ref), sentence, at),
        asked=asked,
        reasons=_counted(rejections.values()),
        nodes=nodes,
        left_out=len(rejections) - len(nodes),
        now=True,
        condition=_condition(pod),
        why=why,
        main_reason=_main_reason(rejections.values()),
    )


def _main_reason(reasons: Iterable[Rejection]) -> str:
    """Empty where a node has room: the pod waits for something else then."""
    counted = Counter(reasons)
    return summary_of(counted, most=1) if counted and not _HAVE_ROOM.intersection(counted) else ""


def _counted(reasons: Iterable[Rejection]) -> Mapping[str, int]:
    return dict(Counter(why.text for why in reasons).most_common())


def _condition(pod: ClusterPod) -> str:
    return "" if pod.condition is None else " ".join(pod.condition.message.split())
