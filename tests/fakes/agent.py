"""The real `vcuda agent` as an operator has it: a process of its own that is started, asked, killed and stopped.

In: how to start it. Out: its views as typed values and its log as entries. The one thing in this folder that stands in
for nothing; the demo, the benchmark and the scenarios of tests/agent run it beside the others. Invariant: after
`destroy` the process is gone.
"""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from deviceplugin.observe.usage import Usage

STOP_S = 10.0
_LOOK_S = 0.02
Json = dict[str, Any]


class AgentFailureError(Exception):
    """The agent did not do what it must; the message is one sentence, with what it said last."""


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


@dataclass(frozen=True, slots=True)
class Reply:
    """What a view answered."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class AgentProcess:
    """One agent over several lives."""

    def __init__(self, command: AgentCommand) -> None:
        self.command = command
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    async def start(self, *more: str) -> None:
        """`more` are further flags, for this life only; what stands later on the command line wins."""
        with self.command.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command.arguments, *more, env=self.command.environment, stdout=log, stderr=log
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
            raise AgentFailureError(f"the agent did not stop within {STOP_S:g} s of SIGTERM") from None
        if status:
            raise AgentFailureError(f"the agent stopped with exit status {status}: {self.last_words()}")

    async def destroy(self) -> None:
        """However it is."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def usage(self) -> Usage:
        return msgspec.json.decode((await self.must_get("/usage")).body, type=Usage)

    async def graph(self) -> str:
        return (await self.must_get("/graph")).text

    async def get(self, path: str) -> Reply:
        """Any answer; AgentFailureError where there is none."""
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession(self.command.url, timeout=timeout) as session,
                session.get(path) as response,
            ):
                return Reply(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AgentFailureError(f"the agent does not answer on {path}: {error or 'timeout'}") from error

    async def must_get(self, path: str) -> Reply:
        reply = await self.get(path)
        if reply.status >= 300:
            raise AgentFailureError(f"the agent answers {reply.status} on {path}: {reply.text[:200]}")
        return reply

    async def wait_ready(self, *, deadline_s: float) -> None:
        async def ready() -> bool:
            try:
                return (await self.get("/readyz")).status == 200
            except AgentFailureError:
                return False

        await self.until(ready, what="the agent is ready", deadline_s=deadline_s)

    async def until(self, holds: Callable[[], Awaitable[bool]], *, what: str, deadline_s: float) -> None:
        """Asks until it holds; fails at once when the agent has ended by itself."""
        end = time.monotonic() + deadline_s
        while not await holds():
            if self._process is not None and self._process.returncode is not None:
                raise AgentFailureError(f"the agent ended while it was waited until {what}: {self.last_words()}")
            if time.monotonic() > end:
                raise AgentFailureError(f"after {deadline_s:g} s still waiting until {what}; {self.last_words()}")
            await asyncio.sleep(_LOOK_S)

    def entries(self, message: str = "") -> list[Json]:
        """Its log over all lives; with a message only the entries that have it."""
        found = []
        for line in self._lines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # plain text, or a line that is being written
            if message in ("", entry.get("msg")):
                found.append(entry)
        return found

    def last_words(self) -> str:
        """The last line of its log, as a person would read it."""
        lines = self._lines()
        if not lines:
            return "it has said nothing"
        try:
            entry = json.loads(lines[-1])
        except ValueError:
            return f"it last said: {lines[-1][:300]}"
        facts = ", ".join(f"{key} {entry[key]}" for key in ("cause", "message", "error") if key in entry)
        return f"it last said: {entry.get('msg', '')}{f' ({facts})' if facts else ''}"

    def _lines(self) -> list[str]:
        log = self.command.log
        return log.read_text(errors="replace").strip().splitlines() if log.exists() else []

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            raise AgentFailureError(f"the agent has ended by itself; {self.last_words()}")
        return self._process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
