"""`vcuda.sock` in each grant's directory, for containers that still bring gpu-manager's client.

In: RegisterVDevice, called once by each process of the container. Out: a call of `register` with the grant, which the
socket alone identifies, and with the name of the directory in which the client looks: its container's id or name.
Callers are tenants: what they send is short and checked, and few calls are served at once. On an error the client ends
the application, so only malformed requests are refused.
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
        """Harmless when it is open. False where no socket is possible; the container starts without one."""
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
            log.warning("registration_socket_failed", grant=grant, error=str(error))
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
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is neither the id nor the name of a container")
        try:
            async with asyncio.timeout(_BUDGET_S), self._one_at_a_time:
                await self._register(self._grant, name)
                await asyncio.sleep(_APART_S)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the limits were not written in time; try again")
        except VcudaError as error:
            await context.abort(grpc.StatusCode[error.status], error.message)
        except Exception:
            log.exception("registration_failed", grant=self._grant)
            await context.abort(grpc.StatusCode.INTERNAL, "vcuda internal error; see the agent log on this node")
        return pb.VDeviceResponse()
