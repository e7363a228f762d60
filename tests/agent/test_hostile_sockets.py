"""A container that has `vcuda.sock` delays its own registrations, never those of others, nor the agent (Security 4)."""

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.gpunode import GpuNode
from tests.agent.harness import PATIENCE_S, check_consistency, node_with_agent, run, share
from tests.agent.test_registering import ASKS, register

DESCRIPTORS = 1024
CONNECTIONS = 1100
WRITERS = 8
STOPPED_S = 3.0
MOST_GROWTH = 48 << 20  # of the agent, which starts pods meanwhile; a flood took 500 MiB


async def test_pods_start_and_register_while_a_container_holds_its_socket(short_tmp: Path) -> None:
    """More connections than the agent has descriptors: they wait in the kernel."""
    async with node_with_hostile_pod(short_tmp) as (node, path):
        resource.prlimit(node.agent.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        async with held(path):
            await check_that_pods_start(node)
            await check_that_others_register(node)


async def test_pods_start_and_register_while_a_container_sends_headers_without_end(short_tmp: Path) -> None:
    """Security A-5: the log names the container, and only that one."""
    async with node_with_hostile_pod(short_tmp) as (node, path):
        async with flooded(path):
            await check_that_pods_start(node)
            for _ in range(3):
                await check_that_others_register(node)
            (said,) = node.agent.entries("registration_refused")
            assert said["pod"] == "default/hostile"
            assert "only this container waits longer" in said["error"]
            with stopped(node.agent.pid):
                waiting = asyncio.create_task(run(node, share("during", 5, 1)))
                await asyncio.sleep(STOPPED_S)
                assert not waiting.done()
            await waiting
            metrics = (await node.agent.get("/metrics")).text
            assert re.search(r"^vcuda_registration_connections_refused_total [1-9]", metrics, re.MULTILINE)
            await node.agent.stop()
        await node.start_agent()
        await check_that_others_register(node)


@asynccontextmanager
async def held(path: Path) -> AsyncIterator[None]:
    """As many connections as the kernel takes."""
    taken = []
    try:
        for _ in range(CONNECTIONS):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            taken.append(one)
            with contextlib.suppress(BlockingIOError):
                one.connect(f"{path}")
        yield
    finally:
        for each in taken:
            each.close()


@asynccontextmanager
async def node_with_hostile_pod(home: Path) -> AsyncIterator[tuple[GpuNode, Path]]:
    """And the path of its socket, once it is served."""
    async with node_with_agent(home) as node:
        (uid,) = await run(node, share("hostile", 5, 1, annotations=ASKS))
        await register(node, uid)
        yield node, node.kubelet.container_view(uid, "c").host_path("/etc/vcuda/vcuda.sock")


async def check_that_pods_start(node: GpuNode) -> None:
    before = memory_of(node.agent.pid)
    await run(node, *(share(fresh("neighbour"), 5, 1) for _ in range(3)))
    assert (await node.agent.get("/healthz")).status == 200
    await check_consistency(node)
    assert memory_of(node.agent.pid) - before < MOST_GROWTH
    assert [entry for entry in node.agent.entries() if entry["level"] == "error"] == []


async def check_that_others_register(node: GpuNode) -> None:
    (uid,) = await run(node, share(fresh("other"), 5, 1, annotations=ASKS))
    await register(node, uid)


def fresh(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def flooded(path: Path) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(flood(path)) for _ in range(WRITERS)]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def flood(path: Path) -> None:
    """HTTP/2: one request after the other whose headers do not end."""
    headers = frame(9, (b"\x00\x03abc\x64" + b"x" * 100) * 80)
    while True:
        with contextlib.suppress(OSError):
            writer = await connect(path)
            try:
                writer.write(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"", stream=0) + frame(1, b"\x00\x01a\x01b")
                )
                for _ in range(2000):
                    writer.write(headers)
                    await writer.drain()
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.01)


def frame(kind: int, payload: bytes, *, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


async def connect(path: Path) -> asyncio.StreamWriter:
    async with asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_unix_connection(path)
    return writer


def memory_of(pid: int) -> int:
    (resident,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(resident.split()[1]) << 10
