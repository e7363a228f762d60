"""A cluster for the property tests: an API server, its watch, and everybody who changes pods there.

The watch tells late, in any order between pods, and tells old news again; of one pod it tells the changes in order. A
Binding that got no answer is carried out later or never, but not after the server's time for one request.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.holding import Hold
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.request import Request
from deviceplugin.placement.occupancy import Occupancy, occupied
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import NAMES, allocated, node

GPUS, BLOCKS = 1, 64
REQUEST_SECONDS = 60.0
News = ClusterPod | None


class WatchedApi(MemoryApi):
    """Keeps what the watch will tell of each pod, and what it has told."""

    def __init__(self) -> None:
        super().__init__()
        self.news: dict[PodUid, list[News]] = defaultdict(list)
        self.told: dict[PodUid, list[News]] = defaultdict(list)

    def put(self, pod: ClusterPod) -> ClusterPod:
        kept = super().put(pod)
        self.news[pod.uid].append(kept)
        return kept

    def remove(self, uid: PodUid) -> None:
        del self.pods[uid]
        self.news[uid].append(None)


class Cluster:
    def __init__(self, names: tuple[str, ...]) -> None:
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.api = WatchedApi()
        self.nodes: dict[str, ClusterNode] = {name: node(name, GPUS, blocks=BLOCKS) for name in names}
        self.binds: list[asyncio.Task[str]] = []
        self.sent: list[float] = []
        self.filtered_at: dict[PodUid, float] = {}
        self.extender = self._started()

    def _started(self) -> Extender:
        extender = Extender(self.api, clock=lambda: self.now)
        for each in self.nodes.values():
            extender.put_node(each)
        for pod in self.api.pods.values():
            extender.put_pod(pod)
        extender.settle()
        return extender

    def restart(self) -> None:
        """What was on its way dies with the process; the new one lists everything before it answers."""
        for task in self.binds:
            task.cancel()
        self.spin(8)
        self.binds.clear()
        self.api.late.clear()
        self.api.fates.clear()
        self.api.read_fates.clear()
        self.api.news.clear()
        self.api.told.clear()
        self.filtered_at.clear()
        self.extender = self._started()
        for pod in self.api.pods.values():
            self.api.told[pod.uid].append(pod)

    def spin(self, turns: int) -> None:
        async def run() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    def tell(self, uid: PodUid) -> None:
        news = self.api.news[uid].pop(0)
        self.api.told[uid].append(news)
        self._tell(uid, news)

    def tell_again(self, uid: PodUid, at: int) -> None:
        """Old news, as a list from a cache that lags behind would bring."""
        told = self.api.told[uid]
        self._tell(uid, told[at % len(told)])

    def _tell(self, uid: PodUid, news: News) -> None:
        if news is None:
            self.extender.drop_pod(uid)
        else:
            self.extender.put_pod(news)

    def arrive_late(self) -> None:
        pod, name, annotations = self.api.late.pop(0)
        try:
            self.api.apply(pod, name, annotations)
        except VcudaError:
            return

    def seen(self, uid: PodUid) -> News:
        """The last that the watch has told."""
        told = self.api.told.get(uid)
        return told[-1] if told else None

    def agent_places(self, uid: PodUid) -> None:
        """The node's agent finds room for a pod that somebody else bound, and writes it back; else the pod fails."""
        found = self.api.pods[uid]
        held = self.used(found.pod.node, also_under_way=True)
        main = found.pod.containers[0]
        for gpu in range(GPUS):
            uuid = GpuUuid(f"GPU-{found.pod.node}-{gpu}")
            use = held.get(uuid, Occupancy()) + Occupancy(main.cores, main.blocks)
            if use.cores <= 100 and use.blocks <= BLOCKS:
                text = allocated(found, {"main": (GpuShare(uuid, main.cores, main.blocks),)})
                changed = replace(found.pod, annotations={**found.pod.annotations, **text})
                self.api.put(replace(found, pod=changed))
                return
        self.api.put(replace(found, pod=replace(found.pod, phase="Failed")))

    def used(self, name: str, *, also_under_way: bool = False) -> Mapping[GpuUuid, Occupancy]:
        """What pods hold of a node's GPUs by what the API server says, and by Bindings that it may yet get."""
        exact = [
            one
            for each in self.api.pods.values()
            if each.pod.node == name and not each.pod.is_terminal
            for one in written(each)
        ]
        if also_under_way and name in self.extender.books.nodes:
            exact += (
                one
                for uid, held in self.extender.books.nodes[name].holdings.items()
                if held.hold in (Hold.COMMITTED, Hold.DOUBTFUL) and not self.is_bound(uid)
                for one in held.allocations
            )
        return occupied(exact)

    def is_bound(self, uid: PodUid) -> bool:
        return uid in self.api.pods and bool(self.api.pods[uid].pod.node)

    def close(self) -> None:
        self.loop.close()


def written(found: ClusterPod) -> list[Allocation]:
    """The allocation that a pod carries, as one container for each that it names."""
    text = found.pod.annotations.get(NAMES.allocation)
    if text is None:
        return []
    ref = PodRef(found.uid, "", "")
    return [
        Allocation(ContainerRef(ref, name), ContainerRole.APP, Request(1, 1), shares)
        for name, shares in parse_allocation(text).containers.items()
    ]
