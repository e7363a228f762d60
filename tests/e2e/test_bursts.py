"""Bursts of pods while what tells the agent for whom kubelet asks is late, fails for random calls, or lies."""

import asyncio
import contextlib
import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.pods import PodState
from sandbox.cluster.waiting import wait_until
from tests.e2e.conftest import StartAgent
from tests.e2e.node.scene import check_everything, scheduler_paused, wait_ledger_empty
from tests.e2e.node.workload import GpuPod, crowd

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

FAILED, LATE = 0.15, 0.3
"""Shares of what the agent sends: the connection ends, or it arrives up to LONGEST_S later."""
LONGEST_S = 1.0
_CHUNK = 1 << 16
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Connect = Callable[[], Awaitable[_Streams]]


class UnreliableKubelet:
    """`flags` for the agent; `faults` counts the connections that were ended and the messages that were late."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._random = random.Random(seed)
        self.flags: tuple[str, ...] = ()
        self.faults = 0

    async def serve(self, started: Callable[[], None], ended: asyncio.Event) -> None:
        """Kubelet's root, as the agent sees it, is a folder in which only the PodResources socket is another one."""
        url, root = urlsplit(self._cluster.kubelet.url), self._cluster.layout.kubelet
        resources = root / "pod-resources/kubelet.sock"
        (self._folder / "pod-resources").mkdir(parents=True)
        for each in ("plugins_registry", "pki"):
            (self._folder / each).symlink_to(root / each)
        by_name = await asyncio.start_unix_server(
            self._relay(lambda: asyncio.open_unix_connection(resources)), self._folder / "pod-resources/kubelet.sock"
        )
        with_uids = await asyncio.start_server(
            self._relay(lambda: asyncio.open_connection(url.hostname, url.port)), url.hostname, 0
        )
        port = with_uids.sockets[0].getsockname()[1]
        self.flags = (
            f"--kubelet-root={self._folder}",
            f"--kubelet-pods-endpoint=https://{url.hostname}:{port}/pods",
        )
        started()
        async with by_name, with_uids:
            await ended.wait()

    def _relay(self, connect: _Connect) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError), contextlib.closing(writer.transport):
                far_reader, far_writer = await connect()
                with contextlib.closing(far_writer.transport):
                    ways = (self._pump(reader, far_writer), _copy(far_reader, writer))
                    tasks = [asyncio.create_task(each) for each in ways]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

        return relay

    async def _pump(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        """From the agent to kubelet; every read is about one call."""
        while chunk := await reader.read(_CHUNK):
            chance = self._random.random()
            self.faults += chance < FAILED + LATE
            if chance < FAILED:
                return
            if chance < FAILED + LATE:
                await asyncio.sleep(self._random.uniform(0, LONGEST_S))
            far.write(chunk)
            await far.drain()


@contextmanager
def unreliable_kubelet(cluster: Cluster, folder: Path, seed: int) -> Iterator[UnreliableKubelet]:
    relay, started, ended = UnreliableKubelet(cluster, folder, seed), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        thread = threading.Thread(target=runner.run, args=[relay.serve(started.set, ended)], name="unreliable kubelet")
        thread.start()
        try:
            assert started.wait(60)
            yield relay
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()


COUNT = int(os.environ.get("VCUDA_BURST_PODS", "60"))
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@dataclass
class Controller:
    """Makes again what was refused or deleted, as a ReplicaSet would; `again` are the pods that this befell.

    Its object is a ConfigMap: the garbage collector deletes pods whose owner does not exist.
    """

    cluster: Cluster
    asked: dict[str, GpuPod]
    owner: JsonObject
    again: list[PodState | str] = field(default_factory=list)

    def create(self, name: str) -> None:
        pods.create(self.cluster.admin, self.asked[name].manifest(ownerReferences=[self.owner]))

    def all_run(self) -> bool:
        states = pods.states(self.cluster.admin)
        refused = [state for state in states.values() if state.phase == "Failed" and not state.deleting]
        for state in refused:
            assert state.reason == "UnexpectedAdmissionError", state
        pods.delete(self.cluster.admin, [state.name for state in refused])
        missing = sorted(self.asked.keys() - states.keys())
        for name in missing:
            self.create(name)
        self.again += [*refused, *missing]
        return not refused and not missing and all(state.is_running for state in states.values())


def test_a_crowd_whose_exact_sources_fail_at_random_runs_with_its_own_limits(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """No container without its grant; a pod whose start was given up is made again by its controller."""
    seed = secrets.randbelow(1 << 32)
    folder: Path = empty_cluster.layout.root / f"vcu-{seed:08x}"
    asked = crowd("crowd", COUNT)
    with (
        unreliable_kubelet(empty_cluster, folder, seed) as kubelet,
        controller_of(empty_cluster, asked) as controller,
    ):
        agent = start_agent("--identity-budget=30ms", *kubelet.flags)
        with scheduler_paused(empty_cluster):
            for pod in asked:
                controller.create(pod.name)
        wait_until(
            controller.all_run,
            f"{COUNT} pods: all Running (seed {seed})",
            seconds=900,
            evidence=lambda: "\n".join(map(str, pods.states(empty_cluster.admin).values())),
        )

        scene = check_everything(empty_cluster, agent, asked)
        sources = Counter(each.source for each in scene.usage.containers)
        print(f"seed {seed}: {kubelet.faults} faults, {len(controller.again)} pods made again, {dict(sources)}")
        assert kubelet.faults > COUNT / 2
        pods.delete_all(empty_cluster.admin)
        wait_ledger_empty(agent)


@contextmanager
def controller_of(cluster: Cluster, asked: list[GpuPod]) -> Iterator[Controller]:
    metadata = {"name": f"owner-{secrets.token_hex(4)}"}
    made = cluster.admin.post(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **metadata, "uid": made["metadata"]["uid"]}
    try:
        yield Controller(cluster, {pod.name: pod for pod in asked}, owner)
    finally:
        pods.delete_all(cluster.admin)
        cluster.admin.delete(f"{CONFIGMAPS}/{metadata['name']}")
