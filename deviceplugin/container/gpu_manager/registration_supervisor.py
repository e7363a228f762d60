"""The agent's side of `vcuda.sock`: keeps the registration process alive, and does what containers ask through it.

In: the grants that shall have a socket; calls of the process. Out: a call of `register` for each, at most one of a
grant at a time. The process starts with the first grant that wants a socket. If it ends, for example because a
container sent it more than it can hold, it is started again after a growing wait, and one log line says so. Whatever it
sends or does not read, the agent keeps one call of each grant at most.
"""

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from deviceplugin.backoff import Backoff, no_jitter
from deviceplugin.container.gpu_manager.registration_messages import (
    LONGEST_LINE,
    FromProcess,
    RegistrationCall,
    RegistrationResult,
    ServedGrants,
    SocketFailure,
    from_process,
    line,
)
from deviceplugin.errors import VcudaError
from deviceplugin.ledger.grant import GrantId

log = structlog.get_logger("vcuda.container")
_PROCESS = "deviceplugin.container.gpu_manager.registration_process"
_FIRST_WAIT_S, _MOST_WAIT_S = 1.0, 60.0
_STEADY_S = 300.0
_BUDGET_S = 5.0
_END_S = 1.0

RegisterContainer = Callable[[GrantId, str], Awaitable[None]]


class RegistrationSupervisor:
    """`serve` at any time; `run` until it is cancelled. `process` is the one that runs now."""

    def __init__(self, base: Path, register: RegisterContainer) -> None:
        self._base = base
        self._register = register
        self._wanted: frozenset[GrantId] = frozenset()
        self._failed: set[GrantId] = set()
        self._changed = asyncio.Event()
        self.process: Process | None = None

    def serve(self, grants: frozenset[GrantId]) -> None:
        if grants != self._wanted:
            self._wanted = grants
            self._failed &= grants
            self._changed.set()

    async def run(self) -> None:
        backoff = Backoff(first=_FIRST_WAIT_S, most=_MOST_WAIT_S, jitter=no_jitter)
        was_told = False
        while True:
            if not self._wanted:
                await self._changed.wait()
                self._changed.clear()
                continue
            began = time.monotonic()
            how = await self._one_life()
            if time.monotonic() - began >= _STEADY_S:
                backoff.reset()
                was_told = False
            wait_s = backoff.next()
            if not was_told:
                was_told = True
                log.warning("registration_process_ended", error=how, retry_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _one_life(self) -> str:
        """How it ended."""
        try:
            process = self.process = await self._start()
        except OSError as error:
            return f"the process that serves vcuda.sock could not be started: {error.strerror}"
        try:
            async with asyncio.TaskGroup() as group:
                telling = group.create_task(self._tell_wanted(process))
                await self._listen(process, group)
                await _end(process)
                telling.cancel()
        finally:
            _kill(process)
            status = await process.wait()
            self.process = None
        return _described(status)

    async def _start(self) -> Process:
        """In a session of its own, so that a terminal's signals end the agent first; gRPC's own lines are dropped."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _PROCESS, str(self._base)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=LONGEST_LINE,
            start_new_session=True,
        )

    async def _tell_wanted(self, process: Process) -> None:
        while True:
            self._changed.clear()
            await _send(process, ServedGrants(tuple(sorted(self._wanted))))
            await self._changed.wait()

    async def _listen(self, process: Process, group: asyncio.TaskGroup) -> None:
        """Until it ends, or sends what is no message."""
        assert process.stdout is not None
        busy: set[GrantId] = set()
        try:
            async for each in process.stdout:
                self._heard(from_process.decode(each), process, group, busy)
        except (ValueError, OSError):
            return

    def _heard(self, message: FromProcess, process: Process, group: asyncio.TaskGroup, busy: set[GrantId]) -> None:
        grant = GrantId(message.grant)
        if grant not in self._wanted:
            return
        match message:
            case SocketFailure(_, error) if grant not in self._failed:
                self._failed.add(grant)
                log.warning("registration_socket_failed", grant=grant, error=error)
            case RegistrationCall() if grant not in busy:
                busy.add(grant)
                group.create_task(self._answer(message, process, busy))

    async def _answer(self, call: RegistrationCall, process: Process, busy: set[GrantId]) -> None:
        grant = GrantId(call.grant)
        try:
            status, message = await self._result(grant, call.name)
            await _send(process, RegistrationResult(call.call, status, message))
        finally:
            busy.discard(grant)

    async def _result(self, grant: GrantId, name: str) -> tuple[str, str]:
        try:
            async with asyncio.timeout(_BUDGET_S):
                await self._register(grant, name)
        except TimeoutError:
            return "DEADLINE_EXCEEDED", "the limits were not written in time; try again"
        except VcudaError as error:
            return error.status, error.message
        except Exception:
            log.exception("registration_failed", grant=grant)
            return "INTERNAL", "vcuda internal error; see the agent log on this node"
        return "", ""


async def _send(process: Process, message: ServedGrants | RegistrationResult) -> None:
    """Waits while the process does not read; harmless after its end, which `_listen` notices."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(line(message))
        await process.stdin.drain()


async def _end(process: Process) -> None:
    """If it has closed its output it ends by itself, and its status says how: a kill now could take the status away."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await process.wait()
    _kill(process)


def _kill(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def _described(status: int) -> str:
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return (
        f"the process that serves vcuda.sock ended {how}; if a container with that socket sends more than the process "
        "may hold, no container can register until it stops"
    )
