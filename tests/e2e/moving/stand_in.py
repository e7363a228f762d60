"""Stand-ins for the node agents of gpu-manager and HAMi and for HAMi's scheduler, as one program with these names.

In: kubelet's device-plugin folder, the API server, the GPUs' UUIDs (GPU_UUIDS, by commas). Out: answers to Allocate and
annotations in the originals' form. `gpu-manager` serves both of its resources, mounts /etc/vcuda from a folder named
after the pod, and knows the pod as the original does: the first of this node that waits with that many cores.
`hami-device-plugin` serves nvidia.com/gpu tenfold, registers on the node and finishes what `hami-scheduler` began,
which binds pods by annotation. Its webhook, in the same program, does to a new pod what HAMi's does: a number of GPUs
where only parts of one are asked for, its scheduler's name, a priority as a variable, and no GPU for other containers.
All place everything on the first GPU. gpu-manager's answer has device nodes, as allocateOne of the original gives them
(tkestack/gpu-manager, pkg/services/allocator/nvidia/allocator.go), from where vcuda's chart has those of the emulated
driver. Not here: vcuda.sock, the driver. It runs in vcuda's image, for its Python packages only.
"""

import base64
import json
import os
import signal
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

DOMAIN = "tencent.com"
PLUGINS = Path("/var/lib/kubelet/device-plugins")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
VIRTUAL = "/etc/gpu-manager/vm"
DRIVER = "/etc/gpu-manager/vdriver/nvidia"
DEVICES = Path("/run/vcuda/emulated/dev")
NODES = {"nvidia0": (195, 0), "nvidiactl": (195, 255), "nvidia-uvm": (511, 0)}
BLOCK_BYTES = 256 << 20
SPLIT = 10
WEBHOOK_PORT = 8443
CERTIFICATE = Path("/tls")
HAMI = "hami-scheduler"
STOPPED = threading.Event()
Response = Any


class Plugin(rpc.DevicePluginServicer):
    """One resource; `answer` makes the response for so many devices."""

    def __init__(self, resource: str, ids: list[str], answer: Callable[[int], Response], *, pre_start: bool) -> None:
        self.resource = resource
        self.ids = ids
        self.answer = answer
        self.options = pb.DevicePluginOptions(pre_start_required=pre_start)

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Response:  # noqa: N802
        return self.options

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Response]:  # noqa: N802
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=each, health="Healthy") for each in self.ids])
        ended = threading.Event()
        context.add_callback(ended.set)
        while not (ended.wait(0.2) or STOPPED.is_set()):
            pass

    def Allocate(self, request: Any, context: Any) -> Response:  # noqa: N802
        counts = [len(each.devices_ids) for each in request.container_requests]
        return pb.AllocateResponse(container_responses=[self.answer(count) for count in counts])

    def PreStartContainer(self, request: Any, context: Any) -> Response:  # noqa: N802
        return pb.PreStartContainerResponse()


def gpu_manager() -> None:
    """Its two plugins. Only that of cores answers Allocate with something."""
    for name, number in NODES.items():
        if not (DEVICES / name).exists():
            os.mknod(DEVICES / name, stat.S_IFCHR | 0o666, os.makedev(*number))
    cores = [f"{DOMAIN}/vcuda-core-{number}" for number in range(100 * len(gpus()))]
    blocks = [f"{DOMAIN}/vcuda-memory-{number}" for number in range(int(os.environ["BLOCKS"]))]
    serve(
        {
            "vcore.sock": Plugin(f"{DOMAIN}/vcuda-core", cores, gpu_manager_answer, pre_start=True),
            "vmemory.sock": Plugin(
                f"{DOMAIN}/vcuda-memory", blocks, lambda _: pb.ContainerAllocateResponse(), pre_start=True
            ),
        }
    )


def gpu_manager_answer(cores: int) -> Response:
    pod = waiting(f"{DOMAIN}/vcuda-core", cores, lambda notes: notes.get(f"{DOMAIN}/gpu-assigned") != "true")
    annotate(pod, {f"{DOMAIN}/predicate-gpu-idx-0": "0", f"{DOMAIN}/gpu-assigned": "true"})
    folder = Path(VIRTUAL, pod["metadata"]["uid"])
    folder.mkdir(parents=True, exist_ok=True)
    Path(DRIVER, "lib64").mkdir(parents=True, exist_ok=True)
    Path(DRIVER, "lib64", "libcuda-control.so").touch()
    return pb.ContainerAllocateResponse(
        devices=[
            pb.DeviceSpec(container_path=f"/dev/{name}", host_path=str(DEVICES / name), permissions="rwm")
            for name in NODES
        ],
        envs={"NVIDIA_VISIBLE_DEVICES": gpus()[0], "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"},
        mounts=[
            pb.Mount(container_path="/usr/local/nvidia", host_path=DRIVER, read_only=True),
            pb.Mount(container_path="/etc/vcuda", host_path=str(folder), read_only=True),
        ],
        annotations={
            f"{DOMAIN}/vcuda-core": str(cores),
            f"{DOMAIN}/vcuda-memory": str(int(limits_of(pod)[f"{DOMAIN}/vcuda-memory"]) * BLOCK_BYTES),
            f"{DOMAIN}/vcuda-device": "/dev/nvidia0",
        },
    )


def hami_device_plugin() -> None:
    ids = [f"{uuid}-{number}" for uuid in gpus() for number in range(SPLIT)]
    registered = json.dumps([{"id": uuid, "count": SPLIT, "devmem": 81920, "devcore": 100} for uuid in gpus()])
    notes = {"hami.io/node-nvidia-register": registered, "hami.io/node-handshake": "Reported"}
    api_server(f"/api/v1/nodes/{os.environ['NODE_NAME']}", patch={"metadata": {"annotations": notes}})
    serve({"nvidia-gpu.sock": Plugin("nvidia.com/gpu", ids, hami_answer, pre_start=False)})


def hami_answer(count: int) -> Response:
    pod = waiting("nvidia.com/gpu", count, lambda notes: notes.get("hami.io/bind-phase") == "allocating")
    annotate(pod, {"hami.io/bind-phase": "success"})
    memory = limits_of(pod).get("nvidia.com/gpumem", "0")
    envs = {"NVIDIA_VISIBLE_DEVICES": gpus()[0], "CUDA_DEVICE_MEMORY_LIMIT_0": f"{memory}m"}
    return pb.ContainerAllocateResponse(envs=envs)


def hami_scheduler() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE / "tls.crt", CERTIFICATE / "tls.key")
    server = ThreadingHTTPServer(("", WEBHOOK_PORT), Webhook)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not STOPPED.wait(0.5):
        nodes = [each["metadata"]["name"] for each in api_server("/api/v1/nodes")["items"] if takes_pods(each)]
        for pod in api_server(f"/api/v1/pods?fieldSelector={quote('spec.nodeName=,status.phase=Pending')}")["items"]:
            if pod["spec"]["schedulerName"] == HAMI and nodes:
                hami_bind(pod, nodes[0])


class Webhook(BaseHTTPRequestHandler):
    """An AdmissionReview comes, and goes back with a patch."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        spec = hami_change(review["request"]["object"]["spec"])
        patch = json.dumps([{"op": "replace", "path": "/spec", "value": spec}]).encode()
        review["response"] = {
            "uid": review.pop("request")["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(patch).decode(),
        }
        body = json.dumps(review).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def hami_change(spec: Any) -> Any:
    """The pod's spec, changed in place."""
    is_hamis = False
    for container in spec["containers"]:
        limits = container.setdefault("resources", {}).get("limits", {})
        variables = container.setdefault("env", [])
        if priority := limits.get("nvidia.com/priority"):
            variables.append({"name": "CUDA_TASK_PRIORITY", "value": priority})
        if limits.keys() & {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"}:
            limits.setdefault("nvidia.com/gpu", "1")
        if "nvidia.com/gpu" in limits:
            is_hamis = True
        else:
            variables.append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"})
    if is_hamis and spec.get("schedulerName") in (None, "default-scheduler"):
        spec["schedulerName"] = HAMI
    return spec


def takes_pods(node: Any) -> bool:
    notes = node["metadata"].get("annotations", {})
    is_hamis = node["metadata"]["labels"].get("gpu") == "on" and "hami.io/node-nvidia-register" in notes
    return is_hamis and not node["spec"].get("unschedulable")


def hami_bind(pod: Any, node: str) -> None:
    annotate(pod, {"hami.io/vgpu-node": node, "hami.io/bind-phase": "allocating"})
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}, "target": target}
    api_server(f"{path_of(pod)}/binding", post=binding)


def gpus() -> list[str]:
    return os.environ["GPU_UUIDS"].split(",")


def waiting(resource: str, count: int, is_wanted: Callable[[Any], bool]) -> Any:
    """The first pod of this node that waits with so many devices and these annotations."""
    selector = f"spec.nodeName={os.environ['NODE_NAME']},status.phase=Pending"
    for pod in api_server(f"/api/v1/pods?fieldSelector={quote(selector)}")["items"]:
        if limits_of(pod).get(resource) == str(count) and is_wanted(pod["metadata"].get("annotations", {})):
            return pod
    raise LookupError(f"no pod of this node waits for {count} {resource}")


def limits_of(pod: Any) -> Any:
    """Of its one container."""
    return pod["spec"]["containers"][0]["resources"].get("limits", {})


def path_of(pod: Any) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def annotate(pod: Any, annotations: dict[str, str]) -> None:
    api_server(path_of(pod), patch={"metadata": {"annotations": annotations}})


def api_server(path: str, *, patch: Any = None, post: Any = None) -> Any:
    """With the service account's token; a change is a merge patch."""
    body = patch or post
    kind = "application/merge-patch+json" if patch else "application/json"
    request = Request(
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}",
        data=json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": kind},
        method="PATCH" if patch else "POST" if post else "GET",
    )
    with urlopen(request, context=ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))) as answer:
        return json.loads(answer.read())


def wait_for_rights() -> None:
    """An API server without CPU time to spare learns of a new binding after the pod that needs it has started."""
    while not STOPPED.wait(0.5):
        try:
            api_server("/api/v1/nodes?limit=1")
        except HTTPError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
        else:
            return


def serve(plugins: dict[str, Plugin]) -> None:
    """Registers each by its socket's name, until the program is told to end."""
    servers = [served(name, plugin) for name, plugin in plugins.items()]
    STOPPED.wait()
    for server in servers:
        server.stop(1).wait()


def served(name: str, plugin: Plugin) -> grpc.Server:
    socket = PLUGINS / name
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    request = pb.RegisterRequest(
        version="v1beta1", endpoint=name, resource_name=plugin.resource, options=plugin.options
    )
    with grpc.insecure_channel(f"unix:{PLUGINS / 'kubelet.sock'}") as channel:
        rpc.RegistrationStub(channel).Register(request)
    return server


PROGRAMS = {"gpu-manager": gpu_manager, "hami-device-plugin": hami_device_plugin, "hami-scheduler": hami_scheduler}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: STOPPED.set())
    wait_for_rights()
    PROGRAMS[sys.argv[1]]()
