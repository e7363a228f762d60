"""What gpu-manager showed, with its names, types and units: for its clients, dashboards and alerts.

In: a picture. Out: the message of `PrintUsages`, the same as a JSON document, and the four metrics of `/metric`;
display.GPUDisplay on a unix socket, `--display-socket`, readable by root and its group: the same three views over gRPC.
Pods are keyed by UID, GPUs are named by PCI address and NVML's index, memory is in MiB, use in percent of one GPU, and
a request for cores is a part of one GPU. A value that is not measured is unset, and has no series.
"""

import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.json_format import MessageToDict
from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from deviceplugin.errors import ConfigError
from deviceplugin.exposition import Family, metric_of
from deviceplugin.latest import to_its_end
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.gpu import ContainerUse, Gpu, GpuUse, GpuUuid
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import CORES_PER_GPU, MIB
from deviceplugin.observe.graph import draw
from deviceplugin.observe.node_view import AgentState, NodePicture, Rendering
from deviceplugin.wire import display_pb2 as pb
from deviceplugin.wire import display_pb2_grpc as rpc

log = structlog.get_logger("vcuda.observe")
T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]
_MODE = 0o660
_GRACE_S = 0.5
_LONGEST = 107  # sun_path without its final zero
_CONTAINER = ("pod_name", "namespace", "node", "container_name")
UTILIZATION = Family(
    "container_gpu_utilization",
    "gauge",
    "Percent of the time of the GPU that the container used.",
    (*_CONTAINER, "gpu"),
)
MEMORY = Family(
    "container_gpu_memory_total", "gauge", "GPU memory in MiB that the container uses.", (*_CONTAINER, "gpu_memory")
)
CORES_ASKED = Family(
    "container_request_gpu_utilization",
    "gauge",
    "Part of one GPU that the container asked for.",
    (*_CONTAINER, "req_of_gpu"),
)
MEMORY_ASKED = Family(
    "container_request_gpu_memory",
    "gauge",
    "GPU memory in MiB that is allocated to the container.",
    (*_CONTAINER, "req_of_gpu_memory"),
)
_TOTAL = "total"
_Rows = Iterable[tuple[tuple[str, ...], float]]


def usages(picture: NodePicture) -> pb.UsageResponse:
    """Pods by UID, their containers, and the devices of each."""
    response = pb.UsageResponse()
    gpus = {gpu.uuid: gpu for gpu in picture.gpus}
    for grant in picture.grants:
        uid = grant.allocation.owner.pod.uid
        _add(response.usage[uid], grant, gpus, picture.uses.get(grant.id))
        if (pod := picture.pods.get(uid)) is not None:
            _name_submitter(response.usage[uid], pod)
    return response


def _name_submitter(stat: pb.ContainerStat, pod: Pod) -> None:
    """As gpu-manager: an environment variable of a container, and an annotation of the pod."""
    stat.user = next((user for each in pod.containers if (user := each.env.get("SUBMITTER"))), "")
    stat.cluster = pod.annotations.get("clusterName", "")


def usage_document(picture: NodePicture) -> dict[str, Any]:
    """The message by pod UID, as gpu-manager's HTTP gateway wrote it."""
    found: dict[str, Any] = MessageToDict(usages(picture), preserving_proto_field_name=True).get("usage", {})
    return found


def metrics_text(picture: NodePicture) -> bytes:
    """The four metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Metrics(picture))
    return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, picture: NodePicture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        yield metric_of(UTILIZATION, self._used(lambda use: use.cores))
        yield metric_of(MEMORY, self._used(lambda use: None if use.memory_bytes is None else use.memory_bytes // MIB))
        asked = [((*self._names(grant), _TOTAL), grant) for grant in self._picture.grants]
        yield metric_of(CORES_ASKED, ((at, each.allocation.request.cores / CORES_PER_GPU) for at, each in asked))
        yield metric_of(MEMORY_ASKED, ((at, _memory_mib(each)) for at, each in asked))

    def _used(self, read: Callable[[GpuUse], float | None]) -> _Rows:
        """A row for each GPU, `gpu0`, and one for all."""
        indices = {gpu.uuid: gpu.index for gpu in self._picture.gpus}
        for grant in self._picture.grants:
            use = self._picture.uses.get(grant.id)
            for each in use.gpus if use else ():
                if (value := read(each)) is not None and each.uuid in indices:
                    yield (*self._names(grant), f"gpu{indices[each.uuid]}"), value
                    yield (*self._names(grant), _TOTAL), value

    def _names(self, grant: Grant) -> tuple[str, ...]:
        owner = grant.allocation.owner
        return (owner.pod.name, owner.pod.namespace, self._picture.node, owner.name)


def _memory_mib(grant: Grant) -> int:
    return sum(map(grant.memory_limit, grant.allocation.shares)) // MIB


def _add(stat: pb.ContainerStat, grant: Grant, gpus: dict[GpuUuid, Gpu], use: ContainerUse | None) -> None:
    allocation = grant.allocation
    used = {each.uuid: each for each in use.gpus} if use else {}
    stat.project = allocation.owner.pod.namespace
    spec = stat.spec[allocation.owner.name]
    spec.gpu = allocation.request.cores / CORES_PER_GPU
    spec.mem = _memory_mib(grant)
    for share in allocation.shares:
        gpu = gpus.get(share.uuid)
        if gpu is not None:
            device = stat.stat[allocation.owner.name].dev.add(id=gpu.bus_id or gpu.uuid, card_idx=str(gpu.index))
            device.device_mem = gpu.memory_bytes / MIB
            if (seen := used.get(share.uuid)) is not None:
                device.gpu, device.mem = seen.cores or 0, (seen.memory_bytes or 0) // MIB
                device.pids.extend(seen.pids)


class DisplayServer(rpc.GPUDisplayServicer):
    """Serves from `start` until `stop`."""

    def __init__(self, rendering: Rendering, *, version: str) -> None:
        self._rendering = rendering
        self._version = version
        self._server: grpc.aio.Server | None = None

    async def start(self, path: Path) -> None:
        """Raises ConfigError if it cannot listen."""
        _free_path(path)
        server = grpc.aio.server()
        rpc.add_GPUDisplayServicer_to_server(self, server)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            raise ConfigError(f"--display-socket: {path} cannot be used for a socket; give a writable path") from None
        self._server = server  # before it starts: one whose start is cancelled runs all the same
        await to_its_end(server.start())
        _restrict(path)

    async def stop(self) -> None:
        """Ends open calls and removes the socket."""
        if self._server is not None:
            await to_its_end(self._server.stop(_GRACE_S))
            self._server = None

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
