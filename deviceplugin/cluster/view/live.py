"""What GPUs and containers use now, asked from the agents of the nodes that a caller looks at.

In: names of nodes, and where their agents are. Out: for each node its use, or one phrase why it is not known. Agents
are asked while somebody looks, and few once a minute, each by one question at a time; an answer is good for some
seconds, and one that does not come costs its deadline.
An agent's document comes from root on a node: its size is bounded, and it says nothing about other nodes.

What pods used in the last quarter of an hour: one sample a minute, kept in this replica's memory.

In: once a minute, what the agents of some nodes say. Out: the samples of one pod, the oldest first. Bounds: at most
`MOST_NODES` agents are asked a minute, those first whose pods somebody looked at lately; at most `_MOST_PODS` pods are
kept, about 1 KiB each. A pod that has left its node is forgotten with its last sample. What an agent says of pods that
are not on its node is left out.
"""

import asyncio
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TypeVar

import aiohttp
import msgspec

from deviceplugin.errors import VcudaError
from deviceplugin.kube.cluster_client import Address
from deviceplugin.kube.transport import opened_session, read_within
from deviceplugin.model.cluster_view import GpuLive, GpuRow, HolderRow, NodeRow, PodRow, ShareLive, UseSample, idle_of
from deviceplugin.serve.token_file import TokenFile
from deviceplugin.structs import replace

ROW_S = 5.0
"""An answer that is shown is at most so old."""
ORDER_S = 60.0  # as old as figures of metrics-server are (--metric-resolution), by which people sort kubectl top
"""An answer that is compared with all others is at most so old: asking thousands of agents costs seconds of CPU."""
_ADDRESSES_GOOD_FOR_S = 30.0
_WITHIN_S = 2.0
_IDLE_S = 15.0
_AT_ONCE = 32
_MOST_OPEN = 512
"""Where more agents were asked lately, connections are closed after the answer: idle ones cost descriptors."""
_LARGEST = 1 << 20
_HIDDEN = "hidden"
EVERY_S = 60.0
"""From one sample of a pod's use to the next."""
KEPT_S = 900.0
MOST_NODES = 250
_MOST_PODS = 5_000
_FIELDS = 4
_MOST_USED = 1 << 60
"""An agent may write numbers that are no floats."""
_Key = tuple[str, str]
"""Node and pod UID: an agent speaks for its own node."""
_Number = TypeVar("_Number", int, float)


class _Gpu(msgspec.Struct, frozen=True):
    uuid: str
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    processes: int | None = None


class _Share(ShareLive, frozen=True, kw_only=True):
    """The agent's document has the fields of `ShareLive`, and the GPU."""

    uuid: str


class _Container(msgspec.Struct, frozen=True):
    namespace: str
    uid: str
    container: str
    gpus: tuple[_Share, ...] = ()
    over_limit: tuple[str, ...] = ()


class _Usage(msgspec.Struct, frozen=True):
    node: str
    gpus: tuple[_Gpu, ...] = ()
    containers: tuple[_Container, ...] = ()


_READ = msgspec.json.Decoder(_Usage)


class NodeUse(msgspec.Struct, frozen=True):
    """By GPU; by pod UID, container and GPU; sentences by pod UID and container. `error`: why there is nothing."""

    gpus: Mapping[str, GpuLive] = msgspec.field(default_factory=dict)
    shares: Mapping[tuple[str, str, str], ShareLive] = msgspec.field(default_factory=dict)
    over_limit: Mapping[tuple[str, str], tuple[str, ...]] = msgspec.field(default_factory=dict)
    error: str = ""

    @property
    def percents(self) -> list[int]:
        """The utilization of the GPUs that report one."""
        return [each.utilization_percent for each in self.gpus.values() if each.utilization_percent is not None]

    def percent(self, uuid: str) -> int | None:
        live = self.gpus.get(uuid)
        return None if live is None else live.utilization_percent


_SLOW = NodeUse(error="its agent has not answered yet")


class LiveUse:
    """`addresses` lists the agents by node; `token` is shown to each.

    A caller waits at most `longest_s` for all. Call `close` at the end.
    """

    def __init__(
        self,
        addresses: Callable[[], Awaitable[Mapping[str, Address]]],
        token: TokenFile | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        longest_s: float = 10.0,
    ) -> None:
        self._list = addresses
        self._token = token or TokenFile(None)
        self._clock = clock
        self._longest_s = longest_s
        self._addresses: Mapping[str, Address] = {}
        self._listed = -_ADDRESSES_GOOD_FOR_S
        self._listing = asyncio.Lock()
        self._known: dict[str, tuple[float, NodeUse]] = {}  # when the answer came, and what it was
        self._asking: dict[str, asyncio.Task[NodeUse]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def of(self, nodes: Iterable[str], *, oldest_s: float = ROW_S) -> Mapping[str, NodeUse]:
        """One entry for each node, at most `oldest_s` old; never raises."""
        now = self._clock()
        self._known = {name: known for name, known in self._known.items() if now - known[0] < ORDER_S}
        found: dict[str, NodeUse] = {}
        missing: list[str] = []
        for name in nodes:
            known = self._known.get(name)
            if known is not None and now - known[0] < oldest_s:
                found[name] = known[1]
            else:
                missing.append(name)
        return found | await self._answers(missing) if missing else found

    async def close(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _answers(self, nodes: Collection[str]) -> dict[str, NodeUse]:
        try:
            await self._find_agents()
        except VcudaError as error:
            return {name: NodeUse(error=error.message) for name in nodes}
        found = {name: NodeUse(error="the node has no ready agent") for name in nodes if name not in self._addresses}
        is_kept_open = len(self._known) + len(nodes) <= _MOST_OPEN
        tasks = {
            name: self._asked(name, self._addresses[name], is_kept_open=is_kept_open)
            for name in nodes
            if name not in found
        }
        done = (await asyncio.wait(tasks.values(), timeout=self._longest_s))[0] if tasks else set()
        return found | {name: task.result() if task in done else _SLOW for name, task in tasks.items()}

    async def _find_agents(self) -> None:
        async with self._listing:
            if self._clock() - self._listed >= _ADDRESSES_GOOD_FOR_S:
                self._addresses = await self._list()
                self._listed = self._clock()

    def _asked(self, node: str, address: Address, *, is_kept_open: bool) -> "asyncio.Task[NodeUse]":
        """One question at a time for all who ask; it goes on where they leave."""
        task = self._asking.get(node)
        if task is None:
            if self._session is None:
                self._session = opened_session(_AT_ONCE, idle_s=_IDLE_S, longest_s=_WITHIN_S)
            task = asyncio.create_task(self._ask(node, address, self._session, is_kept_open=is_kept_open))
            self._asking[node] = task
            task.add_done_callback(lambda _: self._asking.pop(node))
        return task

    async def _ask(self, node: str, address: Address, session: aiohttp.ClientSession, *, is_kept_open: bool) -> NodeUse:
        use = await self._fetch(node, address, session, is_kept_open=is_kept_open)
        self._known[node] = self._clock(), use
        return use

    async def _fetch(
        self, node: str, address: Address, session: aiohttp.ClientSession, *, is_kept_open: bool
    ) -> NodeUse:
        headers = self._token.headers | ({} if is_kept_open else {"Connection": "close"})
        try:
            async with (
                self._slots,
                session.get(address.url("/usage"), headers=headers, allow_redirects=False) as answer,
            ):
                body = await read_within(answer, _LARGEST)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return NodeUse(error="its agent does not answer")
        if answer.status != 200 or body is None:
            size = f"more than {_LARGEST}" if body is None else len(body)
            return NodeUse(error=f"its agent answered with status {answer.status} and {size} bytes")
        return _read(node, body)


def _read(node: str, body: bytes) -> NodeUse:
    try:
        found = _READ.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return NodeUse(error="its agent's answer cannot be read")
    if found.node != node:
        return NodeUse(error="its agent speaks for another node")
    named = [each for each in found.containers if each.namespace != _HIDDEN]
    return NodeUse(
        gpus={
            each.uuid: GpuLive(each.utilization_percent, each.memory_used_bytes, each.processes) for each in found.gpus
        },
        shares={(each.uid, each.container, share.uuid): _without_gpu(share) for each in named for share in each.gpus},
        over_limit={(each.uid, each.container): each.over_limit for each in named},
        error="its agent hides who uses its GPUs (--query-names=false)" if len(named) < len(found.containers) else "",
    )


def node_with_use(row: NodeRow, use: NodeUse, gpus: Iterable[GpuRow]) -> NodeRow:
    """`gpus`: of the node, also where the row has none."""
    percents = use.percents
    return replace(
        row,
        gpus=tuple(replace(gpu, live=use.gpus.get(gpu.uuid), holders=_held(gpu, use)) for gpu in row.gpus),
        live=node_live(use),
        live_error=use.error,
        cores_used=float(sum(percents)) if percents else None,
        cores_idle=node_idle(gpus, use),
        gpus_measured=len(percents),
    )


def node_idle(gpus: Iterable[GpuRow], use: NodeUse) -> float | None:
    """Cores that are allocated on the GPUs that report, and not used."""
    return known_sum(idle_of(each.cores_allocated, use.percent(each.uuid)) for each in gpus)


def pod_with_use(row: PodRow, use: NodeUse) -> PodRow:
    containers = tuple(
        replace(
            each,
            over_limit=use.over_limit.get((row.uid, each.name)),
            shares=tuple(
                replace(share, live=use.shares.get((row.uid, each.name, share.uuid))) for share in each.shares
            ),
        )
        for each in row.containers
    )
    return replace(row, containers=containers)


def _held(gpu: GpuRow, use: NodeUse) -> tuple[HolderRow, ...]:
    return tuple(
        replace(
            each,
            live=use.shares.get((each.uid, each.container, gpu.uuid)),
            over_limit=use.over_limit.get((each.uid, each.container)),
        )
        for each in gpu.holders
    )


def node_live(use: NodeUse) -> GpuLive | None:
    """The mean utilization, the memory and processes of all GPUs; None if nothing is known of any."""
    if not use.gpus:
        return None
    gpus = use.gpus.values()
    percents = use.percents
    return GpuLive(
        utilization_percent=round(sum(percents) / len(percents)) if percents else None,
        memory_used_bytes=known_sum(each.memory_used_bytes for each in gpus),
        processes=known_sum(each.processes for each in gpus),
    )


def known_sum(values: Iterable[_Number | None]) -> _Number | None:
    """None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _without_gpu(share: _Share) -> ShareLive:
    return ShareLive(*(getattr(share, name) for name in ShareLive.__struct_fields__))


class UseHistory:
    """`wall` is Unix time."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._samples: OrderedDict[_Key, array[float]] = OrderedDict()  # the pod noted longest ago comes first
        self._watched: OrderedDict[str, float] = OrderedDict()

    def watch(self, node: str) -> None:
        """Somebody looks at a pod of this node."""
        self._watched[node] = self._wall()
        self._watched.move_to_end(node)
        if len(self._watched) > MOST_NODES:
            self._watched.popitem(last=False)

    def chosen(self, nodes: Iterable[str]) -> list[str]:
        """Of `nodes` those to ask this minute."""
        known, since = dict.fromkeys(nodes), self._wall() - KEPT_S
        watched = [name for name, at in self._watched.items() if at >= since and name in known]
        return list(islice(dict.fromkeys(chain(watched, known)), MOST_NODES))

    def note(self, node: str, use: NodeUse, pods: Collection[str]) -> None:
        """`pods`: the UIDs of those on the node; of no others is anything kept."""
        now = self._wall()
        for uid, lives in _by_pod(use, pods).items():
            samples = self._samples.setdefault((node, uid), array("d"))
            samples.extend((now, *lives))
            del samples[: -_FIELDS * int(KEPT_S / EVERY_S)]
            self._samples.move_to_end((node, uid))
        self._forget(now)

    def of(self, node: str, uid: str) -> tuple[UseSample, ...]:
        samples, since = self._samples.get((node, uid), array("d")), self._wall() - KEPT_S
        rows = (samples[at : at + _FIELDS] for at in range(0, len(samples), _FIELDS))
        return tuple(_sample(*row) for row in rows if row[0] >= since)

    def _forget(self, now: float) -> None:
        while self._samples:
            key = next(iter(self._samples))
            if len(self._samples) <= _MOST_PODS and self._samples[key][-_FIELDS] >= now - KEPT_S:
                return
            del self._samples[key]


def _by_pod(use: NodeUse, pods: Collection[str]) -> dict[str, tuple[float, float, float]]:
    """By UID: cores, bytes and seconds throttled of all its shares; what nobody measured is not a number."""
    lives: dict[str, list[tuple[float | None, float | None, float | None]]] = {}
    for (uid, _, _), live in use.shares.items():
        if uid in pods:
            found = (live.cores_used, live.memory_used_bytes, live.throttled_seconds)
            lives.setdefault(uid, []).append(found)
    return {uid: _sums(each) for uid, each in lives.items()}


def _sums(lives: Iterable[tuple[float | None, float | None, float | None]]) -> tuple[float, float, float]:
    def all_of() -> Iterator[float]:
        for values in zip(*lives, strict=True):
            found = known_sum(values)
            yield math.nan if found is None else float(min(max(found, 0), _MOST_USED))

    cores, memory, throttled = all_of()
    return cores, memory, throttled


def _sample(at: float, cores: float, memory: float, throttled: float) -> UseSample:
    return UseSample(
        at=at,
        cores_used=None if math.isnan(cores) else cores,
        memory_used_bytes=None if math.isnan(memory) else int(memory),
        throttled_seconds=None if math.isnan(throttled) else throttled,
    )
