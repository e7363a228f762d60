"""The calls of CRI v1 that the agent makes, answered as containerd, cri-o or cri-dockerd would.

In: containers and images, put in by hand; a behaviour. Out: a gRPC server on a unix socket. Facts kept: filters by
state and labels; the verbose status is a map of strings, under "info" JSON with the PID (containerd, cri-o) or nothing
(cri-dockerd); an unknown id is NOT_FOUND, an unknown image an answer without one; containerd's verbose Status has its
configuration as JSON under "config", with enableCDI and cdiSpecDirs (containerd 2.1, internal/cri/server/status.go and
internal/cri/config/config.go), the others' has not. Not here: starting anything.
"""

import asyncio
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from deviceplugin.wire import cri_pb2 as pb

SERVICE = "runtime.v1.RuntimeService"
IMAGES = "runtime.v1.ImageService"
Context = grpc.aio.ServicerContext[Any, Any]


class RuntimeBehaviour(enum.Enum):
    """The runtime that it behaves like."""

    CONTAINERD = "containerd"
    CRIO = "cri-o"
    DOCKERD = "cri-dockerd"
    HANGING = "hanging"
    REFUSING = "refusing"
    BABBLING = "babbling"


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """One container that the runtime knows."""

    container_id: str
    pod: str
    name: str
    pid: int = 0
    is_running: bool = True
    created_at: int = 1


@dataclass(slots=True)
class StandInRuntime:
    """`async with` runs it; `calls` has the names of the calls so far."""

    socket: Path
    manner: RuntimeBehaviour = RuntimeBehaviour.CONTAINERD
    containers: list[RuntimeContainer] = field(default_factory=list)
    images: set[str] = field(default_factory=set)
    version: str = "2.0.0"
    config: Mapping[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    _server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Version": grpc.unary_unary_rpc_method_handler(
                self._version,
                request_deserializer=pb.VersionRequest.FromString,
                response_serializer=self._spoken,
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self._runtime_status,
                request_deserializer=pb.StatusRequest.FromString,
                response_serializer=pb.StatusResponse.SerializeToString,
            ),
            "ListContainers": grpc.unary_unary_rpc_method_handler(
                self._list,
                request_deserializer=pb.ListContainersRequest.FromString,
                response_serializer=self._spoken,
            ),
            "ContainerStatus": grpc.unary_unary_rpc_method_handler(
                self._status,
                request_deserializer=pb.ContainerStatusRequest.FromString,
                response_serializer=self._spoken,
            ),
        }
        images: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "ImageStatus": grpc.unary_unary_rpc_method_handler(
                self._image,
                request_deserializer=pb.ImageStatusRequest.FromString,
                response_serializer=self._spoken,
            ),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, handlers),
                grpc.method_handlers_generic_handler(IMAGES, images),
            )
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._server.stop(None)

    async def _version(self, request: pb.VersionRequest, context: Context) -> pb.VersionResponse:
        await self._behave("Version", context)
        return pb.VersionResponse(version="0.1.0", runtime_name=self.manner.value, runtime_version=self.version)

    async def _runtime_status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        await self._behave("Status", context)
        shows = request.verbose and self.manner is RuntimeBehaviour.CONTAINERD
        return pb.StatusResponse(info={"config": json.dumps(dict(self.config))} if shows else {})

    async def _list(self, request: pb.ListContainersRequest, context: Context) -> pb.ListContainersResponse:
        await self._behave("ListContainers", context)
        wanted, labels = request.filter.state, dict(request.filter.label_selector)
        return pb.ListContainersResponse(
            containers=[
                pb.Container(id=each.container_id, state=_state(each), created_at=each.created_at, labels=_labels(each))
                for each in self.containers
                if labels.items() <= _labels(each).items()
                and (not request.filter.HasField("state") or wanted.state == _state(each))
            ]
        )

    async def _status(self, request: pb.ContainerStatusRequest, context: Context) -> pb.ContainerStatusResponse:
        await self._behave("ContainerStatus", context)
        for each in self.containers:
            if each.container_id == request.container_id:
                status = pb.ContainerStatus(id=each.container_id, state=_state(each))
                return pb.ContainerStatusResponse(status=status, info=self._info(each) if request.verbose else {})
        await context.abort(grpc.StatusCode.NOT_FOUND, f"container {request.container_id!r}: not found")
        raise AssertionError("abort always raises")

    async def _image(self, request: pb.ImageStatusRequest, context: Context) -> pb.ImageStatusResponse:
        await self._behave("ImageStatus", context)
        name = request.image.image
        return pb.ImageStatusResponse(image=pb.Image(id=f"sha256:{name}") if name in self.images else None)

    def _spoken(
        self, message: pb.ListContainersResponse | pb.ContainerStatusResponse | pb.ImageStatusResponse
    ) -> bytes:
        return b"\xff\xff" if self.manner is RuntimeBehaviour.BABBLING else bytes(message.SerializeToString())

    async def _behave(self, name: str, context: Context) -> None:
        self.calls.append(name)
        if self.manner is RuntimeBehaviour.HANGING:
            await asyncio.Event().wait()
        if self.manner is RuntimeBehaviour.REFUSING:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService")

    def _info(self, container: RuntimeContainer) -> dict[str, str]:
        if self.manner is RuntimeBehaviour.DOCKERD:
            return {}
        more: dict[str, Any] = {
            "sandboxID": "s",
            "runtimeSpec": {"ociVersion": "1.1.0", "linux": {"cgroupsPath": "somewhere"}},
        }
        if self.manner is RuntimeBehaviour.CRIO:
            more["privileged"] = False
        return {"info": json.dumps({"pid": container.pid, **more})}


def _state(container: RuntimeContainer) -> pb.ContainerState:
    return pb.CONTAINER_RUNNING if container.is_running else pb.CONTAINER_EXITED


def _labels(container: RuntimeContainer) -> dict[str, str]:
    return {"io.kubernetes.pod.uid": container.pod, "io.kubernetes.container.name": container.name}
