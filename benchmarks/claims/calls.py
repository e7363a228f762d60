"""Prepares and ends claims by turns through two drivers, and runs pods through the device plugin between them.

In: running nodes, counts. Out: the seconds of every call, turn by turn. Claims and their pods exist before the first
call of a turn, as in a cluster: kube-scheduler has allocated the claim, and the pod is bound. Which driver is called
first changes from claim to claim, so that other load on the machine and warm caches favour none.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.agent import DEADLINE_S
from benchmarks.claims.node import PLUGIN_NODE, ClaimDriver, Nodes
from benchmarks.command import BenchmarkError
from deviceplugin.model.claims import ClaimRef, ClaimUid
from sandbox.apiserver import container, pod
from sandbox.claims import allocated_claim, pod_using
from sandbox.kubelet import Kubelet
from sandbox.kubelet.apisource import ApiClient

NAMESPACE = "default"
CORES, BLOCKS, MEMORY = 5, 4, "1Gi"
GPUS = 8
AT_ONCE = 8
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
T = TypeVar("T")
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"


@dataclass(frozen=True, slots=True)
class Sizes:
    """`claims` are prepared one by one in a turn, and stay; each of the `bursts` has `AT_ONCE` claims, which end."""

    turns: int
    claims: int
    bursts: int


@dataclass(frozen=True, slots=True)
class Calls:
    """Seconds of the calls of one turn; those of a burst are under way together."""

    prepare: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)
    burst_prepare: list[float] = field(default_factory=list)
    burst_unprepare: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lane:
    """One driver, what it has prepared, and its calls by turn. `kubelet` runs the pods, if they have to exist."""

    driver: ClaimDriver
    kubelet: Kubelet | None
    turns: tuple[Calls, ...]
    held: list[ClaimRef] = field(default_factory=list)

    async def prepare(self, ref: ClaimRef) -> float:
        began = time.perf_counter()
        answers = await self.driver.connection.prepare(ref)
        took = time.perf_counter() - began
        if not answers[ref.uid].devices:
            raise BenchmarkError(f"{self.driver.name} prepared claim {ref} without a device")
        return took

    async def unprepare(self, ref: ClaimRef) -> float:
        began = time.perf_counter()
        await self.driver.connection.unprepare(ref)
        return time.perf_counter() - began

    async def make(self, api: ApiClient, name: str, at: int) -> ClaimRef:
        """A claim as kube-scheduler leaves it, and its pod, which kubelet has seen."""
        pool, users = self.driver.pool, {}
        if self.kubelet is not None:
            created = await api.call("POST", PODS, pod_using(f"{pool}-{name}", f"{pool}-{name}", node=pool))
            users = {f"{pool}-{name}": str(created["metadata"]["uid"])}
        device = f"gpu-{at % GPUS}"
        claim = allocated_claim(
            f"{pool}-{name}",
            users,
            pool=pool,
            device=device,
            cores=CORES,
            memory=MEMORY,
            driver=self.driver.name,
        )
        made = await api.call("POST", CLAIMS, claim)
        for uid in users.values():
            assert self.kubelet is not None
            await self.kubelet.wait_running(uid, deadline_s=DEADLINE_S)
        return ClaimRef(ClaimUid(str(made["metadata"]["uid"])), NAMESPACE, f"{pool}-{name}")

    async def remove(self, api: ApiClient, refs: Iterable[ClaimRef]) -> None:
        for ref in refs:
            await api.call("DELETE", f"{CLAIMS}/{ref.name}")
            if self.kubelet is not None:
                await api.call("DELETE", f"{PODS}/{ref.name}")


@dataclass(frozen=True, slots=True)
class Calling:
    """Kubelet's part; `lanes` are the agent's and the bare driver's."""

    nodes: Nodes
    api: ApiClient
    sizes: Sizes
    lanes: tuple[Lane, Lane]

    @classmethod
    def of(cls, nodes: Nodes, api: ApiClient, sizes: Sizes) -> "Calling":
        def turns() -> tuple[Calls, ...]:
            return tuple(Calls() for _ in range(sizes.turns))

        own = Lane(nodes.own, nodes.with_claims.kubelet, turns())
        return cls(nodes, api, sizes, (own, Lane(nodes.bare, None, turns())))

    async def prepare_all(self) -> None:
        for turn in range(self.sizes.turns):
            await self._one_by_one(turn)
            for burst in range(self.sizes.bursts):
                await self._burst(turn, burst)

    async def end_all(self) -> None:
        """What is held, into the turns in which it was prepared."""
        own, bare = self.lanes
        for at, pair in enumerate(zip(own.held, bare.held, strict=True)):
            for lane, ref in self._alternating(pair, at):
                lane.turns[at // self.sizes.claims].unprepare.append(await lane.unprepare(ref))

    async def _one_by_one(self, turn: int) -> None:
        pairs = [await self._make(f"one-{turn}-{at}", at) for at in range(self.sizes.claims)]
        for at, pair in enumerate(pairs):
            for lane, ref in self._alternating(pair, at):
                lane.turns[turn].prepare.append(await lane.prepare(ref))
                lane.held.append(ref)
            await self._run_by_plugin(f"plugin-{turn}-{at}")

    async def _burst(self, turn: int, burst: int) -> None:
        pairs = [await self._make(f"burst-{turn}-{burst}-{at}", at) for at in range(AT_ONCE)]
        own, bare = zip(*pairs, strict=True)
        for lane, refs in self._alternating((own, bare), burst):
            calls = lane.turns[turn]
            calls.burst_prepare.extend(await _together(map(lane.prepare, refs)))
            calls.burst_unprepare.extend(await _together(map(lane.unprepare, refs)))
            await lane.remove(self.api, refs)

    async def _make(self, name: str, at: int) -> tuple[ClaimRef, ClaimRef]:
        own, bare = self.lanes
        pair = await own.make(self.api, name, at), await bare.make(self.api, name, at)
        own.driver.kubelet.record([*own.held, pair[0]])
        return pair

    async def _run_by_plugin(self, name: str) -> None:
        kubelet = self.nodes.plugin.kubelet
        wanted = pod(name, container("c", cores=CORES, blocks=BLOCKS), node=PLUGIN_NODE)
        created = await self.api.call("POST", PODS, wanted)
        await kubelet.wait_running(created["metadata"]["uid"], deadline_s=DEADLINE_S)

    def _alternating(self, pair: tuple[T, T], at: int) -> list[tuple[Lane, T]]:
        return list(zip(self.lanes, pair, strict=True))[:: -1 if at % 2 else 1]


async def _together(calls: Iterable[Awaitable[float]]) -> list[float]:
    return list(await asyncio.gather(*calls))
