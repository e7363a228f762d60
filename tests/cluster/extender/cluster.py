"""A cluster for the property tests: an API server, its watch, several processes of the extender, and all other writers.

The watch is late, in any order between pods, repeats old events, and restarts with a list that misses pods which came
and went meanwhile. A Binding without an answer takes effect later or never, but within the server's time for one
request; it may outlive the process that sent it. Each Binding is judged when it is sent, by what the watch had shown
its sender.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.errors import KubeError, VcudaError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import ClusterPod, Pod
from deviceplugin.model.request import Request
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.makers import NAMES, allocated, node

BLOCKS = 64
REQUEST_SECONDS = 60.0
News = ClusterPod | None


class WatchedApi(MemoryApi):
    """Keeps the events that the watch will send for each pod, and those that it has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.news: dict[PodUid, list[News]] = defaultdict(list)
        self.told: dict[PodUid, list[News]] = defaultdict(list)

    def put(self, pod: ClusterPod) -> ClusterPod:
        kept = super().put(pod)
        self.news[pod.uid].append(None if kept.pod.is_terminal else kept)  # the selector leaves out what has ended
        return kept

    def remove(self, uid: PodUid) -> None:
        if not self.pods.pop(uid).pod.is_terminal:
            self.news[uid].append(None)


@dataclass(frozen=True)
class Sent:
    """A Binding in flight."""

    at: float
    life: int
    pod: PodRef
    node: str
    annotations: Mapping[str, str]


class Life:
    """One process: its own calls, and whether they die with it."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self._cluster = cluster
        self.number = number

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        cluster, api = self._cluster, self._cluster.api
        sent = Sent(cluster.now, self.number, pod, node, annotations)
        cluster.judge(sent)
        fate = api.fates.pop(0) if api.fates else Fate.WORKS
        try:
            for _ in range(api.turns):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            cluster.late.append(sent)
            raise
        match fate:
            case Fate.REFUSED:
                raise KubeError("bind refused", code=403)
            case Fate.BROKEN_BEFORE:
                raise KubeError("bind: the server is unwell", code=500)
            case Fate.LATE:
                cluster.late.append(sent)
                raise KubeError("bind: no answer", code=0)
            case Fate.TWICE:
                cluster.late.append(sent)
        cluster.carry_out(sent)
        if fate is Fate.BROKEN_AFTER:
            raise KubeError("bind: connection lost", code=0)

    async def get_pod(self, pod: PodRef) -> Pod:
        found = await self._cluster.api.get_pod(pod)
        if found.node and self.number == self._cluster.life:
            self._cluster.read[pod.uid] = ClusterPod(found)
        return found

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        await self._cluster.api.annotate_node(name, annotations)


class Cluster:
    """`outsiders` are pods that another scheduler or process has bound or placed.

    `unanswered`: pods of whose attempt before the last nothing was said when the last began.
    `heard` is what the watch said last of each bound pod, old news included; `read` what the present process was
    answered when it asked for one.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.api = WatchedApi()
        self.nodes: dict[str, ClusterNode] = {name: node(name, 1, blocks=BLOCKS) for name in names}
        self.tasks: list[asyncio.Task[Any]] = []
        self.late: list[Sent] = []
        self.outsiders: set[PodUid] = set()
        self.asked_at: dict[PodUid, tuple[float, ClusterPod]] = {}
        self._attempts: dict[PodUid, ClusterPod] = {}
        self.unanswered: set[PodUid] = set()
        self.heard: dict[PodUid, ClusterPod] = {}
        self.read: dict[PodUid, ClusterPod] = {}
        self.wrong: list[str] = []
        self.life = 0
        self.extender = self._started()

    def _started(self) -> Extender:
        """Lists everything before it answers."""
        self.life += 1
        self.api.news.clear()
        self.api.told.clear()
        self.asked_at.clear()
        self._attempts.clear()
        self.unanswered.clear()
        self.heard.clear()
        self.read.clear()
        extender = Extender(Life(self, self.life), clock=lambda: self.now)
        for each in self.nodes.values():
            extender.put_node(each)
        for pod in self.api.pods.values():
            if not pod.pod.is_terminal:
                extender.put_pod(pod)
                self.api.told[pod.uid].append(pod)
                if pod.pod.node:
                    self.heard[pod.uid] = pod
        extender.warm_up()
        return extender

    def attempted(self, pod: ClusterPod) -> None:
        """Filter was asked about it, whatever it answered."""
        before = self._attempts.get(pod.uid)
        self.unanswered.discard(pod.uid)
        if before is not None and before.condition == pod.condition:
            self.unanswered.add(pod.uid)
        self._attempts[pod.uid] = pod

    def restart(self, *, outlives: bool) -> None:
        """The process is killed; its requests take effect all the same, or die with it."""
        before = len(self.late)
        for task in self.tasks:
            task.cancel()
        self.spin(8)
        self.tasks.clear()
        if not outlives:
            del self.late[before:]
        self.extender = self._started()

    def take_over(self) -> None:
        """Another replica leads; the previous leader completes its requests."""
        self.extender = self._started()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(self.loop.create_task(work))

    def spin(self, turns: int) -> None:
        async def run() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    def tell(self, uid: PodUid) -> None:
        news = self.api.news[uid].pop(0)
        if news is None and self.seen(uid) is None:
            return  # it was never in the watcher's store
        self.api.told[uid].append(news)
        self._annotate_one(uid, news)

    def tell_again(self, uid: PodUid, at: int) -> None:
        """Old versions, as a list from a lagging cache has them."""
        told = self.api.told[uid]
        self._annotate_one(uid, told[at % len(told)])

    def list_anew(self) -> None:
        """410: events not sent yet are lost, and existing objects are listed."""
        self.api.news.clear()
        for uid in tuple(self.api.told):
            live = self.api.pods.get(uid)
            if self.seen(uid) is not None and (live is None or live.pod.is_terminal):
                self.api.news[uid].append(None)
        for uid, live in self.api.pods.items():
            if not live.pod.is_terminal and live != self.seen(uid):
                self.api.news[uid].append(live)
        self.tell_all()

    def tell_all(self) -> None:
        for uid in tuple(self.api.news):
            while self.api.news[uid]:
                self.tell(uid)

    def _annotate_one(self, uid: PodUid, news: News) -> None:
        if news is None:
            self.extender.drop_pod(uid)
            return
        if news.pod.node:
            self.heard[uid] = news
        self.extender.put_pod(news)

    def seen(self, uid: PodUid) -> News:
        """The last version from the watch."""
        told = self.api.told.get(uid)
        return told[-1] if told else None

    def known_bound(self) -> Iterator[ClusterPod]:
        """By the watch; or by an earlier answer, as long as the extender relies on it."""
        by_watch = {uid for uid in self.api.told if (seen := self.seen(uid)) is not None and seen.pod.node}
        yield from (self.heard[uid] for uid in by_watch)
        for uid, found in self.read.items():
            if uid not in by_watch and self.extender.cache.bound_to(uid) is not None:
                yield found

    def put_node(self, changed: ClusterNode) -> None:
        self.nodes[changed.name] = changed
        self.extender.put_node(changed)

    def drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.extender.drop_node(name)

    def pass_time(self, seconds: float) -> None:
        """No request takes longer than the API server's timeout."""
        self.now += seconds
        self.late = [sent for sent in self.late if self.now - sent.at < REQUEST_SECONDS]
        self.extender.expire()

    def arrive_late(self) -> None:
        try:
            self.carry_out(self.late.pop(0))
        except VcudaError:
            return

    def carry_out(self, sent: Sent) -> None:
        self.api.apply(sent.pod, sent.node, sent.annotations)
        if sent.life != self.life:
            self.outsiders.add(sent.pod.uid)

    def agent_places(self, uid: PodUid) -> None:
        """The agent places a pod that another scheduler bound and writes its allocation, or the pod fails."""
        found = self.api.pods[uid]
        is_new = self.nodes.get(found.pod.node) == described(found.pod.node, f"new-{found.pod.node}")
        main, uuid = found.pod.containers[0], GpuUuid(f"GPU-{'new-' if is_new else ''}{found.pod.node}-0")
        use = self.used(found.pod.node).get(uuid, GpuAmount()) + GpuAmount(main.cores, main.blocks)
        if fits(use):
            text = allocated(found, {"main": (GpuShare(uuid, main.cores, main.blocks),)})
            changed = replace(found.pod, annotations={**found.pod.annotations, **text})
            self.api.put(replace(found, pod=changed))
        else:
            self.api.put(replace(found, pod=replace(found.pod, phase="Failed")))

    def used(self, name: str) -> Mapping[GpuUuid, GpuAmount]:
        """What pods hold of a node's GPUs, by the API server."""
        return occupied(one for each in self._bound(name) for one in written(each))

    def given(self, name: str) -> Mapping[GpuUuid, GpuAmount]:
        """What this process has given away: bound and assumed."""
        exact = [one for each in self._bound(name) if each.uid not in self.outsiders for one in written(each)]
        return occupied([*exact, *self._under_way(name)])

    def judge(self, sent: Sent) -> None:
        """By the watch: do these GPUs exist, and are they free of all that is or may be on them?"""
        if sent.life != self.life:
            return
        name, there = sent.node, self.nodes.get(sent.node)
        good = {GpuUuid(f"GPU-{each}-0"): described(name, each) for each in (name, f"new-{name}")}
        gpu = next((uuid for uuid, each in good.items() if there == each), None)
        new = parse_allocation(sent.annotations[NAMES.allocation])
        shares = [share for each in new.containers.values() for share in each]
        if gpu is None or [share.uuid for share in shares] != [gpu]:
            self.wrong.append(f"{sent.pod} was sent to {name}: {shares}")
            return
        told = [
            each
            for uid in self.api.told
            if (each := self.seen(uid)) is not None and each.pod.node == name and uid != sent.pod.uid
        ]
        proved = occupied(one for each in told for one in written(each)).get(gpu, GpuAmount())
        others = occupied(self._under_way(name, but=sent.pod.uid)).get(gpu, GpuAmount())
        mine = GpuAmount(shares[0].cores, shares[0].blocks)
        wandering = [each.pod.containers[0] for each in told if not written(each)]
        maybe = [GpuAmount(one.cores, one.blocks) for one in wandering if fits(proved + _want(one.cores, one.blocks))]
        for guest in maybe or [GpuAmount()]:
            if not fits(proved + others + mine + guest):
                self.wrong.append(f"{sent.pod} to {name}: {proved} {others} {mine} {guest}")

    def _bound(self, name: str) -> Iterator[ClusterPod]:
        return (each for each in self.api.pods.values() if each.pod.node == name and not each.pod.is_terminal)

    def _under_way(self, name: str, *, but: str = "") -> list[Allocation]:
        """What the extender assumes, and what it has sent."""
        node_info = self.extender.cache.nodes.get(name)
        found: dict[str, tuple[Allocation, ...]] = {
            uid: held.allocations
            for uid, held in (node_info.holds.items() if node_info else ())
            if held.state in (HoldState.ASSUMED, HoldState.UNCONFIRMED)
        }
        for sent in self.late:
            if sent.life == self.life and sent.node == name and sent.pod.uid not in found:
                found[sent.pod.uid] = tuple(_allocations(sent.annotations[NAMES.allocation]))
        return [one for uid, each in found.items() if uid != but and self._may_be_bound(uid) for one in each]

    def _may_be_bound(self, uid: str) -> bool:
        live = self.api.pods.get(PodUid(uid))
        return live is not None and not (live.pod.node or live.pod.deleting or live.pod.is_terminal)

    def close(self) -> None:
        self.loop.close()


def described(name: str, gpus: str) -> ClusterNode:
    """A good node; its GPU may be a new one."""
    return replace(node(name, 1, blocks=BLOCKS), inventory=node(gpus, 1, blocks=BLOCKS).inventory)


def fits(use: GpuAmount) -> bool:
    return use.cores <= 100 and use.blocks <= BLOCKS


def _want(cores: int, blocks: int) -> GpuAmount:
    return GpuAmount(cores, BLOCKS if cores >= 100 else blocks)


def written(found: ClusterPod) -> list[Allocation]:
    """The allocation that a bound pod carries, as one container for each that it names."""
    text = found.pod.annotations.get(NAMES.allocation)
    if text is None:
        return []
    try:
        read = parse_allocation(text)
    except VcudaError:
        return []
    if read.pod != found.uid or found.pod.annotations.get(NAMES.predicate_node, found.pod.node) != found.pod.node:
        return []  # copied along
    main = found.pod.containers[0]
    claim = [(each.cores, each.blocks) for each in read.containers.get(main.ref.name, ())]
    if claim != [(main.cores, main.blocks)]:
        return []  # not what kubelet was asked for
    return [each for each in _allocations(text) if each.owner.name == main.ref.name]


def _allocations(text: str) -> list[Allocation]:
    read = parse_allocation(text)
    ref = PodRef(read.pod, "", "")
    return [
        Allocation(ContainerRef(ref, name), ContainerRole.APP, Request(1, 1), shares)
        for name, shares in read.containers.items()
    ]
