"""The container runtime, asked over its CRI socket: its version, a pod's containers, their processes, its images.

In: the socket (containerd, cri-o, cri-dockerd). Out: ids and PIDs, or RuntimeApiError with one sentence. The PID comes
from the verbose status, which the API does not define: it is None for a runtime that does not give it. Whether CDI is
on is asked too, for containerd's verbose status has its configuration; a version says only what a runtime could do.
"""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import grpc
import msgspec

from deviceplugin.errors import ConfigError, RuntimeApiError
from deviceplugin.model.allocation import PodUid
from deviceplugin.wire import cri_pb2 as pb
from deviceplugin.wire import cri_pb2_grpc as rpc

_POD_LABEL = "io.kubernetes.pod.uid"
_NAME_LABEL = "io.kubernetes.container.name"
_WITH_CDI = {"containerd": (1, 7, 2), "cri-o": (1, 28, 0)}
_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_MAX_MESSAGE = 16 << 20  # as kubelet: the verbose status carries the whole specification
_UNKNOWN = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}
_Answer = TypeVar("_Answer")


class _Info(msgspec.Struct, frozen=True):
    pid: int = 0


class _RuntimeConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Of containerd (internal/cri/config/config.go, `PluginConfig`); an attribute that is not there is not known."""

    enable_cdi: bool | None = msgspec.field(name="enableCDI", default=None)
    cdi_spec_dirs: list[str] | None = None


class ContainerRuntime:
    """One lazy channel; every call ends within `timeout_s`."""

    def __init__(self, socket: Path, *, timeout_s: float) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._channel: grpc.aio.Channel | None = None
        self._pid_of = msgspec.json.Decoder(_Info)
        self._config_of = msgspec.json.Decoder(_RuntimeConfig)

    async def require_cdi(self, directory: Path = Path("/var/run/cdi")) -> None:
        """Raises ConfigError for a runtime that would not give CDI devices of this directory to its containers.

        One that ignores them starts containers without GPU and limits.
        """
        config = await self._config()
        if config.cdi_spec_dirs and not any(map(partial(_is_same, directory), config.cdi_spec_dirs)):
            raise ConfigError(
                f"the container runtime reads CDI files in {' and '.join(config.cdi_spec_dirs)[:200]}, and not in "
                f"{directory}; set --cdi-dir (value agent.cdi.directory) to one of these"
            )
        if config.enable_cdi is False:
            raise ConfigError(
                "the container runtime has CDI switched off, so a container of a claim would run without its GPU; set "
                "enable_cdi = true in its configuration and restart it, or leave --dra out"
            )
        if config.enable_cdi is None:
            await self._require_version_with_cdi()

    async def _config(self) -> _RuntimeConfig:
        """All is unknown for a runtime that does not show it."""
        request = pb.StatusRequest(verbose=True)
        answer = await self._call(
            lambda: self._containers().Status(request, timeout=self._timeout_s), missing=pb.StatusResponse()
        )
        try:
            return self._config_of.decode(answer.info["config"])
        except (KeyError, msgspec.MsgspecError):
            return _RuntimeConfig()

    async def _require_version_with_cdi(self) -> None:
        answer = await self._call(lambda: self._containers().Version(pb.VersionRequest(), timeout=self._timeout_s))
        name, text = answer.runtime_name, answer.runtime_version
        least = _WITH_CDI.get(name)
        found = _VERSION.match(text)
        if least is None or found is None or tuple(map(int, found.groups())) < least:
            known = ", ".join(f"{each} {'.'.join(map(str, version))}" for each, version in _WITH_CDI.items())
            raise ConfigError(
                f"--dra needs a container runtime that hands CDI devices to containers ({known} or newer), and "
                f"this node has {name[:40] or 'an unknown one'} {text[:40]}; upgrade it, or leave --dra out"
            )

    async def running(self, pod: PodUid) -> dict[str, str]:
        """The ids of the pod's running containers by name; of two with one name the younger one."""
        running = pb.ContainerStateValue(state=pb.CONTAINER_RUNNING)
        request = pb.ListContainersRequest(
            filter=pb.ContainerFilter(state=running, label_selector={_POD_LABEL: str(pod)})
        )
        answer = await self._call(lambda: self._containers().ListContainers(request, timeout=self._timeout_s))
        oldest_first = sorted(answer.containers, key=lambda each: each.created_at)
        return {each.labels[_NAME_LABEL]: each.id for each in oldest_first}

    async def pid(self, container_id: str) -> int | None:
        """The first process of a container, in the host's pid namespace; None for one that has ended meanwhile."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        answer = await self._call(
            lambda: self._containers().ContainerStatus(request, timeout=self._timeout_s),
            missing=pb.ContainerStatusResponse(),
        )
        try:
            return self._pid_of.decode(answer.info["info"]).pid or None
        except (KeyError, msgspec.MsgspecError):
            return None

    async def has_image(self, name: str) -> bool:
        """Whether a container with this image starts without a registry."""
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=name))
        images = rpc.ImageServiceStub(self._opened())
        answer = await self._call(lambda: images.ImageStatus(request, timeout=self._timeout_s))
        return bool(answer.image.id)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _opened(self) -> grpc.aio.Channel:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.max_reconnect_backoff_ms", 1000)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        return self._channel

    def _containers(self) -> rpc.RuntimeServiceStub:
        return rpc.RuntimeServiceStub(self._opened())

    async def _call(self, call: Callable[[], Awaitable[_Answer]], *, missing: _Answer | None = None) -> _Answer:
        """`missing` is the answer where the runtime does not know the container, or the call."""
        try:
            answer = await call()
        except grpc.aio.AioRpcError as error:
            if missing is not None and error.code() in _UNKNOWN:
                return missing
            raise RuntimeApiError(
                f"the container runtime at {self._socket} answered {error.code().name.lower()}: "
                f"{(error.details() or 'no reason')[:200]}; check --container-runtime-endpoint"
            ) from None
        if answer is None:  # grpc returns this for bytes that are not this message
            raise RuntimeApiError(
                f"the container runtime at {self._socket} gave an answer that is not CRI v1; "
                "check --container-runtime-endpoint"
            )
        return answer


def _is_same(directory: Path, other: str) -> bool:
    """/var/run is /run on every node."""
    one, two = (PurePosixPath(re.sub(r"^/var/run(?=/|$)", "/run", str(each))) for each in (directory, other))
    return one == two
