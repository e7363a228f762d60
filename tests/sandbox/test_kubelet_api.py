"""The stand-in kubelet as a node of the stand-in API server."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox.apiserver import ApiServer, JsonObject, container, pod
from sandbox.barenode import CORE, BarePlugin, fast
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.apisource import ApiAddress, ApiSource

pytestmark = pytest.mark.thorough

NODE = "node-1"


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server, a node, and a plugin on it."""

    server: ApiServer
    kubelet: Kubelet
    core: BarePlugin

    def phase(self, name: str) -> str:
        return next((item["status"]["phase"] for item in self.server.store.objects("pods") if named(item, name)), "")


def named(item: JsonObject, name: str) -> bool:
    return bool(item["metadata"]["name"] == name)


@asynccontextmanager
async def cluster(options: KubeletOptions) -> AsyncIterator[Cluster]:
    async with ApiServer() as server:
        source = ApiSource(options, ApiAddress(server.url))
        core = BarePlugin(CORE, options.plugin_dir / "core.sock", {f"c{number:03}": -1 for number in range(100)})
        async with Kubelet(options, source) as kubelet, core:
            await core.register(options.kubelet_socket)
            await kubelet.wait_registered(CORE)
            yield Cluster(server, kubelet, core)


async def test_a_bound_pod_runs_and_its_status_says_so(short_tmp: Path) -> None:
    async with cluster(fast(short_tmp)) as it:
        it.server.store.create("pods", pod("a", container(cores=5)))
        it.server.store.create("pods", pod("elsewhere", container(cores=5), node="other"))
        it.server.store.bind("a", NODE)
        await it.server.until(lambda: it.phase("a") == "Running")
        assert it.phase("elsewhere") == "Pending"
        status = it.server.store.get("pods", "a", namespace="default")["status"]
        assert "running" in status["containerStatuses"][0]["state"]


async def test_pods_are_admitted_in_the_order_of_their_binding(short_tmp: Path) -> None:
    async with cluster(fast(short_tmp)) as it:
        for number in range(6):
            it.server.store.create("pods", pod(f"p{number}", container(cores=1)))
        for number in (3, 1, 5, 2, 0, 4):
            it.server.store.bind(f"p{number}", NODE)
        await it.server.until(lambda: all(it.phase(f"p{number}") == "Running" for number in range(6)))
        names = {item["metadata"]["uid"]: item["metadata"]["name"] for item in it.server.store.objects("pods")}
        assert [names[call.uid] for call in it.kubelet.calls.of("Allocate")] == ["p3", "p1", "p5", "p2", "p0", "p4"]


async def test_a_refused_pod_is_failed_with_kubelets_message(short_tmp: Path) -> None:
    async with cluster(fast(short_tmp)) as it:
        it.server.store.create("pods", pod("a", container(cores=500), node=NODE))
        await it.server.until(lambda: it.phase("a") == "Failed")
        status = it.server.store.get("pods", "a", namespace="default")["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 500, Available: 100" in status["message"]


async def test_a_deleted_pod_is_terminating_until_its_containers_are_gone(short_tmp: Path) -> None:
    async with cluster(replace(fast(short_tmp), termination_s=20.0)) as it:
        made = it.server.store.create("pods", pod("a", container(cores=5), node=NODE))
        uid = made["metadata"]["uid"]
        await it.server.until(lambda: it.phase("a") == "Running")
        it.server.store.delete("pods", "a", namespace="default")
        assert it.kubelet.runs(uid, "main")
        await it.server.until(lambda: it.phase("a") == "")
        assert not it.kubelet.runs(uid, "main")
        await it.kubelet.wait_gone(uid)


async def test_the_node_shows_capacity_and_allocatable(short_tmp: Path) -> None:
    async with cluster(fast(short_tmp)) as it:
        await it.core.change(broken=frozenset({"c000"}))

        def shown() -> bool:
            nodes = it.server.store.objects("nodes")
            status = nodes[0]["status"] if nodes else {}
            return (status.get("capacity", {}).get(CORE), status.get("allocatable", {}).get(CORE)) == ("100", "99")

        await it.server.until(shown)
        port = it.server.store.objects("nodes")[0]["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        assert port == it.kubelet.pods_port


async def test_kubelet_catches_up_after_a_broken_and_a_compacted_watch(short_tmp: Path) -> None:
    async with cluster(fast(short_tmp)) as it:
        await it.server.until(lambda: it.server.open_watches > 0)
        it.server.compact()
        await it.server.drop_watches()
        it.server.store.create("pods", pod("a", container(cores=5), node=NODE))
        await it.server.until(lambda: it.phase("a") == "Running")


async def test_a_static_pod_has_a_mirror_with_another_uid(short_tmp: Path) -> None:
    static = pod("web", container(cores=1))
    async with cluster(replace(fast(short_tmp), static_pods=(static,))) as it:
        await it.server.until(lambda: it.phase("web-node-1") == "Running")
        mirror = it.server.store.get("pods", "web-node-1", namespace="default")["metadata"]
        uid = it.kubelet.static.uids[0]
        assert mirror["uid"] != uid
        assert mirror["annotations"]["kubernetes.io/config.mirror"] == uid
        assert [item["metadata"]["uid"] for item in it.kubelet.pod_list()] == [uid], "a mirror is not run again"


async def test_it_runs_as_a_program(short_tmp: Path) -> None:
    async with ApiServer() as server:
        kubeconfig = server.kubeconfig(short_tmp / "kubeconfig")
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sandbox.kubelet", "--root", str(short_tmp / "k")),
            *("--kubeconfig", str(kubeconfig), "--node", NODE, "--speed", "50"),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": "."},
        )
        assert program.stdout is not None
        line = await program.stdout.readline()
        assert line.decode().startswith("kubelet of node-1 in ")
        server.store.create("pods", pod("a", container(), node=NODE))
        await server.until(lambda: server.store.objects("pods")[0]["status"]["phase"] == "Running")
        program.send_signal(signal.SIGTERM)
        assert await program.wait() == 0
