"""Whoever reaches the agent's port can use up neither its descriptors nor its time (Security 3 and 13)."""

import asyncio
import contextlib
import resource
from pathlib import Path

import aiohttp

from sandbox.gpunode import GpuNode
from tests.agent.harness import PATIENCE_S, check_consistency, node_with_agent, run, share

DESCRIPTORS = 256
CLIENTS = 400
SCRAPERS = 12


async def test_pods_start_while_strangers_hold_connections_and_ask_without_pause(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp) as node:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert resource.prlimit(node.agent.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        resource.prlimit(node.agent.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        strangers: list[asyncio.StreamWriter] = []
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.3", 0))
        async with aiohttp.ClientSession(node.agent.command.url, connector=connector) as session:
            scraping = [asyncio.create_task(scrape(session, path)) for path in ("/metrics", "/usage") * SCRAPERS]
            try:
                for says in (b"", b"GET /metrics HTTP/1.1\r\nHost:") * (CLIENTS // 2):
                    strangers.append(await stranger(node, says=says))  # noqa: PERF401 what is open is closed at the end
                await run(node, share("one"), share("two"))
                assert (await node.agent.get("/healthz")).status == 200
                await check_consistency(node)
                assert len(list(Path(f"/proc/{node.agent.pid}/fd").iterdir())) < DESCRIPTORS
            finally:
                for task in scraping:
                    task.cancel()
                await asyncio.gather(*scraping, return_exceptions=True)
                for each in strangers:
                    each.transport.abort()
        assert [entry for entry in node.agent.entries() if entry["level"] == "error"] == []
        assert 1 <= len(node.agent.entries("connections_full")) <= 10  # once a minute


async def stranger(node: GpuNode, *, says: bytes) -> asyncio.StreamWriter:
    """A connection from another address than kubelet's, which says this and nothing more."""
    async with asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", node.agent.command.port, local_addr=("127.0.0.2", 0))
    writer.write(says)
    return writer


async def scrape(session: aiohttp.ClientSession, path: str) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(path) as answer:
                await answer.read()
