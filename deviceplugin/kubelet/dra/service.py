"""The gRPC interface to kubelet for claims: prepare and unprepare them, and say which GPUs are healthy.

In: kubelet's calls, the sockets of other agents of the node. Out: typed calls to `Claims`, and protobuf answers. Every
claim of a call gets its own answer: a VcudaError is its sentence, which kubelet shows on the pod, and any other
exception is logged with its traceback and answered with a general sentence. Kubelet forgets the health of a device
after 30 s without news, so it is sent again.

Calls may come before the agent is ready. While another agent still serves the node and this one waits for its end,
`Forwarding` gives them to the other; where none answers any more, they wait for this one. Invariant: a call is
forwarded once: two agents that both wait do not send it to and fro.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog

from deviceplugin.errors import ClaimError, VcudaError
from deviceplugin.kubelet.dra.claim_grants import ClaimsOfCall, PreparedDevice
from deviceplugin.kubelet.dra.prepare import WAIT_S, Claims
from deviceplugin.kubelet.dra.slice_publisher import device_name
from deviceplugin.model.claims import ClaimRef, ClaimUid
from deviceplugin.model.gpu import Gpu, Inventory
from deviceplugin.wire import dra_health_pb2 as health
from deviceplugin.wire import dra_health_pb2_grpc as health_rpc
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc

_FORWARDED = ("vcuda-forwarded", "1")
Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")
Method = Callable[..., Awaitable[Answer]]


class Forwarding:
    """`others` lists the sockets as they are now."""

    def __init__(self, others: Callable[[], Iterable[Path]]) -> None:
        self._others = others

    async def answer(
        self, method: Callable[[rpc.DRAPluginStub], Method[Answer]], request: object, context: Context
    ) -> Answer | None:
        if _FORWARDED in (context.invocation_metadata() or ()):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this agent does not serve yet")
        for path in self._others():
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                call = method(rpc.DRAPluginStub(channel))
                try:
                    return await call(request, metadata=(_FORWARDED,), timeout=context.time_remaining())
                except grpc.aio.AioRpcError:
                    continue  # killed, ended just now, or waiting itself
        return None


log = structlog.get_logger("vcuda.dra")
VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""As kubelet selects by them; the services on the wire have the names of their packages."""
AGAIN_S = 10.0
_LONGEST_MESSAGE = 1024
_BUG = "internal error of the vcuda agent; its log has the details"
_NOT_READY = "the vcuda agent of this node is not ready yet; its log says what it waits for"


class DraService(rpc.DRAPluginServicer):
    """One for the node. `serve` ends the waiting."""

    def __init__(self, forwarding: Forwarding, *, wait_s: float = WAIT_S) -> None:
        self._forwarding = forwarding
        self._wait_s = wait_s
        self._ready = asyncio.Event()
        self._claims: Claims | None = None

    def serve(self, claims: Claims) -> None:
        self._claims = claims
        self._ready.set()

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        began = time.monotonic()
        elsewhere: pb.NodePrepareResourcesResponse | None = await self._elsewhere(
            lambda stub: stub.NodePrepareResources, request, context
        )
        if elsewhere is not None:
            return elsewhere

        of_call = ClaimsOfCall()

        async def prepare(ref: ClaimRef) -> pb.NodePrepareResourceResponse:
            claims = await self._serving()
            devices = await claims.prepare(ref, waited_s=time.monotonic() - began, claims=of_call)
            return pb.NodePrepareResourceResponse(devices=map(_device, devices))

        def refuse(sentence: str) -> pb.NodePrepareResourceResponse:
            return pb.NodePrepareResourceResponse(error=sentence)

        return pb.NodePrepareResourcesResponse(claims=await _each(request.claims, prepare, refuse))

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        elsewhere: pb.NodeUnprepareResourcesResponse | None = await self._elsewhere(
            lambda stub: stub.NodeUnprepareResources, request, context
        )
        if elsewhere is not None:
            return elsewhere

        async def unprepare(ref: ClaimRef) -> pb.NodeUnprepareResourceResponse:
            await (await self._serving()).unprepare(ref)
            return pb.NodeUnprepareResourceResponse()

        def refuse(sentence: str) -> pb.NodeUnprepareResourceResponse:
            return pb.NodeUnprepareResourceResponse(error=sentence)

        return pb.NodeUnprepareResourcesResponse(claims=await _each(request.claims, unprepare, refuse))

    async def _elsewhere(
        self, method: Callable[[rpc.DRAPluginStub], Method[Answer]], request: object, context: Context
    ) -> Answer | None:
        return None if self._ready.is_set() else await self._forwarding.answer(method, request, context)

    async def _serving(self) -> Claims:
        if not self._ready.is_set():
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._ready.wait()
            except TimeoutError:
                raise ClaimError(_NOT_READY) from None
        assert self._claims is not None
        return self._claims


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
    answers = await asyncio.gather(*map(answer, refs)) if len(refs) > 1 else [await answer(each) for each in refs]
    return dict(zip((ref.uid for ref in refs), answers, strict=True))


def _device(prepared: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=[prepared.request],
        pool_name=prepared.pool,
        device_name=prepared.device,
        cdi_device_ids=[prepared.cdi] if prepared.cdi else [],
        share_id=prepared.share_id or None,
    )


class HealthService(health_rpc.DRAResourceHealthServicer):
    """Streams tell something from `serve` until `end`. `changed` wakes them; they also tell every ten seconds."""

    def __init__(self, pool: str, *, again_s: float = AGAIN_S) -> None:
        self._inventory: Callable[[], Inventory] | None = None
        self._pool = pool
        self._name: Callable[[Gpu], str] = device_name
        self._again_s = again_s
        self._ends = False
        self._waiting: set[asyncio.Event] = set()

    def serve(self, inventory: Callable[[], Inventory], name: Callable[[Gpu], str] = device_name) -> None:
        self._inventory, self._name = inventory, name
        self.changed()

    def end(self) -> None:
        """The server waits for its calls to end."""
        self._ends = True
        self.changed()

    def changed(self) -> None:
        for each in self._waiting:
            each.set()

    async def NodeWatchResources(
        self, request: health.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            while not self._ends:
                changed.clear()  # before the look, so that no change after it is missed
                if self._inventory is not None:
                    yield health.NodeWatchResourcesResponse(devices=self._devices(self._inventory()))
                try:
                    async with asyncio.timeout(self._again_s):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._waiting.discard(changed)

    def _devices(self, inventory: Inventory) -> Sequence[health.DeviceHealth]:
        now = int(time.time())
        found = []
        for gpu in inventory.gpus:
            state = inventory.health_of(gpu.uuid)
            found.append(
                health.DeviceHealth(
                    device=health.DeviceIdentifier(pool_name=self._pool, device_name=self._name(gpu)),
                    health=health.HEALTHY if state.healthy else health.UNHEALTHY,
                    last_updated_time=now,
                    message=state.reason[:_LONGEST_MESSAGE],
                )
            )
        return found
