"""The answer to kubelet's plugin watcher: what the socket it found is (pluginregistration v1).

In: GetInfo and NotifyRegistrationStatus. Out: what kubelet said last. Kubelet >= 1.12 watches `<root>/plugins_registry`
and dials every socket there, after its own restart too, which saves the second in which crash-looping pods are lost.
"""

import grpc
import structlog

from deviceplugin.wire import pluginregistration_pb2 as pb
from deviceplugin.wire import pluginregistration_pb2_grpc as rpc

log = structlog.get_logger(__name__)


class RegistryService(rpc.RegistrationServicer):
    """One for each socket. `asked` is True once kubelet has dialled, `refused` holds its last complaint."""

    def __init__(self, resource_name: str) -> None:
        self._resource_name = resource_name
        self.asked = False
        self.refused = ""

    async def GetInfo(
        self, request: pb.InfoRequest, context: "grpc.aio.ServicerContext[pb.InfoRequest, pb.PluginInfo]"
    ) -> pb.PluginInfo:
        self.asked = True
        return pb.PluginInfo(type="DevicePlugin", name=self._resource_name, supported_versions=["v1beta1"])

    async def NotifyRegistrationStatus(
        self,
        request: pb.RegistrationStatus,
        context: "grpc.aio.ServicerContext[pb.RegistrationStatus, pb.RegistrationStatusResponse]",
    ) -> pb.RegistrationStatusResponse:
        self.refused = "" if request.plugin_registered else (request.error or "no reason given")
        if self.refused:
            log.warning("kubelet refused the plugin", resource=self._resource_name, cause=self.refused)
        return pb.RegistrationStatusResponse()
