"""The real `vcuda agent` as a process: start it, ask its views, kill and stop it.

In: how to start it. Out: its views as typed values and its log as entries. It stands in for nothing: the demo, the
benchmarks and the tests run it beside the stand-ins.
"""

from dataclasses import dataclass

import aiohttp
import msgspec

from deviceplugin.observe.usage import Usage
from sandbox.program import STOP_S, Command, Program, ProgramFailureError, free_port

__all__ = ["STOP_S", "AgentCommand", "AgentFailureError", "AgentProcess", "Reply", "free_port"]

AgentFailureError = ProgramFailureError


@dataclass(frozen=True, slots=True)
class AgentCommand(Command):
    """`port` serves its views."""

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


class AgentProcess(Program):
    """One agent over several lives."""

    command: AgentCommand

    def __init__(self, command: AgentCommand) -> None:
        super().__init__(command, who="the agent")

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
