"""`vcuda.sock` in the directories of grants, for containers that still bring gpu-manager's client.

In: RegisterVDevice, called once by each process of the container. Out: a call of `register` with the grant, which the
socket alone identifies, and with the name of the directory in which the client looks: its container's id or name.
Callers are tenants: what they send is short and checked, and few connections, calls and headers are taken from each.
Memory is bounded by the process (`registration_process`), because gRPC reads headers before it counts them. On an error
the client ends the application, so only malformed requests are refused.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Set
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.container.gpu_manager.registration_messages import RegistrationResult
from deviceplugin.errors import one_line
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc

SOCKET_NAME = "vcuda.sock"
MOST_CONNECTIONS = 16  # of one socket: processes of a container that register at the same time
_MOST_CALLS = 8
_BUDGET_S = 10.0  # longer than the agent takes, on a machine without CPU to spare: an error ends the application
_APART_S = 0.05
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_metadata_size", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
    ("grpc.max_concurrent_streams", _MOST_CALLS),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 15_000),
]
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")

Register = Callable[[GrantId, str], Awaitable[RegistrationResult]]
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

    async def serve(self, grants: Set[GrantId]) -> dict[GrantId, str]:
        """These and no others have a socket from now on; returns why, for each that has none."""
        for grant in self.open_grants - grants:
            await self._servers.pop(grant).stop(None)
        failures: dict[GrantId, str] = {}
        for grant in grants - self.open_grants:
            if error := await self._open(grant):
                failures[grant] = error
        return failures

    async def _open(self, grant: GrantId) -> str:
        path = self.path(grant)
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
        rpc.add_VCUDAServiceServicer_to_server(_Service(grant, self._register), server)
        self._servers[grant] = server  # before it starts: one whose start is cancelled runs all the same
        try:
            server.add_insecure_port(f"unix:{path}")
            await asyncio.shield(server.start())
            path.chmod(0o777)
        except (RuntimeError, OSError) as error:
            await self._servers.pop(grant).stop(None)
            return one_line(str(error))
        return ""


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
                result = await self._register(self._grant, name)
                await asyncio.sleep(_APART_S)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the limits were not written in time; try again")
        if result.status:
            await context.abort(grpc.StatusCode[result.status], result.message)
        return pb.VDeviceResponse()
