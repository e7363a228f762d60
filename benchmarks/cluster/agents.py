"""The agents of the synthetic cluster: one process that answers `/usage` for every node, each at an address of its own.

In: numbers of nodes and pods. Out: a process that prints its port. Each answers at its `fleet.agent_address`, all on
that port. It is not measured itself: bodies are encoded in advance by the product's own view, and requests are not read
but for their end. Invariant: only loopback reaches it, and node, GPUs and pods are those of `fleet`.

    python -m benchmarks.cluster.agents --nodes 5000 --pods 20000
"""

import argparse
import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from benchmarks.cluster import fleet
from benchmarks.command import announce
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import ContainerUse, GpuSample, GpuUse
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_BYTES, Resource
from deviceplugin.observe.node_view import NodePicture
from deviceplugin.observe.usage import usage_of
from deviceplugin.serve.connections import raise_descriptor_limit

REPOSITORY = Path(__file__).resolve().parents[2]
_BOTH = frozenset({Resource.CORE, Resource.MEMORY})
_BACKLOG = 4096


def picture_of(number: int, held: Mapping[int, GpuShare]) -> NodePicture:
    """`held`: one pod on each of some GPUs, by the number of the pod."""
    chance, inventory = random.Random(number), fleet.inventory_of(number)
    grants = {pod: _grant(pod, share) for pod, share in held.items()}
    uses = {grants[pod].id: _use(share, chance) for pod, share in held.items()}
    busy = {share.uuid for share in held.values()}
    samples = {
        gpu.uuid: GpuSample(chance.randint(1, 100), chance.randrange(gpu.memory_bytes))
        for gpu in inventory.gpus
        if gpu.uuid in busy
    }
    idle = {gpu.uuid: GpuSample(0, 0) for gpu in inventory.gpus if gpu.uuid not in busy}
    return NodePicture(fleet.node_name(number), inventory, tuple(grants.values()), samples | idle, uses)


def _grant(pod: int, share: GpuShare) -> Grant:
    name = fleet.running_name(pod)
    owner = ContainerRef(PodRef(PodUid(fleet.uid_of(name)), fleet.NAMESPACE, name), "main")
    total = Request(cores=share.cores, blocks=share.blocks)
    allocation = Allocation(owner=owner, role=ContainerRole.APP, request=total, shares=(share,))
    return Grant(GrantId(f"{pod:016x}"), allocation, _BOTH, Source.PODS, proved=True, created=1_760_000_000.5)


def _use(share: GpuShare, chance: random.Random) -> ContainerUse:
    used = chance.randrange(max(1, share.blocks * BLOCK_BYTES))
    gpu = GpuUse(
        share.uuid, used, used // 8, used, 0, chance.uniform(0, share.cores), share.cores,
        chance.uniform(0, 1e5), chance.uniform(0, 1e4), chance.randrange(1 << 20),
    )  # fmt: skip
    return ContainerUse((gpu,), processes=1)


def bodies(nodes: int, pods: int) -> dict[str, bytes]:
    """By address, what an agent answers, with its head."""
    held: dict[int, dict[int, GpuShare]] = defaultdict(dict)
    for number, share in enumerate(fleet.running_shares(nodes, pods)):
        held[number % nodes][number] = share
    return {fleet.agent_address(number): _answer(picture_of(number, held[number])) for number in range(nodes)}


def _answer(picture: NodePicture) -> bytes:
    body = msgspec.json.encode(usage_of(picture))
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Requests have no bodies."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self._answers = answers
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._answer = self._answers[transport.get_extra_info("sockname")[0]]

    def data_received(self, data: bytes) -> None:
        *requests, self._read = (self._read + data).split(b"\r\n\r\n")
        for _ in requests:
            self._transport.write(self._answer)


def _listening() -> socket.socket:
    """At every address of the loopback interface, and at none of another."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    made.bind(("0.0.0.0", 0))
    made.listen(_BACKLOG)
    return made


@contextlib.contextmanager
def agent_servers(nodes: int, pods: int) -> Iterator[int]:
    """Their port."""
    command = [sys.executable, "-m", "benchmarks.cluster.agents", f"--nodes={nodes}", f"--pods={pods}"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def _serve(nodes: int, pods: int) -> None:
    raise_descriptor_limit()
    stop, answers, listening = asyncio.Event(), bodies(nodes, pods), _listening()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with await loop.create_server(lambda: _Connection(answers), sock=listening, backlog=_BACKLOG):
        announce(listening.getsockname()[1])
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(_serve(given.nodes, given.pods))
