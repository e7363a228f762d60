"""`vcuda.sock` in the directories of grants, for containers that still bring gpu-manager's client.

In: RegisterVDevice, called once by each process of the container. Out: a call of `register` with the grant, which the
socket alone identifies, and with the name of the directory in which the client looks: its container's id or name.
Callers are tenants: what they send is short and checked (`one_call`). On an error the client ends the application, so
only malformed requests are refused.

Invariants: what comes through the sockets of all containers is worked on in turns of the node (`PairsInTurn`), those in
which files are written apart from the others, so it has a bound however many containers take part. A grant has at most
`MOST_CONNECTIONS` connections, a pod and the node have a bound too; the next one is taken `_APART_S` later. After what
the client never sends the grant waits longer, up to `_MOST_WAIT_S`, until it sent nothing like it for `_FORGIVEN_S`.
Processes that wait with the same name are answered together; a grant that registers again and again is answered once in
`_SLOW_S`. Who waits, waits in the kernel, which keeps as many as `listen` says.
Closed sockets stay in their directories when the agent ends: they tell the next agent who had one.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog
from google.protobuf.message import DecodeError

from deviceplugin.backoff import Backoff, no_jitter
from deviceplugin.errors import VcudaError
from deviceplugin.gpu_manager.one_call import CallResult, Calls, GarbageError, HungUpError, SilentError, Turn
from deviceplugin.latest import PairsInTurn
from deviceplugin.ledger.grant import GrantId
from deviceplugin.serve.connections import readable, within_descriptors
from deviceplugin.wire import registration_pb2 as pb

log = structlog.get_logger("vcuda.container")
SOCKET_NAME = "vcuda.sock"
MOST_CONNECTIONS = 8  # of one socket: processes of a container that register at the same time; others wait
MOST_OF_POD, MOST_OF_NODE = 16, 256
FEW = 32  # registrations of a container, before it has to wait for the next ones
_WAITING = 64
_BUDGET_S = 5.0
_APART_S, _SLOW_S = 0.05, 1.0
_READS_APART_S = 0.005
_FIRST_WAIT_S, _MOST_WAIT_S, _FORGIVEN_S = 0.1, 10.0, 60.0
_HUNG_UP_S = 1.0  # connections of clients that wait for longer in the kernel have ended when they are taken
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")

Register = Callable[[GrantId, str], Awaitable[None]]
Refused = Callable[[GrantId, str], None]


class RegistrationServers:
    """One small server for each grant. All calls on one loop. `refused`: a connection of a grant, and why.

    Grants with the same `pod_of` have common turns, and a common bound of connections.
    """

    def __init__(
        self, base: Path, register: Register, refused: Refused, *, pod_of: Callable[[GrantId], str] = str
    ) -> None:
        self._base = base
        self._register = register
        self._refused = refused
        self._pod_of = pod_of
        self._reads, self._writes = PairsInTurn(), PairsInTurn()  # pods, and the grants of each
        self._places = asyncio.Semaphore(within_descriptors(MOST_OF_NODE))
        self._places_of_pods: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
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
            self._servers[grant] = self._server(grant, opened)
        return failures

    def _server(self, grant: GrantId, opened: socket.socket) -> "_Server":
        pod = self._pod_of(grant)
        of_pod = self._places_of_pods.setdefault(pod, asyncio.Semaphore(MOST_OF_POD))
        return _Server(
            grant,
            opened,
            self._register,
            self._refused,
            read_turn=partial(_turn, self._reads, pod, grant, pause_s=_READS_APART_S),
            write_turn=partial(_turn, self._writes, pod, grant, pause_s=_APART_S),
            places=(asyncio.Semaphore(MOST_CONNECTIONS), of_pod, self._places),
        )

    async def close(self) -> None:
        while self._servers:
            await self._servers.popitem()[1].close()


async def _turn(turns: PairsInTurn, pod: str, grant: str, *, pause_s: float) -> None:
    """Returns at this grant's turn; the next one's is `pause_s` later."""
    give = await turns.take(pod, grant)
    asyncio.get_running_loop().call_later(pause_s, give)


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


class _Server(msgspec.Struct):
    """Of one grant; it serves from the moment that it is made."""

    grant: GrantId
    listening: socket.socket
    register: Register
    refused: Refused
    read_turn: Turn
    write_turn: Turn
    places: Sequence[asyncio.Semaphore]
    _one_at_a_time: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _waiting: dict[str, asyncio.Task[CallResult]] = msgspec.field(default_factory=dict)
    _wait: Backoff = msgspec.field(
        default_factory=lambda: Backoff(first=_FIRST_WAIT_S, most=_MOST_WAIT_S, jitter=no_jitter)
    )
    _pause_s: float = _APART_S
    _garbage_at: float = 0.0
    _credit: float = FEW
    _credited_at: float = 0.0
    _free_at: float = 0.0
    _tasks: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        self._start(self._accept())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.listening.close()

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        while True:
            await readable(self.listening)
            try:
                await self._take_one()
            except OSError:  # no descriptor is left, say
                await asyncio.sleep(_MOST_WAIT_S)
                continue
            if time.monotonic() - self._garbage_at > _FORGIVEN_S:
                self._wait.reset()
                self._pause_s = _APART_S
            await asyncio.sleep(self._pause_s)

    async def _take_one(self) -> None:
        with contextlib.ExitStack() as held:
            for places in self.places:
                await places.acquire()
                held.callback(places.release)
            await self.read_turn()
            connection, _ = self.listening.accept()
            held.callback(connection.close)
            until_it_ends = held.pop_all()
        # Not in the task: one that is cancelled before it begins would keep them.
        self._start(self._serve(connection)).add_done_callback(lambda _: until_it_ends.close())

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await Calls(connection, self.read_turn, self._answer).run()
        except GarbageError as error:
            self._took_garbage(error)
            self.refused(self.grant, str(error))
        except OSError:
            pass  # it went while it was taken
        except Exception:
            log.exception("registration_failed", grant=self.grant, action="please report this line")

    def _took_garbage(self, error: GarbageError) -> None:
        if isinstance(error, SilentError):
            return
        self._pause_s, self._garbage_at = self._wait.next(), time.monotonic()
        if isinstance(error, HungUpError):
            self._pause_s = min(self._pause_s, _HUNG_UP_S)

    async def _answer(self, message: bytes) -> CallResult:
        try:
            request = pb.VDeviceRequest.FromString(message)
        except DecodeError:
            raise GarbageError("a message is no request of gpu-manager's client") from None
        name = request.container_id or request.container_name
        if name and not _NAME.fullmatch(name):
            return CallResult("INVALID_ARGUMENT", "this is neither the id nor the name of a container")
        if (waiting := self._waiting.get(name)) is None:
            waiting = self._waiting[name] = self._start(self._in_turn(name))
        return await asyncio.shield(waiting)

    async def _in_turn(self, name: str) -> CallResult:
        """For all that wait with this name when it begins; who comes later may be missing in what it finds."""
        async with self._one_at_a_time:
            await asyncio.sleep(self._free_at - time.monotonic())
            await self.write_turn()
            del self._waiting[name]
            result = await self._registered(name)
            self._free_at = time.monotonic() + self._apart_s()
        return result

    def _apart_s(self) -> float:
        now = time.monotonic()
        self._credit = min(FEW, self._credit + (now - self._credited_at) / _SLOW_S) - 1
        self._credited_at = now
        return _APART_S if self._credit > 0 else _SLOW_S

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
