"""`vcuda.sock` in the directories of grants, for containers that still bring gpu-manager's client.

In: RegisterVDevice, called once by each process of the container. Out: a call of `register` with the grant, which the
socket alone identifies, and with the name of the directory in which the client looks: its container's id or name.
Callers are tenants: what they send is short and checked (`one_call`). On an error the client ends the application, so
only malformed requests are refused.

Invariant: each grant has a part of its own. It has at most `MOST_CONNECTIONS` connections, and the next one is taken
`_APART_S` later. After what the client never sends the grant waits longer, up to `_MOST_WAIT_S`, until it sent nothing
of the kind for `_FORGIVEN_S`; others do not. Who waits, waits in the kernel, which keeps as many as `listen` says.
Closed sockets stay in their directories when the agent ends: they tell the next agent who had one.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from deviceplugin.backoff import Backoff, no_jitter
from deviceplugin.container.gpu_manager.one_call import CallResult, Calls, GarbageError, SilentError
from deviceplugin.errors import VcudaError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb

log = structlog.get_logger("vcuda.container")
SOCKET_NAME = "vcuda.sock"
MOST_CONNECTIONS = 8  # of one socket: processes of a container that register at the same time; others wait
_WAITING = 64
_BUDGET_S = 5.0
_APART_S = 0.05
_FIRST_WAIT_S, _MOST_WAIT_S, _FORGIVEN_S = 0.1, 10.0, 60.0
_BUFFER = 4 << 10
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")

Register = Callable[[GrantId, str], Awaitable[None]]
Refused = Callable[[GrantId, str], None]


class RegistrationServers:
    """One small server for each grant. All calls on one loop. `refused`: a connection of a grant, and why."""

    def __init__(self, base: Path, register: Register, refused: Refused) -> None:
        self._base = base
        self._register = register
        self._refused = refused
        self._servers: dict[GrantId, _Server] = {}

    @property
    def open_grants(self) -> frozenset[GrantId]:
        return frozenset(self._servers)

    def path(self, grant: GrantId) -> Path:
        return self._base / grant / SOCKET_NAME

    async def serve(self, grants: Set[GrantId]) -> dict[GrantId, str]:
        """These and no others have a socket from now on; returns why, for each that has none."""
        for grant in self.open_grants - grants:
            await self._servers.pop(grant).close()
            with contextlib.suppress(OSError):
                self.path(grant).unlink()
        failures: dict[GrantId, str] = {}
        for grant in grants - self.open_grants:
            try:
                opened = _listening(self.path(grant))
            except OSError as error:
                failures[grant] = error.strerror or str(error)
                continue
            self._servers[grant] = _Server(grant, opened, self._register, self._refused)
        return failures

    async def close(self) -> None:
        while self._servers:
            await self._servers.popitem()[1].close()


def _listening(path: Path) -> socket.socket:
    """A killed agent left its socket; a container cannot put anything there."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path.unlink(missing_ok=True)
        opened.bind(f"{path}")
        opened.listen(_WAITING)
        path.chmod(0o777)
    except OSError:
        opened.close()
        raise
    return opened


@dataclass(slots=True)
class _Server:
    """Of one grant; it serves from the moment that it is made."""

    grant: GrantId
    listening: socket.socket
    register: Register
    refused: Refused
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_CONNECTIONS))
    _wait: Backoff = field(default_factory=lambda: Backoff(first=_FIRST_WAIT_S, most=_MOST_WAIT_S, jitter=no_jitter))
    _pause_s: float = _APART_S
    _garbage_at: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._start(self._accept())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.listening.close()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                connection, _ = await loop.sock_accept(self.listening)
            except OSError:  # no descriptor is left, say
                self._places.release()
                await asyncio.sleep(_MOST_WAIT_S)
                continue
            self._start(self._serve(connection))
            if time.monotonic() - self._garbage_at > _FORGIVEN_S:
                self._wait.reset()
                self._pause_s = _APART_S
            await asyncio.sleep(self._pause_s)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_BUFFER)
            try:
                await Calls(reader, writer, self._answer).run()
            finally:
                writer.transport.abort()
        except GarbageError as error:
            if not isinstance(error, SilentError):
                self._pause_s, self._garbage_at = self._wait.next(), time.monotonic()
            self.refused(self.grant, str(error))
        except OSError:
            pass  # it went while it was taken
        except Exception:
            log.exception("registration_failed", grant=self.grant, action="please report this line")
        finally:
            connection.close()
            self._places.release()

    async def _answer(self, message: bytes) -> CallResult:
        try:
            request = pb.VDeviceRequest.FromString(message)
        except DecodeError:
            raise GarbageError("a message is no request of gpu-manager's client") from None
        name = request.container_id or request.container_name
        if name and not _NAME.fullmatch(name):
            return CallResult("INVALID_ARGUMENT", "this is neither the id nor the name of a container")
        async with self._one_at_a_time:
            result = await self._registered(name)
            await asyncio.sleep(_APART_S)
        return result

    async def _registered(self, name: str) -> CallResult:
        try:
            async with asyncio.timeout(_BUDGET_S):
                await self.register(self.grant, name)
        except TimeoutError:
            return CallResult("DEADLINE_EXCEEDED", "the limits were not written in time; try again")
        except VcudaError as error:
            return CallResult(error.status, error.message)
        except Exception:
            log.exception("registration_failed", grant=self.grant)
            return CallResult("INTERNAL", "vcuda internal error; see the agent log on this node")
        return CallResult()
