"""The registration server on `device-plugins/kubelet.sock`.

In: `Register` from plugins. Out: connected endpoints, or the error texts of kubelet. Invariant: when Register has
returned well, the plugin was dialled back and its options are known; its sockets in the directory died at start.
"""

from typing import Any

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from sandbox.kubelet.calls import PluginError
from sandbox.kubelet.endpoints import Endpoints
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.pause import Pause
from sandbox.kubelet.sockets import delete_sockets, new_server, serve

VERSION = "v1beta1"


class RegistrationServer:
    """One life of kubelet.sock."""

    def __init__(self, options: KubeletOptions, endpoints: Endpoints, pause: Pause) -> None:
        self._options = options
        self._endpoints = endpoints
        self._pause = pause
        self._server = new_server()

    async def start(self) -> None:
        self._options.plugin_dir.mkdir(parents=True, exist_ok=True)
        delete_sockets(self._options.plugin_dir)
        rpc.add_RegistrationServicer_to_server(self, self._server)
        await serve(
            self._server, hidden=self._options.root / ".run" / "kubelet.sock", path=self._options.kubelet_socket
        )

    async def stop(self) -> None:
        """Dies as a killed process: the socket file stays."""
        await self._server.stop(None)

    async def Register(self, request: pb.RegisterRequest, context: "grpc.aio.ServicerContext[Any, Any]") -> pb.Empty:
        """The RPC."""
        await self._pause.passed()
        if request.version != VERSION:
            await context.abort(
                grpc.StatusCode.UNKNOWN,
                f"requested API version {request.version!r} is not supported by kubelet. "
                f'Supported version is ["{VERSION}"]',
            )
        if not is_extended_resource(request.resource_name):
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        try:
            await self._endpoints.connect(request.resource_name, self._options.plugin_dir / request.endpoint)
        except PluginError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()


def is_extended_resource(name: str) -> bool:
    """A domain that is not Kubernetes' own, a slash, a name."""
    domain, slash, rest = name.partition("/")
    return bool(slash and domain and rest) and not domain.endswith("kubernetes.io") and not name.startswith("requests.")
