"""A stand-in for gpu-manager on one node, as a program: its two device plugins, and what it writes on pods.

In: kubelet's device-plugin folder, the pods of this node at the API server, the GPUs' UUIDs (GPU_UUIDS, by commas).
Out: answers to Allocate in gpu-manager's form: the environment, the mount of /etc/vcuda from a folder named after the
pod, the three annotations on the container; on the pod `predicate-gpu-idx-0` and `gpu-assigned`. It knows the pod as
gpu-manager does: the first of this node that waits with that many cores. It places everything on the first GPU. Not
here: vcuda.sock, the driver's files, device nodes. It runs in vcuda's image, for its Python packages only.
"""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from kubernetes import client, config

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

DOMAIN = "tencent.com"
PLUGINS = Path("/var/lib/kubelet/device-plugins")
VIRTUAL = "/etc/gpu-manager/vm"
BLOCK_BYTES = 256 << 20


class Plugin(rpc.DevicePluginServicer):
    """One resource. Only that of cores answers Allocate with something."""

    def __init__(self, name: str, count: int) -> None:
        self.resource = f"{DOMAIN}/{name}"
        self.count = count
        self.ended = threading.Event()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.DevicePluginOptions(pre_start_required=True)

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        devices = [pb.Device(ID=f"{self.resource}-{number}", health="Healthy") for number in range(self.count)]
        yield pb.ListAndWatchResponse(devices=devices)
        context.add_callback(self.ended.set)
        self.ended.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        counts = [len(each.devices_ids) for each in request.container_requests]
        if not self.resource.endswith("core"):
            return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse() for _ in counts])
        return pb.AllocateResponse(container_responses=[allocated(count) for count in counts])

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.PreStartContainerResponse()


def allocated(cores: int) -> Any:
    pod = candidate(cores)
    limits = pod.spec.containers[0].resources.limits
    uuid = os.environ["GPU_UUIDS"].split(",")[0]
    annotations = {f"{DOMAIN}/predicate-gpu-idx-0": "0", f"{DOMAIN}/gpu-assigned": "true"}
    client.CoreV1Api().patch_namespaced_pod(
        pod.metadata.name, pod.metadata.namespace, {"metadata": {"annotations": annotations}}
    )
    folder = Path(VIRTUAL, pod.metadata.uid)
    folder.mkdir(parents=True, exist_ok=True)
    return pb.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": uuid, "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"},
        mounts=[pb.Mount(container_path="/etc/vcuda", host_path=str(folder), read_only=True)],
        annotations={
            f"{DOMAIN}/vcuda-core": str(cores),
            f"{DOMAIN}/vcuda-memory": str(int(limits[f"{DOMAIN}/vcuda-memory"]) * BLOCK_BYTES),
            f"{DOMAIN}/vcuda-device": "/dev/nvidia0",
        },
    )


def candidate(cores: int) -> Any:
    """gpu-manager's guess."""
    selector = f"spec.nodeName={os.environ['NODE_NAME']},status.phase=Pending"
    for pod in client.CoreV1Api().list_pod_for_all_namespaces(field_selector=selector).items:
        limits = pod.spec.containers[0].resources.limits or {}
        is_assigned = (pod.metadata.annotations or {}).get(f"{DOMAIN}/gpu-assigned") == "true"
        if limits.get(f"{DOMAIN}/vcuda-core") == str(cores) and not is_assigned:
            return pod
    raise LookupError(f"no pod of this node waits for {cores} cores")


def serve(plugin: Plugin, name: str) -> grpc.Server:
    socket = PLUGINS / name
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    with grpc.insecure_channel(f"unix:{PLUGINS / 'kubelet.sock'}") as channel:
        options = pb.DevicePluginOptions(pre_start_required=True)
        rpc.RegistrationStub(channel).Register(
            pb.RegisterRequest(version="v1beta1", endpoint=name, resource_name=plugin.resource, options=options)
        )
    return server


def main() -> None:
    config.load_incluster_config()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    gpus = len(os.environ["GPU_UUIDS"].split(","))
    core, memory = Plugin("vcuda-core", 100 * gpus), Plugin("vcuda-memory", int(os.environ["BLOCKS"]))
    servers = [serve(core, "vcore.sock"), serve(memory, "vmemory.sock")]
    stopped.wait()
    for plugin, server in zip((core, memory), servers, strict=True):
        plugin.ended.set()
        server.stop(1).wait()


if __name__ == "__main__":
    main()
