"""Where the containers of a grant are: their ids at the runtime, and the control groups with their processes.

In: pods' UIDs and containers' names; the runtime's CRI socket (containerd, cri-o, cri-dockerd). Out: a `Place`, from
the runtime where it can be asked, else from what the pod's status says and /proc. Invariant: never another container's
group: a group counts only if it carries this pod's UID and this container's id in its name. Also whose the processes
are that the driver names, which may have ended since.

`ContainerRuntime` asks for the runtime's version, a pod's containers, their processes and its images; what it cannot
learn is a RuntimeApiError with one sentence. A PID comes from the verbose status, which the API does not define: it is
None for a runtime that does not give it. Whether CDI is on is asked too, for containerd's verbose status has its
configuration; a version says only what a runtime could do.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import grpc
import msgspec
import structlog

from deviceplugin.container.processes import CgroupTree, ContainerGroup, Members, ProcessTable
from deviceplugin.errors import ConfigError, RuntimeApiError
from deviceplugin.log import Pace
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.gpu import GpuSample, GpuUuid
from deviceplugin.wire import cri_pb2 as pb
from deviceplugin.wire import cri_pb2_grpc as rpc

_POD_LABEL = "io.kubernetes.pod.uid"
_NAME_LABEL = "io.kubernetes.container.name"
_WITH_CDI = {"containerd": (1, 7, 2), "cri-o": (1, 28, 0)}
_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_MAX_MESSAGE = 16 << 20  # as kubelet: the verbose status carries the whole specification
_UNKNOWN = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}
_CHECK_ENDPOINT = "check --container-runtime-endpoint"
_TIMEOUT_S = 5.0
_Answer = TypeVar("_Answer")


class _Info(msgspec.Struct, frozen=True):
    pid: int = 0


class _RuntimeConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Of containerd (internal/cri/config/config.go, `PluginConfig`); an attribute that is not there is not known."""

    enable_cdi: bool | None = msgspec.field(name="enableCDI", default=None)
    cdi_spec_dirs: list[str] | None = None


class ContainerRuntime:
    """One lazy channel; every call ends within `timeout_s`."""

    def __init__(self, socket: Path, *, timeout_s: float = _TIMEOUT_S) -> None:
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
                f"{(error.details() or 'no reason')[:200]}",
                advice=_CHECK_ENDPOINT,
            ) from None
        if answer is None:  # grpc returns this for bytes that are not this message
            raise RuntimeApiError(
                f"the container runtime at {self._socket} gave an answer that is not CRI v1", advice=_CHECK_ENDPOINT
            )
        return answer


def _is_same(directory: Path, other: str) -> bool:
    """/var/run is /run on every node."""
    one, two = (PurePosixPath(re.sub(r"^/var/run(?=/|$)", "/run", str(each))) for each in (directory, other))
    return one == two


log = structlog.get_logger("vcuda.container")
_LEAVE_ALONE_S = 5.0
_CHURN = 10
"""So many samples more with use by processes that nobody saw than without: no chance, and not a program that ends."""
_UNATTRIBUTED = "processes use this GPU that end before it is seen whose they are; what they use counts to no container"


class FoundContainer(msgspec.Struct, frozen=True):
    """A running container. Without a `group`, /proc is searched."""

    pod: PodUid
    container_id: str
    group: Path | None


class Place(msgspec.Struct, frozen=True):
    """The running containers of a grant: one, or those that share a claim. None: for certain none runs.

    `is_whole`: no other container of the grant may run.
    """

    containers: tuple[FoundContainer, ...]
    is_whole: bool = True

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(each.container_id for each in self.containers)


class ContainerFinder:
    """`id_in_status` gives the container's id from the pod's status, empty if it has none."""

    def __init__(
        self,
        table: ProcessTable,
        tree: CgroupTree,
        *,
        runtime: ContainerRuntime | None,
        id_in_status: Callable[[OwnerKey], str],
    ) -> None:
        self._table = table
        self._tree = tree
        self._runtime = runtime
        self._id_in_status = id_in_status
        self._complaint = ""
        self._asks_again_at = 0.0

    async def find(self, owners: Iterable[OwnerKey]) -> Place | None:
        """None if neither the runtime nor the pods' status knows any of the containers."""
        found: list[FoundContainer] = []
        is_whole = True
        for pod, name in owners:
            told = await self._ask_runtime(pod, name)
            container_id, pid = told or (self._id_in_status((pod, name)), None)
            if container_id:
                found.append(FoundContainer(pod, container_id, self._group(pod, container_id, pid)))
            is_whole &= told is not None or bool(container_id)
        return Place(tuple(found), is_whole) if found or is_whole else None

    def members(self, place: Place) -> Members | None:
        """The processes as they are now; None if the containers are gone, not complete where one of them is."""
        each = [self._members(one) for one in place.containers]
        living = [one for one in each if one is not None]
        if not living:
            return None
        pids = sorted({pid for one in living for pid in one.pids})
        is_complete = place.is_whole and len(living) == len(each) and all(one.complete for one in living)
        return Members(tuple(pids), is_complete)

    def _members(self, container: FoundContainer) -> Members | None:
        if container.group is not None:
            return self._tree.members(container.group)
        found = self._table.members(container.pod, container.container_id)
        return found if found.pids else None

    async def _ask_runtime(self, pod: PodUid, name: str) -> tuple[str, int | None] | None:
        """The running container's id, empty if none runs, and its PID; None if the runtime does not answer."""
        if self._runtime is None or time.monotonic() < self._asks_again_at:
            return None
        try:
            found = (await self._runtime.running(pod)).get(name, "")
            result = (found, await self._runtime.pid(found) if found else None)
        except RuntimeApiError as error:
            if error.message != self._complaint:
                log.warning("runtime_unavailable", error=error.message)
            self._complaint, self._asks_again_at = error.message, time.monotonic() + _LEAVE_ALONE_S
            return None
        self._complaint = ""
        return result

    def _group(self, pod: PodUid, container_id: str, pid: int | None) -> Path | None:
        path = self._table.group_of(pid, pod, container_id) if pid is not None else ""
        found = self._tree.directory(path) if path else None
        return found or self._tree.find(pod, container_id)


class _NamedProcess(msgspec.Struct, frozen=True):
    group: ContainerGroup | None
    start_time: int | None


class SeenProcesses:
    """The groups of the processes that the driver names, from when they were seen first until it names them no more.

    What the driver charges to a process that has ended since is charged to its container. A sample is of the processes
    that were there when it came: a PID that another one has by now is looked at again only for a newer sample.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._samples: Mapping[GpuUuid, GpuSample] = {}
        self._seen: dict[int, _NamedProcess] = {}
        self._churn: dict[GpuUuid, int] = {}
        self._pace = Pace()

    def learn(self, samples: Mapping[GpuUuid, GpuSample]) -> None:
        """Soon after each sample, and as often as one likes."""
        fresh = {uuid: sample for uuid, sample in samples.items() if self._samples.get(uuid) is not sample}
        news = {process.pid for sample in fresh.values() for process in sample.processes}
        named = {process.pid for sample in samples.values() for process in sample.processes}
        found = {pid: self._look(pid) if pid in news else self._seen.get(pid) for pid in named}
        self._seen = {pid: seen for pid, seen in found.items() if seen is not None}
        self._samples = dict(samples)
        for uuid, sample in fresh.items():
            self._count_lost(uuid, any(each.sm_percent and each.pid not in self._seen for each in sample.processes))

    def group(self, pid: int) -> ContainerGroup | None:
        seen = self._seen.get(pid)
        return seen.group if seen is not None else None

    def groups(self) -> tuple[ContainerGroup, ...]:
        return tuple(seen.group for seen in self._seen.values() if seen.group is not None)

    def _count_lost(self, uuid: GpuUuid, is_lost: bool) -> None:
        self._churn[uuid] = min(max(0, self._churn.get(uuid, 0) + (1 if is_lost else -1)), _CHURN)
        if self._churn[uuid] == _CHURN and self._pace.allows(uuid):
            log.warning("use_unattributed", gpu=uuid, error=_UNATTRIBUTED)

    def _look(self, pid: int) -> _NamedProcess | None:
        before, start = self._seen.get(pid), self._table.start_time(pid)
        if start is None or (before is not None and before.start_time == start and before.group is not None):
            return before
        return _NamedProcess(self._table.container_of(pid), start)
