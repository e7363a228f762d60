"""Our extender and another scheduler bind pods to one node at the same moment, in any order, and the agent crashes.

The books, the Binding's annotations, the ledger and kubelet's edge are the real ones; kubelet is the stand-in. What the
extender hears comes late: a pod of the other scheduler, and what the agent wrote back, only with `hear`.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from deviceplugin.agent.reconciler import corrections
from deviceplugin.cluster.extender.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.errors import CapacityError
from deviceplugin.kube.pods import PodListReader
from deviceplugin.ledger.grant import Source
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.node import ClusterNode, format_inventory
from deviceplugin.model.pod import ClusterPod, Pod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.placement.node_state import node_state
from deviceplugin.placement.pod import place_pod
from deviceplugin.structs import replace
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.station import ENDED, NAMES, Json, Station, pod_json
from tests.examples import examples
from tests.kubelet.makers import inventory

NODE = inventory(3)
ANNOTATIONS = AnnotationNames()
Step = tuple[str, object]
SIZES = ((30, 8), (60, 8), (60, 40), (100, 0), (20, 60))


class Scene:
    """`bound`: pods that a scheduler has given to the node and that kubelet has not seen yet."""

    def __init__(self, kubelet: Kubelet, base: Path) -> None:
        self.kubelet = kubelet
        self.base = base
        self.cache = SchedulerCache(lambda: 0.0, names=NAMES)
        text = format_inventory(NODE, share_mode=True)
        self.cache.put_node(ClusterNode("node-1", "uid", inventory=text, ready=True, cores=300, blocks=192))
        self.bound: list[Json] = []
        self.arrived: dict[str, Json] = {}
        self.serial = 0
        self.station: Station | None = None
        self.link: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.station = Station(self.kubelet, NODE, self.base, sources=_sources())
        self.link = asyncio.create_task(self.station.link().run())
        await self.kubelet.wait_registered(NAMES.core, NAMES.memory)

    async def crash(self) -> None:
        """What is on the disk stays; kubelet keeps its own books."""
        assert self.link is not None
        assert self.station is not None
        self.link.cancel()
        await asyncio.gather(self.link, return_exceptions=True)
        await self.station.close()

    @property
    def agent(self) -> Station:
        assert self.station is not None
        return self.station

    def make(self, sizes: Sequence[int], annotations: dict[str, str] | None = None) -> Json:
        self.serial += 1
        containers = [(f"c{at}", *SIZES[size]) for at, size in enumerate(sizes)]
        return pod_json(f"p{self.serial}", *containers, annotations=annotations)

    def bind(self, sizes: Sequence[int]) -> None:
        """As `bind` does: on what its books say now."""
        pod = self.make(sizes)
        asked = pod_request(shown(pod), NAMES)
        try:
            placed = place_pod(asked, self.cache.nodes["node-1"].state)
        except CapacityError:
            return
        held = PodHold(asked.pod, "node-1", HoldState.ASSUMED, placed.allocations, request=asked)
        self.cache.put_hold(held)
        pod["metadata"]["annotations"] = binding_annotations(held, NODE, now_ns=self.serial, names=NAMES)
        self.bound.append(pod)

    def bind_elsewhere(self, sizes: Sequence[int], stale: bool) -> None:
        """By a scheduler that calls no extender; `stale`: made from the YAML of a pod that ran."""
        last = next(reversed(self.arrived.values()), None)
        copied = dict(last["metadata"]["annotations"]) if stale and last is not None else None
        self.bound.append(self.make(sizes, copied))

    async def arrive(self, which: int) -> None:
        if self.bound:
            pod = self.bound.pop(which % len(self.bound))
            self.arrived[pod["metadata"]["uid"]] = pod
            await self.kubelet.admit(pod, deadline_s=60)

    async def arrive_and_crash(self, calls: int) -> None:
        """The agent dies while kubelet asks it for a pod, and comes back."""
        if not self.bound:
            return
        pod = self.bound.pop(0)
        self.arrived[pod["metadata"]["uid"]] = pod
        before = len(self.kubelet.calls.of("Allocate"))
        uid = self.kubelet.submit(pod)
        with contextlib.suppress(TimeoutError):
            await self.kubelet.changes.until(
                lambda: len(self.kubelet.calls.of("Allocate")) >= before + calls, what="a few calls", deadline_s=0.5
            )
        await self.crash()
        await self.start()
        await self.kubelet.verdict(uid, deadline_s=60)

    def leave(self, which: int) -> None:
        if self.arrived:
            uid = list(self.arrived)[which % len(self.arrived)]
            self.kubelet.delete(uid)

    def write_back(self) -> None:
        """As the reconciler does."""
        for uid, pod in self.arrived.items():
            grants = [each for each in self.agent.ledger.grants() if each.allocation.owner.pod.uid == uid]
            for name, value in corrections(shown(pod), grants, NODE, ANNOTATIONS).items():
                pod["metadata"]["annotations"].pop(name, None)
                if value is not None:
                    pod["metadata"]["annotations"][name] = value

    def hear(self) -> None:
        """All news reaches the extender."""
        phases = self.phases()
        for uid, pod in list(self.arrived.items()):
            phase = phases.get(uid, "Succeeded")
            self.cache.put_pod(ClusterPod(replace(shown(pod), phase=phase, api_uid=uid)))
            if phase in ENDED:
                del self.arrived[uid]
        for pod in self.bound:
            self.cache.put_pod(ClusterPod(shown(pod)))

    def phases(self) -> dict[str, str]:
        return {each["metadata"]["uid"]: each["status"]["phase"] for each in self.kubelet.pod_list()}

    def living(self) -> set[str]:
        return {uid for uid, phase in self.phases().items() if phase not in ENDED}

    def is_settled(self) -> bool:
        """A pod runs as soon as its first container does; the others may still be before PreStartContainer."""
        living, grants = self.living(), self.agent.ledger.grants()
        unproved = [each for each in grants if each.allocation.owner.pod.uid in living and not each.proved]
        return "Pending" not in self.phases().values() and not unproved

    def check_books(self) -> None:
        """No GPU is given twice, whatever each scheduler assumed."""
        assert self.agent.ledger.over_commitments(NODE) == ()

    async def warm_up(self) -> None:
        """Everything has arrived, was proved, written back and heard of."""
        while self.bound:
            await self.arrive(0)
            self.check_books()
        await self.kubelet.changes.until(self.is_settled, what="every pod runs or has failed", deadline_s=60)
        living = self.living()
        ledger = self.agent.ledger
        over = [each.id for each in ledger.grants() if each.allocation.owner.pod.uid not in living]
        ledger.release(over, why="its pod was refused or has ended")
        self.write_back()
        self.hear()
        self.check_books()
        for uid, pod in self.arrived.items():
            assert {each.allocation.owner.name for each in ledger.of_pod(uid)} == {  # type: ignore[arg-type]
                each["name"] for each in pod["spec"]["containers"]
            }, "an admitted pod holds something for each container"
        node_info = self.cache.nodes["node-1"]
        assert all(not each.unlocated for each in node_info.holds.values())
        true = node_state("node-1", NODE, ledger.allocations())
        assert [(view.free_cores, view.free_blocks) for view in node_info.state.snapshot.gpus] == [
            (view.free_cores, view.free_blocks) for view in true.snapshot.gpus
        ]


def shown(pod: Json) -> Pod:
    (found,) = PodListReader().read(json.dumps({"items": [pod]}).encode())
    return found


def _sources() -> tuple[Source, ...]:
    return (Source.PODS,)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    base = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
    options = KubeletOptions(root=base / "k", first_sync_s=0.02, speed=50.0)
    try:
        async with Kubelet(options) as kubelet:
            made = Scene(kubelet, base)
            await made.start()
            try:
                yield made
            finally:
                await made.crash()
    finally:
        shutil.rmtree(base, ignore_errors=True)


async def play(script: Sequence[Step]) -> None:
    async with scene() as made:
        for name, given_ in script:
            await perform(made, name, given_)
            made.check_books()
        await made.warm_up()


async def perform(made: Scene, name: str, given_: object) -> None:
    match name, given_:
        case "bind", list():
            made.bind(given_)
        case "bind elsewhere", (list() as sizes, bool() as stale):
            made.bind_elsewhere(sizes, stale)
        case "arrive", int():
            await made.arrive(given_)
        case "arrive and crash", int():
            await made.arrive_and_crash(given_)
        case "leave", int():
            made.leave(given_)
        case "crash", _:
            await made.crash()
            await made.start()
        case "write back", _:
            made.write_back()
        case _:
            made.hear()


sizes = st.lists(st.integers(0, len(SIZES) - 1), min_size=1, max_size=2)
steps = st.one_of(
    st.tuples(st.just("bind"), sizes),
    st.tuples(st.just("bind elsewhere"), st.tuples(sizes, st.booleans())),
    st.tuples(st.just("arrive"), st.integers(0, 3)),
    st.tuples(st.just("arrive and crash"), st.integers(1, 4)),
    st.tuples(st.just("leave"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["crash", "write back", "hear"]), st.none()),
)
CROSSING: list[Step] = [
    ("bind", [1]),
    ("bind elsewhere", ([1], False)),
    ("bind elsewhere", ([1], False)),
    ("arrive", 1),
    ("arrive", 1),
    ("arrive", 0),
    ("write back", None),
    ("hear", None),
    ("bind", [1]),
]


@examples(15, dear=True, suppress=list(HealthCheck))
@example(CROSSING)
@example([("bind", [1, 1]), ("bind elsewhere", ([1], False)), ("arrive", 1), ("arrive and crash", 2)])
@given(st.lists(steps, min_size=3, max_size=12))
def test_no_gpu_is_given_twice_and_the_cache_ends_as_the_ledger(script: list[Step]) -> None:
    asyncio.run(play(script))
