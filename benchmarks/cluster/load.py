"""The requests of kube-scheduler and the API server to `vcuda scheduler`, and how long the answers take.

In: the measured process, the URL of its stub, sizes. Out: a `Turn`, or latencies of reviews. One connection sends
filter requests one after the other, as kube-scheduler does; Binds run in parallel. Each filter request names as many
nodes as kube-scheduler samples in a cluster of this size, starting where the last sample ended. Requests are encoded
before the clock starts. Every answer is checked: if a pod is not bound to the node from filter, the measurement fails.
"""

import asyncio
import base64
import random
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.cluster import fleet
from benchmarks.cluster.measured import Measured, MeasuredExtender, cpu_seconds
from sandbox.http_connection import Connection, HttpError

WARM = 50
CALM_RATE = 100.0
BINDERS = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """Latencies in seconds. Calm: 100 pods per second, filter and bind; busy: as fast as one kube-scheduler can call.

    `harness_percent`, `server_percent`: percent of a core used while busy, by load generator and stub, and by the
    measured process. If neither is near 100, other processes used the machine, and the figures are worthless.
    """

    calm_filters: list[float]
    calm_binds: list[float]
    busy_filters: list[float]
    binds: list[float]
    pairs_per_s: float
    harness_percent: float
    server_percent: float


@dataclass(slots=True)
class Load:
    """All requests; pods are numbered through all turns. `stub` is the API server of the measured process alone."""

    measured: MeasuredExtender
    stub: str
    stub_pid: int
    nodes: int
    next_pod: int = 0
    next_node: int = 0
    filters: Connection = field(init=False)

    @property
    def sample(self) -> int:
        return sampled(self.nodes)

    @classmethod
    async def open(cls, measured: MeasuredExtender, stub: str, stub_pid: int, nodes: int) -> "Load":
        """After some requests, so that what follows finds everything warm."""
        load = cls(measured, stub, stub_pid, nodes)
        load.filters = await Connection.open(measured.loopback_port, None)
        await load._calm(WARM)
        return load

    async def turn(self, pairs: int) -> Turn:
        calm_filters, calm_binds = await self._calm(max(1, pairs // 2))
        busy_filters, rate, harness, server = await self._busy(pairs)
        binds = await self._binds(-(-pairs // BINDERS) * BINDERS)
        return Turn(calm_filters, calm_binds, busy_filters, binds, rate, harness, server)

    async def _calm(self, count: int) -> tuple[list[float], list[float]]:
        """One pod every 10 ms; each is bound while the next ones are filtered."""
        numbers = await self._make(count)
        bodies = [self._filter_body(number) for number in numbers]
        filters: list[float] = []
        pool = await Binders.open(self, BINDERS)
        began = time.perf_counter()
        for place, number in enumerate(numbers):
            await asyncio.sleep(max(0.0, began + place / CALM_RATE - time.perf_counter()))
            node, took = await self._filter(bodies[place])
            filters.append(took)
            pool.bind(number, node)
        binds = await pool.finish()
        await self._unmake(numbers)
        return filters, binds

    async def _busy(self, count: int) -> tuple[list[float], float, float, float]:
        """The next filter follows the answer to the last one.

        At most 64 Binds at a time. Returns pairs per second too.
        """
        numbers = await self._make(count)
        bodies = [self._filter_body(number) for number in numbers]
        pool = await Binders.open(self, BINDERS)
        filters: list[float] = []
        began, worked, served = time.perf_counter(), self._worked(), self.measured.cpu_seconds()
        for place, number in enumerate(numbers):
            node, took = await self._filter(bodies[place])
            filters.append(took)
            await pool.room()
            pool.bind(number, node)
        await pool.finish()
        seconds = time.perf_counter() - began
        harness = (self._worked() - worked) / seconds * 100
        server = (self.measured.cpu_seconds() - served) / seconds * 100
        await self._unmake(numbers)
        return filters, count / seconds, harness, server

    async def _binds(self, count: int) -> list[float]:
        """64 Binds at a time, of pods that were filtered before."""
        numbers = await self._make(count)
        chosen = [(number, (await self._filter(self._filter_body(number)))[0]) for number in numbers]
        pool = await Binders.open(self, BINDERS)
        for number, node in chosen:
            await pool.room()
            pool.bind(number, node)
        binds = await pool.finish()
        await self._unmake(numbers)
        return binds

    async def _filter(self, body: bytes) -> tuple[str, float]:
        raw, took = await self.filters.post("/filter", body)
        answer = msgspec.json.decode(raw, type=_Chosen)
        names = answer.NodeNames or []
        if answer.Error or len(names) != 1:
            raise HttpError(f"filter answered {answer.Error or raw[:300].decode()}")
        return names[0], took

    def _filter_body(self, number: int) -> bytes:
        return msgspec.json.encode({"Pod": fleet.pending_pod(number), "Nodes": None, "NodeNames": self._sampled()})

    def _sampled(self) -> list[str]:
        names = [fleet.node_name((self.next_node + place) % self.nodes) for place in range(self.sample)]
        self.next_node = (self.next_node + self.sample) % self.nodes
        return names

    async def _make(self, count: int) -> range:
        numbers = range(self.next_pod, self.next_pod + count)
        self.next_pod += count
        await self._control("POST", numbers)
        await asyncio.sleep(0.5)  # the extender's watch has seen them
        return numbers

    async def _unmake(self, numbers: range) -> None:
        bound = int(await self._control("DELETE", numbers))
        if bound != len(numbers):
            raise HttpError(f"{len(numbers)} pods should be bound, and the API server has {bound}")
        await asyncio.sleep(0.5)

    async def _control(self, method: str, numbers: range) -> bytes:
        url = f"{self.stub}/bench/pods?from={numbers.start}&to={numbers.stop}"
        request = urllib.request.Request(url, method=method)
        return await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=120).read())

    def _worked(self) -> float:
        """CPU seconds of this process and the stub."""
        return time.process_time() + cpu_seconds(self.stub_pid)


async def reviews(measured: Measured, count: int) -> list[float]:
    """AdmissionReviews at random times, 100 per second on average, each on a free connection."""
    trust = measured.trust()
    free = [await Connection.open(measured.port, trust) for _ in range(8)]
    chance = random.Random(2)
    took: list[float] = []
    under_way: list[asyncio.Task[None]] = []

    async def review(number: int, due: float) -> None:
        connection = free.pop() if free else await Connection.open(measured.port, trust)
        answer, _ = await connection.post_json("/webhook", bodies[number])
        took.append(time.perf_counter() - due)
        free.append(connection)
        response = answer["response"]
        if not response["allowed"] or not msgspec.json.decode(base64.b64decode(response["patch"])):
            raise HttpError(f"the webhook did not patch pod {number}: {response}")

    bodies = [review_of(number) for number in range(count)]
    due = time.perf_counter()
    for number in range(count):
        due += chance.expovariate(CALM_RATE)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        under_way.append(asyncio.create_task(review(number, due)))
    await asyncio.gather(*under_way)
    for connection in free:
        await connection.close()
    return took[WARM:]


class _Chosen(msgspec.Struct):
    """The fields of filter's answer that are checked; the rest must be JSON."""

    NodeNames: list[str] | None = None
    Error: str = ""


@dataclass(slots=True)
class Binders:
    """Connections for Binds; each has one Bind at a time."""

    free: asyncio.Queue[Connection]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    @classmethod
    async def open(cls, load: Load, count: int) -> "Binders":
        free: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(count):
            free.put_nowait(await Connection.open(load.measured.loopback_port, None))
        return cls(free)

    async def room(self) -> None:
        """Returns when a connection is free."""
        self.free.put_nowait(await self.free.get())

    def bind(self, number: int, node: str) -> None:
        self.tasks.append(asyncio.create_task(self._bind(number, node)))

    async def finish(self) -> list[float]:
        await asyncio.gather(*self.tasks)
        while not self.free.empty():
            await self.free.get_nowait().close()
        return self.took

    async def _bind(self, number: int, node: str) -> None:
        connection = await self.free.get()
        name = fleet.pending_name(number)
        body = {"PodName": name, "PodNamespace": fleet.NAMESPACE, "PodUID": fleet.uid_of(name), "Node": node}
        answer, took = await connection.post_json("/bind", msgspec.json.encode(body))
        self.free.put_nowait(connection)
        self.took.append(took)
        if answer.get("Error"):
            raise HttpError(f"bind of pod {number} to {node}: {answer['Error']}")


def sampled(nodes: int) -> int:
    """How many feasible nodes kube-scheduler finds before it calls an extender (1.36, percentageOfNodesToScore 0)."""
    if nodes < 100:
        return nodes
    percent = max(5, 50 - nodes // 125)
    return max(100, nodes * percent // 100)


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Nearest rank, in ms."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, -(-len(ordered) * percent // 100) - 1)] * 1000


def review_of(number: int) -> bytes:
    pod = fleet.pending_pod(number)
    del pod["spec"]["schedulerName"]
    request = {
        "uid": f"review-{number}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "",
        "namespace": fleet.NAMESPACE,
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": {"apiVersion": "v1", "kind": "Pod", **pod},
        "oldObject": None,
        "dryRun": False,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
