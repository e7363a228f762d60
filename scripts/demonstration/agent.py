"""The real agent as a process of its own: start, ask, kill, stop.

In: where everything lies. Out: a running `vcuda agent` and its views as typed values. Invariant: the process is gone
when the demo is, however the demo ends.
"""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from deviceplugin.observe.usage import Usage
from scripts.demonstration.failure import DemoError

STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """How to start it; `log` collects what all its lives say."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Agent:
    """One agent over several lives."""

    def __init__(self, command: AgentCommand) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._command.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command.arguments, env=self._command.environment, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        """SIGKILL: it can finish nothing."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def stop(self) -> None:
        """SIGTERM, and the exit status must be 0 within its promise."""
        process, self._process = self._running(), None
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                status = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise DemoError(f"the agent did not stop within {STOP_S:g} s of SIGTERM") from None
        if status:
            raise DemoError(f"the agent stopped with exit status {status}: {self.last_words()}")

    async def destroy(self) -> None:
        """For the end of a demo that failed."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def usage(self) -> Usage:
        return msgspec.json.decode(await self._get("/usage"), type=Usage)

    async def graph(self) -> str:
        return (await self._get("/graph")).decode()

    async def wait_ready(self, *, deadline_s: float) -> None:
        async def ready() -> bool:
            try:
                await self._get("/readyz")
            except DemoError:
                return False
            return True

        await self.until(ready, what="the agent is ready", deadline_s=deadline_s)

    async def until(self, holds: Callable[[], Awaitable[bool]], *, what: str, deadline_s: float) -> None:
        """Asks until it holds; fails at once when the agent has ended by itself."""
        end = time.monotonic() + deadline_s
        while not await holds():
            if self._process is not None and self._process.returncode is not None:
                raise DemoError(f"the agent ended while the demo waited until {what}: {self.last_words()}")
            if time.monotonic() > end:
                raise DemoError(f"after {deadline_s:g} s still waiting until {what}; {self.last_words()}")
            await asyncio.sleep(0.02)

    def last_words(self) -> str:
        """The last line of its log, as a person would read it."""
        lines = self._command.log.read_text(errors="replace").strip().splitlines() if self._command.log.exists() else []
        if not lines:
            return "it has said nothing"
        try:
            entry = json.loads(lines[-1])
        except ValueError:
            return f"it last said: {lines[-1][:300]}"
        facts = ", ".join(f"{key} {entry[key]}" for key in ("cause", "message", "error") if key in entry)
        return f"it last said: {entry.get('msg', '')}{f' ({facts})' if facts else ''}"

    async def _get(self, path: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession(self._command.url, timeout=timeout) as session,
                session.get(path) as response,
            ):
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"the agent does not answer on {path}: {error or 'timeout'}") from error
        if response.status >= 300:
            raise DemoError(f"the agent answers {response.status} on {path}: {body[:200].decode(errors='replace')}")
        return body

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            raise DemoError(f"the agent has ended by itself; {self.last_words()}")
        return self._process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
