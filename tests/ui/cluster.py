"""A made-up cluster behind a scheduler's real server: its view over HTTPS, and agents that say what is used.

In: nodes and pods. Out: the URL of a server that answers `/view`, `/explain` and `/ui` as the scheduler does. The token
`good` shows everything, `tenant` the pods of research.
"""

import datetime as dt
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web
from prometheus_client.core import Metric

from deviceplugin.cluster.certificates.keypair import ServerTls, make_ca, make_certificate
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.http.server import SchedulerServer, Verb, not_ready_sentence
from deviceplugin.cluster.view.live import LiveUse
from deviceplugin.cluster.view.views import Installation
from deviceplugin.errors import KubeError
from deviceplugin.kube.cluster_client import Address, Caller
from deviceplugin.model.allocation import ContainerRef, PodRef
from deviceplugin.model.pod import ClusterPod, ScheduledCondition
from deviceplugin.scheduler.leadership import Leadership
from deviceplugin.scheduler.view_service import ViewService
from deviceplugin.serve.messages import HttpError
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import allocated, ask, bound, node, on_gpu, pod

DAY = dt.timedelta(days=1)
GIB = 1 << 30
A100, H100, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla T4"
Use = dict[str, object]
INSTALLATION = Installation("0.1.0", "kube-system", node_label="nvidia-device-enable=enable")
_LOADS = (1.0, 0.35, 0.5, 0.9, 0.8, 0.95, 0.6)


class TwoReaders:
    """The owner of the token `good` may read about every pod, that of `tenant` lists the pods of research."""

    async def caller_of(self, token: str, *, audience: str) -> Caller | None:
        return Caller(token) if token in ("good", "tenant") else None

    async def may_list_pods(self, caller: Caller, namespace: str) -> bool:
        return (caller.name, namespace) == ("tenant", "research")

    async def may_get(self, caller: Caller, path: str) -> bool:
        return (caller.name, path) == ("good", "/vcuda/view")


@dataclass
class MadeCluster:
    """`uses`: by node what its agent answers. `broken`: every view answers with this status."""

    extender: Extender = field(default_factory=lambda: Extender(MemoryApi()))
    uses: dict[str, Use] = field(default_factory=dict)
    broken: int = 0
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    token_asked: list[str] = field(default_factory=list)
    views: ViewService | None = None
    age_s: float = 0.0
    load: float = 1.0
    now: float = field(default_factory=lambda: dt.datetime.now(dt.UTC).timestamp())

    def add_node(self, name: str, gpus: int, model: str, *, blocks: int = 320, ill: tuple[int, ...] = ()) -> None:
        self.extender.put_node(node(name, gpus, blocks=blocks, model=model, ill=ill))
        idle = {"utilization_percent": 0, "memory_used_bytes": 0, "processes": 0}
        gpus_used = [{"uuid": f"GPU-{name}-{at}", **idle} for at in range(gpus)]
        self.uses[name] = {"node": name, "gpus": gpus_used, "containers": []}

    def lose_agent(self, name: str) -> None:
        info = self.extender.cache.nodes[name].node
        assert info is not None
        self.extender.put_node(replace(info, cores=0))
        self.uses.pop(name, None)

    def runs(self, name: str, where: str, at: int, cores: int, blocks: int, *, busy: float = 0.0) -> ClusterPod:
        """`name` is NAMESPACE/POD; `busy`: the part of its share that it uses."""
        one = self._pod(name, cores, blocks)
        self.extender.put_pod(bound(one, where, allocated(one, {"main": on_gpu(where, at, cores, blocks)})))
        used = {"cores_used": round(cores * busy, 1), "memory_used_bytes": int(blocks * GIB / 4 * (0.3 + busy / 2))}
        share = {"uuid": f"GPU-{where}-{at}", "cores_in_force": float(cores), "throttled_seconds": 0.0, **used}
        use = self.uses[where]
        listed = use["containers"]
        assert isinstance(listed, list)
        listed.append({"namespace": one.pod.ref.namespace, "uid": one.uid, "container": "main", "gpus": [share]})
        self._gpu_use(use, f"GPU-{where}-{at}", share)
        return one

    def waits(self, name: str, cores: int, blocks: int) -> ClusterPod:
        """Asked for by kube-scheduler, so that its reason is known."""
        one = self._pod(name, cores, blocks)
        self.extender.put_pod(one)
        self.extender.filter(ask(one, *self.extender.cache.nodes))
        if not any(self.extender.cache.holds(one.uid)):
            message = f"0/{len(self.extender.cache.nodes)} nodes are available: memory request larger than any GPU."
            self.extender.put_pod(replace(one, condition=ScheduledCondition(False, "Unschedulable", 1, message)))
        return one

    async def sample_as_long_ago(self, minutes: int) -> None:
        """As if the scheduler had run for so long, while loads went up and down."""
        assert self.views is not None
        for minute in range(minutes):
            self.age_s, self.load = 60.0 * (minutes - 1 - minute), _LOADS[minute % len(_LOADS)]
            await self.views.sample()
        self.age_s, self.load = 0.0, 1.0

    def usage(self, node: str) -> Use:
        """What the agent answers."""
        use = self.uses[node]
        if self.load == 1.0:
            return use
        containers = msgspec.json.decode(msgspec.json.encode(use["containers"]))
        for share in (share for each in containers for share in each["gpus"]):
            share["cores_used"] *= self.load
        return {**use, "containers": containers}

    def _pod(self, name: str, cores: int, blocks: int) -> ClusterPod:
        one = pod("x", cores=cores, blocks=blocks)
        namespace, _, short = name.partition("/")
        ref = PodRef(one.pod.ref.uid, namespace, short)
        containers = tuple(replace(each, ref=ContainerRef(ref, each.ref.name)) for each in one.pod.containers)
        return replace(one, pod=replace(one.pod, ref=ref, containers=containers, created=self.now - 5400))

    @staticmethod
    def _gpu_use(use: Use, uuid: str, share: Mapping[str, object]) -> None:
        gpus = use["gpus"]
        assert isinstance(gpus, list)
        mine = next(each for each in gpus if each["uuid"] == uuid)
        mine["utilization_percent"] = round(mine["utilization_percent"] + share["cores_used"])
        mine["memory_used_bytes"] += share["memory_used_bytes"]
        mine["processes"] += 1

    # What the server asks: the service behind its routes.
    verbs: tuple[Verb, ...] = ()

    def not_ready(self) -> tuple[str, ...]:
        return ()

    def not_leading(self) -> tuple[str, ...]:
        return ()

    def gauges(self) -> Iterator[Metric]:
        yield from ()

    async def view(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], peer: str
    ) -> tuple[int, bytes]:
        self.asked.append((path, dict(query)))
        self.token_asked.append(headers.get("X-Vcuda-Token", ""))
        if self.broken:
            sentence = not_ready_sentence(["it has not read the cluster's nodes"])
            return self.broken, msgspec.json.encode({"error": sentence, "leader": ""})
        assert self.views is not None
        return await self.views.answer(path, query, headers, peer)

    async def explain(self, namespace: str, name: str, headers: Mapping[str, str], peer: str) -> tuple[int, bytes]:
        assert self.views is not None
        try:
            reads_all = await self.views.reads_all(headers, namespace, peer)
        except HttpError as error:
            return error.status, msgspec.json.encode({"error": error.sentence, "leader": ""})
        found = await self.extender.explain(namespace, name, with_holders=reads_all)
        if found is None:
            return 404, msgspec.json.encode({"error": f"pod {namespace}/{name} not found", "leader": ""})
        return 200, msgspec.json.encode(found)


def usual() -> MadeCluster:
    """Eight nodes of three models: shared, whole, ill, without an agent; pods that wait for two reasons; and events."""
    made = MadeCluster()
    for number in range(1, 4):
        made.add_node(f"gpu-a100-{number}", 8, A100, ill=(5,) if number == 2 else ())
    for number in range(1, 3):
        made.add_node(f"gpu-h100-{number}", 8, H100)
    for number in range(1, 4):
        made.add_node(f"gpu-t4-{number}", 4, T4, blocks=60)
    for at in range(4):
        made.runs(f"training/llama-ft-{at}", "gpu-a100-1", at, 100, 320, busy=0.97)
    shares = (("serving/chat-7b", 40, 96), ("serving/embed", 20, 48), ("research/notebook-ann", 25, 64))
    for number, where in enumerate(("gpu-a100-1", "gpu-a100-2", "gpu-h100-1", "gpu-h100-2")):
        for at, (name, cores, blocks) in enumerate(shares):
            for copy in range(1 + (number + at) % 2):
                made.runs(f"{name}-{number}{copy}", where, 4 + copy, cores, blocks, busy=(0.9, 0.35, 0.05)[at])
    made.extender.warm_up()  # what comes now is an event
    for at in range(3):
        made.runs(f"batch/eval-{at}", "gpu-t4-1", at, 50, 30, busy=0.8)
        made.runs(f"batch/render-{at}", "gpu-h100-1", at, 100, 320, busy=1.0)
    made.runs("research/notebook-bob", "gpu-t4-2", 0, 10, 8, busy=0.0)
    made.lose_agent("gpu-t4-3")
    made.waits("training/llama-70b", 800, 2560)
    made.waits("research/sweep-11", 60, 400)
    made.waits("research/sweep-12", 60, 400)
    return made


def large() -> MadeCluster:
    """240 nodes with names as clouds give them, 1,600 GPUs, of which some are idle, and pods of twelve namespaces."""
    made = MadeCluster()
    for number in range(240):
        model, gpus = ((A100, 8), (H100, 8), (T4, 4))[number % 3]
        name = f"ip-10-{20 + number % 4}-{number}-17.eu-central-1.compute.internal"
        made.add_node(name, gpus, model, blocks=60 if model is T4 else 320, ill=(3,) if number % 60 == 7 else ())
        for at in range(gpus - number % 5):
            cores = (100, 50, 25)[(number + at) % 3]
            made.runs(f"team-{number % 12}/job-{number}-{at}", name, at, cores, 40, busy=(number * 7 + at) % 11 / 10)
    made.extender.warm_up()
    for at in range(34):
        made.waits(f"team-{at % 5}/wait-{at}", 800 if at % 2 else 60, 400)
    return made


@asynccontextmanager
async def agents(made: MadeCluster) -> AsyncIterator[dict[str, Address]]:
    """One port for each agent."""
    names: dict[int, str] = {}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        return web.json_response(made.usage(names[request.transport.get_extra_info("sockname")[1]]))

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    found: dict[str, Address] = {}
    try:
        for name in made.uses:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[-1][1]
            names[port], found[name] = name, Address("127.0.0.1", port)
        yield found
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(
    made: MadeCluster, *, live: bool = True, installation: Installation = INSTALLATION
) -> AsyncIterator[str]:
    """The URL of the scheduler's server."""
    now = dt.datetime.now(dt.UTC)
    tls = ServerTls(make_certificate(("127.0.0.1",), make_ca(now, 30 * DAY), now, 10 * DAY))
    async with agents(made if live else MadeCluster()) as addresses:

        async def listed() -> dict[str, Address]:
            if not live:
                raise KubeError("the agents are not asked here")
            return addresses

        use = LiveUse(listed, clock=lambda: time.monotonic() - made.age_s)
        leader = Leadership("vcuda-scheduler-0")
        made.views = ViewService(
            *(made.extender, leader, TwoReaders(), use, installation),
            wall=lambda: time.time() - made.age_s,
        )
        server = SchedulerServer(made, context=tls.context, version="0.1.0")
        await server.start("127.0.0.1", 0, end_within=1.0)
        try:
            yield f"https://127.0.0.1:{server.port}"
        finally:
            await server.stop()
            await use.close()
