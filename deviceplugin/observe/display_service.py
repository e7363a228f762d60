"""gpu-manager's display.GPUDisplay on a unix socket: the same three views over gRPC.

In: a `Rendering`. Out: a server on `--display-socket`, readable by root and its group. Pods are named as in
gpu-manager, by their name alone; where two namespaces have a pod of one name, the later one is `namespace/name`. A
value that is not measured stays unset.
"""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog

from deviceplugin.errors import ConfigError
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.units import BLOCK_MIB, MIB
from deviceplugin.model.usage import ContainerUse
from deviceplugin.observe.graph_text import draw
from deviceplugin.observe.node_view import AgentState, NodePicture
from deviceplugin.observe.rendering import Rendering
from deviceplugin.wire import display_pb2 as pb
from deviceplugin.wire import display_pb2_grpc as rpc

log = structlog.get_logger("vcuda.observe")
_Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")
_MODE = 0o660
_GRACE_S = 0.5
_LONGEST = 107  # sun_path without its final zero


class DisplayServer:
    """Serves from `start` until `stop`."""

    def __init__(self, rendering: Rendering, *, version: str) -> None:
        self._service = _Display(rendering, version)
        self._server: grpc.aio.Server | None = None

    async def start(self, path: Path) -> None:
        """Raises ConfigError where it cannot listen."""
        _free_path(path)
        server = grpc.aio.server()
        rpc.add_GPUDisplayServicer_to_server(self._service, server)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            raise ConfigError(f"--display-socket: {path} cannot be used for a socket; give a writable path") from None
        await server.start()
        self._server = server
        _restrict(path)

    async def stop(self) -> None:
        """Ends open calls and removes the socket."""
        if self._server is not None:
            await self._server.stop(_GRACE_S)
            self._server = None


def _restrict(path: Path) -> None:
    path.chmod(_MODE)


def _free_path(path: Path) -> None:
    """Prepares the path of `--display-socket`: a socket without a server is removed."""
    length = len(os.fsencode(path))
    if length > _LONGEST:
        raise ConfigError(
            f"--display-socket: the path has {length} bytes and a unix socket takes {_LONGEST}; give a shorter one"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(
                f"--display-socket: the directory {path.parent} does not exist; create it first"
            ) from None
        return
    except OSError as error:
        raise ConfigError(f"--display-socket: {path} cannot be used: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--display-socket: {path} exists and is not a socket; remove it or give another path")
    if _answers(path):
        raise ConfigError(f"--display-socket: another process serves {path}; stop it or give another path")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        try:
            caller.connect(str(path))
        except OSError:
            return False
        return True


class _Display(rpc.GPUDisplayServicer):
    """The three calls."""

    def __init__(self, rendering: Rendering, version: str) -> None:
        self._rendering = rendering
        self._version = version

    async def PrintGraph(self, request: pb.GraphRequest, context: _Context) -> pb.GraphResponse:
        return await self._shown("graph over gRPC", lambda picture, _: pb.GraphResponse(graph=draw(picture)), context)

    async def PrintUsages(self, request: pb.UsageRequest, context: _Context) -> pb.UsageResponse:
        return await self._shown("usage over gRPC", lambda picture, _: usages(picture), context)

    async def Version(self, request: pb.VersionRequest, context: _Context) -> pb.VersionResponse:
        return pb.VersionResponse(version=self._version)

    async def _shown(self, name: str, render: Callable[[NodePicture, AgentState], T], context: _Context) -> T:
        """grpc would send the text of an exception to the caller; here it goes to the log."""
        try:
            found = await self._rendering.get(name, render)
        except Exception:
            log.exception("view_failed", view=name)
            found = None
        if found is None:
            await context.abort(grpc.StatusCode.INTERNAL, "vcuda internal error; see the agent log on this node")
        return found


def usages(picture: NodePicture) -> pb.UsageResponse:
    """gpu-manager's message: pods, their containers, and the devices of each."""
    response = pb.UsageResponse()
    gpus = {gpu.uuid: gpu for gpu in picture.gpus}
    keys: dict[str, str] = {}  # by UID
    for grant in picture.grants:
        pod = grant.allocation.owner.pod
        if pod.uid not in keys:
            keys[pod.uid] = pod.name if pod.name not in keys.values() else str(pod)
        _add(response.usage[keys[pod.uid]], grant, gpus, picture.uses.get(grant.id))
    return response


def _add(stat: pb.ContainerStat, grant: Grant, gpus: dict[GpuUuid, Gpu], use: ContainerUse | None) -> None:
    allocation = grant.allocation
    used = {each.uuid: each for each in use.gpus} if use else {}
    stat.project = allocation.owner.pod.namespace
    spec = stat.spec[allocation.owner.name]
    spec.gpu, spec.mem = allocation.request.cores, sum(share.blocks for share in allocation.shares) * BLOCK_MIB
    for share in allocation.shares:
        gpu = gpus.get(share.uuid)
        if gpu is not None:
            device = stat.stat[allocation.owner.name].dev.add(id=share.uuid, card_idx=gpu.minor)
            device.device_mem = gpu.memory_bytes / MIB
            if (seen := used.get(share.uuid)) is not None:
                device.gpu, device.mem = seen.cores or 0, (seen.memory_bytes or 0) / MIB
                device.pids.extend(seen.pids)
