"""The process that serves `vcuda.sock`: `python -m ...registration_process DIRECTORY`, a child of the agent.

In: `FromAgent` on standard input. Out: sockets in grant directories; `FromProcess` on standard output. What a container
can do to a gRPC server, in descriptors, memory and time, it does to this process and not to the agent: its limits are
its own, and beyond them it ends. It knows nothing but the names of grants, so the agent can start it again at any time.
It ends when its standard input does: whichever way the agent ended, that pipe is closed.
"""

import asyncio
import itertools
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.container.gpu_manager.registration import RegistrationServers
from deviceplugin.container.gpu_manager.registration_messages import (
    LONGEST_LINE,
    FromProcess,
    RegistrationCall,
    RegistrationResult,
    ServedGrants,
    SocketFailure,
    from_agent,
    line,
)
from deviceplugin.ledger.grant import GrantId

_MEMORY = 64 << 20  # in addition to about 41 MiB with which it starts
_DESCRIPTORS = 4096
_NICE = 10
_MOST_UNSENT = 64 << 10


class AgentConnection:
    """Calls to the agent that wait for their result."""

    def __init__(self, out: asyncio.WriteTransport) -> None:
        self._out = out
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[RegistrationResult]] = {}

    def send(self, message: FromProcess) -> None:
        self._out.write(line(message))

    async def register(self, grant: GrantId, name: str) -> RegistrationResult:
        """A stopped agent reads nothing: then nothing more is kept for it."""
        if self._out.get_write_buffer_size() > _MOST_UNSENT:
            return RegistrationResult(0, "UNAVAILABLE", "the vcuda agent on this node does not answer; try again")
        number = next(self._numbers)
        result: asyncio.Future[RegistrationResult] = asyncio.get_running_loop().create_future()
        self._waiting[number] = result
        try:
            self.send(RegistrationCall(number, grant, name))
            return await result
        finally:
            del self._waiting[number]

    def answered(self, result: RegistrationResult) -> None:
        waiting = self._waiting.get(result.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)


async def serve(base: Path) -> None:
    """Until the end of standard input."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end_without_memory)
    requests = asyncio.StreamReader(limit=LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    agent = AgentConnection(out)
    servers = RegistrationServers(base, agent.register)
    async for request in requests:
        match from_agent.decode(request):
            case ServedGrants(grants):
                failures = await servers.serve(frozenset(map(GrantId, grants)))
                for grant, error in failures.items():
                    agent.send(SocketFailure(grant, error))
            case RegistrationResult() as result:
                agent.answered(result)


def _end_without_memory(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Memory may be missing anywhere: a new process is better than one of which a part has ended."""
    if isinstance(context.get("exception"), MemoryError):
        os._exit(os.EX_SOFTWARE)


async def _limit_memory() -> grpc.aio.Server:
    """Keep the server: gRPC starts its threads with the first one and ends them with the last.

    The stacks of these threads count as data although nothing touches them: 60 MiB on two cores, 160 MiB on 16.
    """
    server = grpc.aio.server()
    await server.start()
    _limit(resource.RLIMIT_DATA, _data_bytes() + _MEMORY)
    return server


def _data_bytes() -> int:
    (found,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmData:"))
    return int(found.split()[1]) << 10


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (bound, bound))


def _give_way() -> None:
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    _limit(resource.RLIMIT_CORE, 0)
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel ends this one before the agent


async def _serve_and_end(base: Path) -> None:
    """Without gRPC's end, which removes the sockets: they tell the next agent who had one."""
    status = os.EX_SOFTWARE
    try:
        first = await _limit_memory()
        await serve(base)
        del first
        status = os.EX_OK
    finally:
        os._exit(status)


def main() -> None:
    _give_way()
    asyncio.run(_serve_and_end(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
