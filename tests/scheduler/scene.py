"""The real `vcuda scheduler` as a process beside the stand-in API server, asked as kube-scheduler asks.

In: nodes and pods as a test says. Out: the process over several lives, its log, answers over TLS that is checked
against the caBundle in the store. Invariant: after the block no process is left.
"""

import asyncio
import base64
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.node import format_inventory
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU, MIB
from sandbox.apiserver import ApiServer
from sandbox.apiserver.objects import container, node, pod
from sandbox.apiserver.reviews import VIEWER, token_of
from sandbox.program import free_port
from tests.waiting import until

Json = dict[str, Any]
CONFIGURATION = "vcuda-scheduler"
SERVICE_NAME = "vcuda-scheduler.gpu.svc"
EVERY_S = 0.05
TOKEN = token_of(VIEWER, "vcuda")
VIEWING = {"Authorization": f"Bearer {TOKEN}"}


def gpu_node(name: str, *, gpus: int = 2, mib: int = 16384) -> Json:
    made = tuple(
        Gpu(GpuUuid(f"GPU-{name}-{minor}"), index=minor, minor=minor, model="NVIDIA T4", memory_bytes=mib * MIB)
        for minor in range(gpus)
    )
    return node_with(name, Inventory(made, Topology(tuple(range(gpus))), Driver("570.1", (12, 8))))


def node_with(name: str, inventory: Inventory, **offered: str) -> Json:
    """`offered`: what kubelet offers beside the GPUs, such as `cpu`."""
    found = node(name)
    found["metadata"]["annotations"] = {"tencent.com/vcuda-inventory": format_inventory(inventory, share_mode=True)}
    blocks = sum(gpu.blocks for gpu in inventory.gpus)
    found["status"] = {
        "allocatable": {
            "tencent.com/vcuda-core": str(CORES_PER_GPU * len(inventory.gpus)),
            "tencent.com/vcuda-memory": str(blocks),
            **offered,
        },
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return found


def webhook_configuration() -> Json:
    hook = {
        "name": "pods.vcuda.tencent.com",
        "clientConfig": {"service": {"name": "vcuda-scheduler", "namespace": "gpu", "path": "/webhook"}},
        "rules": [],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": CONFIGURATION}, "webhooks": [hook]}


class Scheduler:
    """One replica over several lives."""

    def __init__(self, folder: Path, kubeconfig: Path, *, identity: str, flags: tuple[str, ...] = ()) -> None:
        self.identity = identity
        self.port = free_port()
        self.log = folder / f"{identity}.log"
        self._flags = (
            *("--kubeconfig", str(kubeconfig), "--identity", identity, "--namespace", "gpu"),
            *("--listen-addr", "127.0.0.1", "--listen-port", str(self.port)),
            *("--lease-duration", "3", "--drain", "0.3"),
            *flags,
        )
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "deviceplugin", "scheduler", *self._flags),
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
                stdout=log,
                stderr=log,
            )

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        async with asyncio.timeout(120):
            return await self._process.wait()

    async def destroy(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def said(self, event: str) -> list[Json]:
        return [entry for entry in self.entries() if entry.get("msg") == event]

    def entries(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


class Scene:
    """The cluster, and the caller of the replicas."""

    def __init__(self, folder: Path, api: ApiServer) -> None:
        self.folder = folder
        self.api = api
        self.kubeconfig = api.kubeconfig(folder / "kubeconfig")
        self.replicas: list[Scheduler] = []

    async def replica(self, identity: str = "replica-a", *flags: str) -> Scheduler:
        made = Scheduler(self.folder, self.kubeconfig, identity=identity, flags=flags)
        self.replicas.append(made)
        await made.start()
        return made

    def bundle(self) -> str:
        configuration = self.api.store.get("mutatingwebhookconfigurations", CONFIGURATION)
        return base64.b64decode(configuration["webhooks"][0]["clientConfig"].get("caBundle") or "").decode()

    def offer(self, replica: Scheduler) -> None:
        """An endpoint of the scheduler's Service, for the other replicas."""
        endpoint = {"addresses": ["127.0.0.1"], "targetRef": {"kind": "Pod", "name": replica.identity}}
        labels = {"kubernetes.io/service-name": CONFIGURATION}
        ports = [{"name": "kube-scheduler", "port": 10259}, {"name": "https", "port": replica.port}]
        made = {"metadata": {"name": replica.identity, "labels": labels}, "endpoints": [endpoint], "ports": ports}
        self.api.store.create("endpointslices", made, namespace="gpu")

    async def ask(
        self, replica: Scheduler, path: str, document: object = None, *, headers: Mapping[str, str] = VIEWING
    ) -> tuple[int, Any]:
        """As the API server does: trusting the caBundle, by the service's name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the system's CAs take long to read
        if bundle := self.bundle():
            context.load_verify_locations(cadata=bundle)
        method = "GET" if document is None else "POST"
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(
                method, replica.url + path, json=document, headers=headers, server_hostname=SERVICE_NAME
            ) as answer,
        ):
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text

    async def until_ready(self, replica: Scheduler, *, seconds: float = 120.0) -> None:
        answer: object = "no answer"

        async def ready() -> bool:
            nonlocal answer
            assert replica.is_running, replica.log.read_text()
            try:
                status, answer = await self.ask(replica, "/readyz")
            except (aiohttp.ClientError, OSError) as error:
                answer = error
                return False
            return status == 200

        await until(ready, seen=lambda: answer, within=seconds, every=EVERY_S)

    async def until(
        self, replica: Scheduler, path: str, wanted: Callable[[int, Any], bool], document: object = None
    ) -> Any:
        """Asks until the answer is as wanted, and returns it."""
        status, found = 0, None

        async def is_wanted() -> bool:
            nonlocal status, found
            status, found = await self.ask(replica, path, document)
            return wanted(status, found)

        await until(is_wanted, seen=lambda: (path, status, found), within=120, every=EVERY_S)
        return found

    def create_pod(self, name: str, *, cores: int = 30, blocks: int = 8) -> Json:
        return self.api.store.create("pods", pod(name, container(cores=cores, blocks=blocks)), namespace="default")

    async def filter(self, replica: Scheduler, wanted: Json, *nodes: str) -> tuple[int, Any]:
        return await self.ask(replica, "/filter", {"Pod": wanted, "Nodes": None, "NodeNames": list(nodes)})

    async def bind(self, replica: Scheduler, wanted: Json, node_name: str) -> tuple[int, Any]:
        meta = wanted["metadata"]
        order = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node_name}
        return await self.ask(replica, "/bind", order)

    def _events(self, about: Json) -> list[Json]:
        events: list[Json] = self.api.store.objects("events")
        return [each for each in events if each["involvedObject"]["uid"] == about["metadata"]["uid"]]

    async def event(self, about: Json) -> Json:
        """The event on a pod, as soon as there is one."""
        await until(lambda: self._events(about), within=120, every=EVERY_S)
        return self._events(about)[0]

    async def until_event_count(self, about: Json, count: int) -> None:
        """One event has happened so often."""
        await until(
            lambda: self._events(about)[:1] and self._events(about)[0]["count"] == count,
            seen=lambda: self._events(about),
            within=120,
            every=EVERY_S,
        )

    async def metric(self, replica: Scheduler, beginning: str) -> float:
        """The sum of all samples whose lines begin so."""
        _, text = await self.ask(replica, "/metrics")
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(beginning))

    async def until_metric(self, replica: Scheduler, beginning: str, wanted: float) -> None:
        found = 0.0

        async def is_wanted() -> bool:
            nonlocal found
            found = await self.metric(replica, beginning)
            return found == wanted

        await until(is_wanted, seen=lambda: f"{beginning}: {found:g}, not {wanted:g}", every=0.1)

    def stored(self, name: str) -> Json:
        return self.api.store.get("pods", name, namespace="default")


@asynccontextmanager
async def cluster(folder: Path, *nodes: Json, empty: bool = False) -> AsyncIterator[Scene]:
    async with ApiServer() as api:
        for each in nodes or (() if empty else (gpu_node("n1"), gpu_node("n2"))):
            api.store.create("nodes", each)
        api.store.create("mutatingwebhookconfigurations", webhook_configuration())
        scene = Scene(folder, api)
        try:
            yield scene
        finally:
            for replica in scene.replicas:
                await replica.destroy()


@asynccontextmanager
async def holding(scene: Scene, replica: Scheduler, *nodes: Json) -> AsyncIterator[None]:
    """For a replica that serves several tests: it knows these nodes alone, and afterwards no node and no pod."""
    seen = ("nodes", "pods_bound", "pods_reserved", "pods_pending")
    for each in nodes:
        scene.api.store.create("nodes", each)
    await scene.until(replica, "/view/cluster", lambda _, view: view["nodes"] == len(nodes))
    try:
        yield
    finally:
        for resource in ("pods", "nodes"):
            for each in reversed(scene.api.store.objects(resource)):
                meta = each["metadata"]
                scene.api.store.delete(resource, meta["name"], namespace=meta.get("namespace", ""), grace=0)
        await scene.until(replica, "/view/cluster", lambda _, view: not any(view[each] for each in seen))
