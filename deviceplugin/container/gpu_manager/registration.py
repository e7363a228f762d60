"""`vcuda.sock` in each grant's directory, for containers that still bring the lineage's client.

In: RegisterVDevice (research 1.3), called once by each process of the container. Out: a call of `register` with the
grant, which is known by the socket and by nothing that the caller says, and with the directory's name that the client
looks in: its container's id or name. Callers are tenants: what they send is short, checked, and cannot be many at once.
The client gives up for good on an error and takes the application with it, so only nonsense is refused.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import structlog

from deviceplugin.errors import VcudaError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc

log = structlog.get_logger("vcuda.container")
SOCKET_NAME = "vcuda.sock"
LONGEST_PATH = 107
_BUDGET_S = 2.0
_APART_S = 0.05
_OPTIONS = [("grpc.max_receive_message_length", 4096), ("grpc.so_reuseport", 0)]
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")

Register = Callable[[GrantId, str], Awaitable[None]]
Context = grpc.aio.ServicerContext[Any, Any]


class RegistrationServers:
    """One small server for each grant. All calls on one loop."""

    def __init__(self, base: Path, register: Register) -> None:
        self._base = base
        self._register = register
        self._servers: dict[GrantId, grpc.aio.Server] = {}

    @property
    def open_grants(self) -> frozenset[GrantId]:
        return frozenset(self._servers)

    def path(self, grant: GrantId) -> Path:
        return self._base / grant / SOCKET_NAME

    async def open(self, grant: GrantId) -> bool:
        """Harmless when it is open. False where there can be no socket; the container starts without."""
        path = self.path(grant)
        if grant in self._servers:
            return True
        if len(os.fsencode(path)) > LONGEST_PATH:
            return False
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=8)
        rpc.add_VCUDAServiceServicer_to_server(_Service(grant, self._register), server)
        try:
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            path.chmod(0o777)
        except (RuntimeError, OSError) as error:
            log.warning("vcuda.sock cannot be opened", grant=grant, cause=str(error))
            await server.stop(None)
            return False
        self._servers[grant] = server
        return True

    async def close(self, grant: GrantId) -> None:
        server = self._servers.pop(grant, None)
        if server is not None:
            await server.stop(None)

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(grant) for grant in tuple(self._servers)))


class _Service(rpc.VCUDAServiceServicer):
    """The one call, for one grant."""

    def __init__(self, grant: GrantId, register: Register) -> None:
        self._grant = grant
        self._register = register
        self._one_at_a_time = asyncio.Lock()

    async def RegisterVDevice(self, request: pb.VDeviceRequest, context: Context) -> pb.VDeviceResponse:
        name = request.container_id or request.container_name
        if name and not _NAME.fullmatch(name):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no id and no name of a container")
        try:
            async with asyncio.timeout(_BUDGET_S), self._one_at_a_time:
                await self._register(self._grant, name)
                await asyncio.sleep(_APART_S)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "vcuda found no time to write the limits; try again")
        except VcudaError as error:
            await context.abort(grpc.StatusCode[error.status], error.message)
        except Exception:
            log.exception("a registration failed", grant=self._grant)
            await context.abort(grpc.StatusCode.INTERNAL, "vcuda failed inside; the agent's log on this node says more")
        return pb.VDeviceResponse()
