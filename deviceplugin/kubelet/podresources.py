"""Client of kubelet's PodResources socket: which device IDs kubelet has given to which container, by name.

In: `<root>/pod-resources/kubelet.sock`. Out: frozen views. The API has no UIDs and no plain init containers. All
clients of the node share 100 calls a second with a burst of 10; above that it answers RESOURCE_EXHAUSTED, and the call
is tried once more after 20 ms. `Get` (on by default since kubelet 1.34) is preferred: `List` makes kubelet free devices
of ended pods, which may drop the reservation of the Allocate call in progress (kubernetes#119560). Refused and ended
pods are hidden by `List` since 1.34 and by `Get` since 1.36; before, both show them until kubelet forgets the pod.
Kubelet's errors have no code of their own, and tenants name what its sentences name: only whole sentences are compared.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from deviceplugin.errors import GetMissingError, KubeletError
from deviceplugin.latest import InTurn
from deviceplugin.wire import podresources_pb2 as pb
from deviceplugin.wire import podresources_pb2_grpc as rpc

MOST_MESSAGE = 16 << 20
"""One entry for each device ID: 16 GPUs of 141 GiB have 10,600, with 100 bytes each, and others may have as many."""

_AT_ONCE = 128 << 10  # made into views on the loop
_RETRY_AFTER_S = 0.02
_TURNED_OFF = "PodResources API Get method disabled"  # kubelet 1.27 to 1.35 without the gate KubeletPodResourcesGet
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class PodDevices:
    """A pod as this API shows it; `held` has the container and the resource of each list of device IDs."""

    namespace: str
    name: str
    held: frozenset[tuple[str, str]]
    containers: tuple[str, ...] = ()

    def lacks(self, container: str, resource_name: str) -> bool:
        return (container, resource_name) not in self.held


Views = list[PodDevices]


class PodResources:
    """One lazy channel; a call has `timeout_s` and raises KubeletError, never a gRPC error.

    `without_get_s`: how long a kubelet without `Get` is not asked for it again. Kubelet may be upgraded meanwhile.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 8.0, without_get_s: float = 300.0) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._without_get_s = without_get_s
        self._channel: grpc.aio.Channel | None = None
        self._no_get_until = 0.0
        self._lists = InTurn(self._list)

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        """The pod, or None if kubelet does not show it; GetMissingError if this kubelet has no `Get`."""
        if time.monotonic() < self._no_get_until:
            raise _no_get()
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            answer = await self._call(lambda stub: stub.Get(request, timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            if _knows_no_such_pod(error, request):
                return None
            if not _has_no_get(error):
                raise self._unavailable(error) from None
            self._no_get_until = time.monotonic() + self._without_get_s
            raise _no_get() from None
        return _pod(answer.pod_resources)

    async def list(self) -> list[PodDevices]:
        """One call at a time, for all who wait: everybody who may create pods adds to it."""
        return await self._lists.get()

    async def _list(self) -> Views:
        try:
            answer = await self._call(lambda stub: stub.List(pb.ListPodResourcesRequest(), timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None
        return _pods(answer) if answer.ByteSize() <= _AT_ONCE else await asyncio.to_thread(_pods, answer)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _unavailable(self, error: grpc.aio.AioRpcError) -> KubeletError:
        return KubeletError(f"kubelet's PodResources socket {self._socket} answered {error.code().name.lower()}")

    async def _call(self, call: Callable[[rpc.PodResourcesListerStub], Awaitable[_Answer]]) -> _Answer:
        try:
            return await call(self._stub())
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await asyncio.sleep(_RETRY_AFTER_S)
        return await call(self._stub())

    def _stub(self) -> rpc.PodResourcesListerStub:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MOST_MESSAGE), ("grpc.max_reconnect_backoff_ms", 1000)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        return rpc.PodResourcesListerStub(self._channel)


def _pods(answer: pb.ListPodResourcesResponse) -> Views:
    return [_pod(pod) for pod in answer.pod_resources]


def _pod(pod: pb.PodResources) -> PodDevices:
    held = ((each.name, entry.resource_name) for each in pod.containers for entry in each.devices if entry.device_ids)
    return PodDevices(pod.namespace, pod.name, frozenset(held), tuple(each.name for each in pod.containers))


def _knows_no_such_pod(error: grpc.aio.AioRpcError, asked: pb.GetPodResourcesRequest) -> bool:
    sentence = f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found"
    return error.code() is grpc.StatusCode.NOT_FOUND or error.details() == sentence


def _has_no_get(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.UNIMPLEMENTED or error.details() == _TURNED_OFF


def _no_get() -> GetMissingError:
    return GetMissingError("this kubelet's PodResources API has no Get (it is older than 1.34, or the gate is off)")
