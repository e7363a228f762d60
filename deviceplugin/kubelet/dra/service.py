"""The gRPC interface to kubelet for claims: prepare and unprepare them, and say which GPUs are healthy.

In: kubelet's calls. Out: typed calls to `Claims`, and protobuf answers. Every claim of a call gets its own answer: a
VcudaError is its sentence, which kubelet shows on the pod, and any other exception is logged with its traceback and
answered with a general sentence. Kubelet forgets the health of a device after 30 s without news, so it is sent again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
import structlog

from deviceplugin.errors import VcudaError
from deviceplugin.kubelet.dra.prepare import Claims, PreparedDevice
from deviceplugin.kubelet.dra.published import device_name
from deviceplugin.model.claims import ClaimRef, ClaimUid
from deviceplugin.model.gpu import Inventory
from deviceplugin.wire import dra_health_pb2 as health
from deviceplugin.wire import dra_health_pb2_grpc as health_rpc
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc

log = structlog.get_logger("vcuda.dra")
VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""As kubelet selects by them; the services on the wire have the names of their packages."""
AGAIN_S = 10.0
_LONGEST_MESSAGE = 1024
_BUG = "internal error of the vcuda agent; its log has the details"
Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")


class DraService(rpc.DRAPluginServicer):
    """One for the node."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        async def prepare(ref: ClaimRef) -> pb.NodePrepareResourceResponse:
            return pb.NodePrepareResourceResponse(devices=map(_device, await self._claims.prepare(ref)))

        def refuse(sentence: str) -> pb.NodePrepareResourceResponse:
            return pb.NodePrepareResourceResponse(error=sentence)

        return pb.NodePrepareResourcesResponse(claims=await _each(request.claims, prepare, refuse))

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        async def unprepare(ref: ClaimRef) -> pb.NodeUnprepareResourceResponse:
            await self._claims.unprepare(ref)
            return pb.NodeUnprepareResourceResponse()

        def refuse(sentence: str) -> pb.NodeUnprepareResourceResponse:
            return pb.NodeUnprepareResourceResponse(error=sentence)

        return pb.NodeUnprepareResourcesResponse(claims=await _each(request.claims, unprepare, refuse))


async def _each(
    claims: Iterable[pb.Claim], call: Callable[[ClaimRef], Awaitable[Answer]], refuse: Callable[[str], Answer]
) -> dict[str, Answer]:
    """All claims of a pod at once: one that waits must not hold up another."""

    async def answer(ref: ClaimRef) -> Answer:
        try:
            return await call(ref)
        except VcudaError as error:
            log.warning("claim_failed", claim=str(ref), error=error.message)
            return refuse(error.message)
        except Exception:
            log.exception("claim_failed", claim=str(ref), action="please report this line")
            return refuse(_BUG)

    refs = [ClaimRef(ClaimUid(each.uid), each.namespace, each.name) for each in claims]
    return dict(zip((ref.uid for ref in refs), await asyncio.gather(*map(answer, refs)), strict=True))


def _device(prepared: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=[prepared.request],
        pool_name=prepared.pool,
        device_name=prepared.device,
        cdi_device_ids=[prepared.cdi] if prepared.cdi else [],
        share_id=prepared.share_id or None,
    )


class HealthService(health_rpc.DRAResourceHealthServicer):
    """`changed` wakes the streams; they also tell every ten seconds."""

    def __init__(self, inventory: Callable[[], Inventory], pool: str, *, again_s: float = AGAIN_S) -> None:
        self._inventory = inventory
        self._pool = pool
        self._again_s = again_s
        self._waiting: set[asyncio.Event] = set()

    def changed(self) -> None:
        for each in self._waiting:
            each.set()

    async def NodeWatchResources(
        self, request: health.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            while True:
                changed.clear()
                yield health.NodeWatchResourcesResponse(devices=self._devices())
                try:
                    async with asyncio.timeout(self._again_s):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._waiting.discard(changed)

    def _devices(self) -> Sequence[health.DeviceHealth]:
        inventory, now = self._inventory(), int(time.time())
        found = []
        for gpu in inventory.gpus:
            state = inventory.health_of(gpu.uuid)
            found.append(
                health.DeviceHealth(
                    device=health.DeviceIdentifier(pool_name=self._pool, device_name=device_name(gpu)),
                    health=health.HEALTHY if state.healthy else health.UNHEALTHY,
                    last_updated_time=now,
                    message=state.reason[:_LONGEST_MESSAGE],
                )
            )
        return found
