"""What GPUs and containers use now, asked from the agents of the nodes that a caller looks at.

In: names of nodes, and where their agents are. Out: for each node its use, or one phrase why it is not known. Agents
are asked only while somebody looks; an answer is good for some seconds, and one that does not come costs its deadline.
An agent's document comes from root on a node: its size is bounded, and it says nothing about other nodes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec
from msgspec.structs import replace

from deviceplugin.errors import VcudaError
from deviceplugin.kube.endpoint_slices import Address
from deviceplugin.model.cluster_view import GpuLive, GpuRow, HolderRow, NodeRow, PodRow, ShareLive

_GOOD_FOR_S = 5.0
_ADDRESSES_GOOD_FOR_S = 30.0
_WITHIN = aiohttp.ClientTimeout(total=2.0)
_AT_ONCE = 32
_LARGEST = 1 << 20
_HIDDEN = "hidden"


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


@dataclass(frozen=True, slots=True)
class NodeUse:
    """By GPU; by pod UID, container and GPU; sentences by pod UID and container. `error`: why there is nothing."""

    gpus: Mapping[str, GpuLive] = field(default_factory=dict)
    shares: Mapping[tuple[str, str, str], ShareLive] = field(default_factory=dict)
    over_limit: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    error: str = ""


class LiveUse:
    """`addresses` lists the agents by node. Call `close` at the end."""

    def __init__(
        self,
        addresses: Callable[[], Awaitable[Mapping[str, Address]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list = addresses
        self._clock = clock
        self._addresses: Mapping[str, Address] = {}
        self._listed = -_ADDRESSES_GOOD_FOR_S
        self._known: dict[str, tuple[float, NodeUse]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def of(self, nodes: Iterable[str]) -> Mapping[str, NodeUse]:
        """One entry for each node; never raises."""
        names = tuple(nodes)
        now = self._clock()
        self._known = {name: known for name, known in self._known.items() if known[0] > now}
        missing = [name for name in names if name not in self._known]
        if missing:
            try:
                await self._find_agents()
            except VcudaError as error:
                return {name: self._known.get(name, (0.0, NodeUse(error=error.message)))[1] for name in names}
            found = await asyncio.gather(*(self._ask(name) for name in missing))
            until = self._clock() + _GOOD_FOR_S
            self._known |= {name: (until, use) for name, use in zip(missing, found, strict=True)}
        return {name: self._known[name][1] for name in names}

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _find_agents(self) -> None:
        if self._clock() - self._listed >= _ADDRESSES_GOOD_FOR_S:
            self._addresses = await self._list()
            self._listed = self._clock()

    async def _ask(self, node: str) -> NodeUse:
        address = self._addresses.get(node)
        if address is None:
            return NodeUse(error="the node has no ready agent")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_WITHIN)
        try:
            async with (
                self._slots,
                self._session.get(address.url("/usage"), allow_redirects=False) as answer,
            ):
                body = await answer.content.read(_LARGEST + 1)
                while len(body) <= _LARGEST and (more := await answer.content.read(_LARGEST)):
                    body += more
        except (aiohttp.ClientError, TimeoutError, OSError):
            return NodeUse(error="its agent does not answer")
        if answer.status != 200 or len(body) > _LARGEST:
            return NodeUse(error=f"its agent answered with status {answer.status} and {len(body)} bytes")
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


def node_with_use(row: NodeRow, use: NodeUse) -> NodeRow:
    """The sums over the GPUs stand at the node: the mean utilization, the memory and processes of all."""
    gpus = tuple(replace(gpu, live=use.gpus.get(gpu.uuid), holders=_held(gpu, use)) for gpu in row.gpus)
    return replace(row, gpus=gpus, live=_sum(use.gpus.values()) if use.gpus else None, live_error=use.error)


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


def _sum(gpus: Collection[GpuLive]) -> GpuLive:
    told = [each.utilization_percent for each in gpus if each.utilization_percent is not None]
    return GpuLive(
        utilization_percent=round(sum(told) / len(told)) if told else None,
        memory_used_bytes=_total(each.memory_used_bytes for each in gpus),
        processes=_total(each.processes for each in gpus),
    )


def _total(values: Iterable[int | None]) -> int | None:
    """None where none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _without_gpu(share: _Share) -> ShareLive:
    return ShareLive(*(getattr(share, name) for name in ShareLive.__struct_fields__))
