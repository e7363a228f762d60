"""The PodResources v1 server on `pod-resources/kubelet.sock`.

In: `List` and `Get`. Out: names and device IDs, one entry for each ID; never a UID, never a plain init container.
Facts kept: 100 calls a second with a burst of 10 for the whole node, else RESOURCE_EXHAUSTED; a pod is
visible from the start of its admission; List frees the devices of ended pods, whichever it shows; which pods each call
shows, and whether there is a Get, is `PodResourcesForm`. Kubelet's errors have no code of their own: UNKNOWN.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from deviceplugin.wire import podresources_pb2 as pb
from deviceplugin.wire import podresources_pb2_grpc as rpc
from sandbox.kubelet.devices import DeviceStore
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.podspec import Pod, Role
from sandbox.kubelet.sockets import new_server, serve
from sandbox.kubelet.waiting import Pause


class TokenBucket:
    """So many calls a second, with a burst."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = burst
        self._tokens = float(burst)
        self._last = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._last) * self._qps)
        self._last = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PodResourcesServer:
    """One life of the socket."""

    def __init__(
        self,
        options: KubeletOptions,
        store: DeviceStore,
        pause: Pause,
        *,
        known: Callable[[], Iterable[Pod]],
        active: Callable[[], Iterable[Pod]],
        ready: Callable[[], bool],
    ) -> None:
        self._options = options
        self._store = store
        self._pause = pause
        self._known = known
        self._active = active
        self._ready = ready
        self._bucket = TokenBucket(options.podresources_qps, options.podresources_burst)
        self._server = new_server()

    async def start(self) -> None:
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        hidden = self._options.root / ".run" / "podresources.sock"
        await serve(self._server, hidden=hidden, path=self._options.podresources_socket)

    async def stop(self) -> None:
        """Dies as a killed process: the socket file stays."""
        await self._server.stop(None)

    async def List(
        self, _request: pb.ListPodResourcesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.ListPodResourcesResponse:
        """The RPC."""
        await self._enter(context)
        active = list(self._active())
        if self._ready():
            self._store.free_inactive(pod.uid for pod in active)
        shown = active if self._options.podresources_form in ("1.36", "1.34") else self._known()
        return pb.ListPodResourcesResponse(pod_resources=[self._describe(pod) for pod in shown])

    async def Get(
        self, request: pb.GetPodResourcesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.GetPodResourcesResponse:
        """The RPC."""
        await self._enter(context)
        form = self._options.podresources_form
        if form == "1.26":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method Get for service v1.PodResourcesLister")
        if form == "1.27":
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        wanted = (request.pod_namespace, request.pod_name)
        for pod in self._active() if form == "1.36" else self._known():
            if (pod.namespace, pod.name) == wanted:
                return pb.GetPodResourcesResponse(pod_resources=self._describe(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, text)

    async def _enter(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        await self._pause.passed()
        if not self._bucket.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _describe(self, pod: Pod) -> pb.PodResources:
        containers = [
            pb.ContainerResources(
                name=container.name,
                devices=[
                    pb.ContainerDevices(resource_name=resource, device_ids=[device])
                    for resource, held in self._store.of_container(pod.uid, container.name).items()
                    for device in sorted(held.ids)
                ],
            )
            for container in pod.of_role(Role.SIDECAR, Role.APP)
        ]
        return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)
