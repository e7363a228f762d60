"""A container that has `vcuda.sock` can stop the registrations of its node, never the agent (Security 4)."""

import asyncio
import contextlib
import os
import resource
import signal
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


async def test_pods_start_while_a_container_holds_its_socket_or_floods_a_stopped_process(short_tmp: Path) -> None:
    """A node without CPU to spare, or a debugger, stops one of the two; the work of the other does not end with it."""
    async with node_with_hostile_pod(short_tmp) as (node, path):
        resource.prlimit(node.agent.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        held = [await connect(path) for _ in range(CONNECTIONS)]
        try:
            await check_that_pods_start(node)
        finally:
            for each in held:
                each.transport.abort()
        await check_that_others_register(node)

        with stopped(*registration_processes(node)):
            async with flooded(path):
                await check_that_pods_start(node)
        async with flooded(path):
            with stopped(node.agent.pid):
                waiting = asyncio.create_task(run(node, share("during", 5, 1)))
                await asyncio.sleep(STOPPED_S)
                assert not waiting.done()
            await waiting
        await check_that_others_register(node)


async def test_pods_start_while_a_container_sends_headers_without_end_and_the_agent_stops_as_asked(
    short_tmp: Path,
) -> None:
    async with node_with_hostile_pod(short_tmp) as (node, path):
        async with flooded(path):
            await check_that_pods_start(node)
        await check_that_others_register(node)
        assert len(node.agent.entries("registration_process_ended")) <= 1
        children = registration_processes(node)
        async with flooded(path):
            await node.agent.stop()
            await until_gone(children)
        await node.start_agent()
        await check_that_others_register(node)


async def test_a_killed_process_is_started_again_and_ends_with_a_killed_agent(short_tmp: Path) -> None:
    async with node_with_hostile_pod(short_tmp) as (node, _):
        (child,) = registration_processes(node)
        os.kill(child, signal.SIGKILL)
        await check_that_pods_start(node)
        await check_that_others_register(node)
        (next_child,) = registration_processes(node)
        assert next_child != child
        (said,) = node.agent.entries("registration_process_ended")
        assert "ended by SIGKILL" in said["error"]

        await node.agent.kill()
        await until_gone([next_child])
        await node.start_agent()
        await check_that_others_register(node)


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


def registration_processes(node: GpuNode) -> list[int]:
    threads = Path(f"/proc/{node.agent.pid}/task").iterdir()
    children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    return [pid for pid in children if b"registration_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A process whose parent was killed stays as a zombie where nobody reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory_of(pid: int) -> int:
    (resident,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(resident.split()[1]) << 10
