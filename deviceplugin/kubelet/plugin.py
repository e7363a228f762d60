"""The gRPC interface to kubelet: one DevicePlugin service for each of the two resources.

In: kubelet's calls. Out: typed calls to `Allocator` and `PreStart`, and protobuf answers. Not here: any decision, any
socket. Every call is answered within `BUDGET_S`, because kubelet sets no deadline and its only sync loop stands still
while it waits (kubelet 1.36; kubernetes#117435). A VcudaError becomes its status and its sentence. Any other exception
is logged with its traceback and answered with a general sentence, because kubelet copies the text into the pod's
status.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import structlog

from deviceplugin.errors import VcudaError
from deviceplugin.kubelet.allocate_answer import Answer
from deviceplugin.kubelet.allocator import Allocator
from deviceplugin.kubelet.devices import DeviceFeed
from deviceplugin.kubelet.pre_start import PreStart
from deviceplugin.model.units import Resource
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

log = structlog.get_logger("vcuda.kubelet")
BUDGET_S = 12.0  # identity may wait 8 s for a busy kubelet, the reconciler 1.4 s, a pod of Volcano 1 s for its GPUs
PRESTART_BUDGET_S = 10.0  # kubelet gives PreStartContainer 30 s and tries again
Context = grpc.aio.ServicerContext[Any, Any]
_T = TypeVar("_T")


class Unanswered(Protocol):
    """Counts refusals; the reason is a word (`observe.metrics` counts them)."""

    def refused(self, reason: str, seconds: float) -> None: ...

    def start_failed(self, reason: str) -> None: ...


class ResourcePlugin(rpc.DevicePluginServicer):
    """The service of one resource; `streams` counts the open ListAndWatch streams, and `on_streams` hears each change.

    What was decided has been reported; `unanswered` counts the calls that ended without a decision.
    """

    def __init__(
        self,
        resource: Resource,
        feed: DeviceFeed,
        allocator: Allocator,
        pre_start: PreStart,
        *,
        unanswered: Unanswered,
    ) -> None:
        self.resource = resource
        self.streams = 0
        self.on_streams: Callable[[], None] = lambda: None
        self._feed = feed
        self._allocator = allocator
        self._pre_start = pre_start
        self._unanswered = unanswered

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        self._allocator.connected()
        self.on_streams()
        try:
            async for message in self._feed.messages(self.resource):
                yield message
        finally:
            self.streams -= 1
            self.on_streams()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        async def answer() -> pb.PreferredAllocationResponse:
            chosen = [
                await self._allocator.prefer(
                    self.resource, each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
                )
                for each in request.container_requests
            ]
            return pb.PreferredAllocationResponse(
                container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
            )

        return await self._answered(context, answer, BUDGET_S)

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        async def answer() -> pb.AllocateResponse:
            answers = [
                await self._allocator.allocate(self.resource, each.devices_ids) for each in request.container_requests
            ]
            return pb.AllocateResponse(container_responses=[to_wire(each) for each in answers])

        began = time.monotonic()

        def count(reason: str) -> None:
            self._unanswered.refused(reason, time.monotonic() - began)

        return await self._answered(context, answer, BUDGET_S, count)

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        async def answer() -> pb.PreStartContainerResponse:
            await self._pre_start.start(self.resource, request.devices_ids)
            return pb.PreStartContainerResponse()

        return await self._answered(context, answer, PRESTART_BUDGET_S, self._unanswered.start_failed)

    async def _answered(
        self,
        context: Context,
        answer: Callable[[], Awaitable[_T]],
        budget_s: float,
        count: Callable[[str], None] = lambda _: None,
    ) -> _T:
        """`count` gets the reason where there was no decision."""
        try:
            async with asyncio.timeout(budget_s):
                return await answer()
        except VcudaError as error:  # not counted here: who decided has reported it
            status, text = grpc.StatusCode[error.status], error.message
        except TimeoutError:
            count("timeout")
            status, text = grpc.StatusCode.DEADLINE_EXCEEDED, f"vcuda had no answer within {budget_s:g} s; try again"
        except Exception:
            count("internal")
            log.exception("kubelet_call_failed", resource=self.resource.value)
            status, text = grpc.StatusCode.INTERNAL, "vcuda internal error; see the agent log on this node"
        await context.abort(status, text)
        raise AssertionError("abort always raises")


def to_wire(answer: Answer) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(answer.env),
        mounts=[
            pb.Mount(host_path=mount.host, container_path=mount.inside, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[
            pb.DeviceSpec(host_path=host, container_path=inside, permissions="rw") for host, inside in answer.devices
        ],
        annotations=dict(answer.annotations),
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi_devices],
    )
