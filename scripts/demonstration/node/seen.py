"""Looks at pods from outside the agent: the API server's phase, kubelet's device IDs, the container's own view.

In: the node and the pods' names. Out: `SeenPod`s.
"""

from sandbox.gpunode import GpuNode
from sandbox.kubelet import ContainerView
from sandbox.kubelet.podspec import Container, Role, parse_pod
from scripts.demonstration.document import Device, Mounted, SeenContainer, SeenPod
from scripts.demonstration.node.cast import NAMESPACE, Json

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
LIMITS = "/etc/vcuda/vcuda.config"
PREFIX = "/dev/nvidia"


def pod(stage: GpuNode, name: str, *, namespace: str = NAMESPACE) -> SeenPod:
    raw: Json = stage.server.store.get("pods", name, namespace=namespace)
    parsed = parse_pod(raw)
    started = [item for item in parsed.containers if stage.kubelet.started(parsed.uid, item.name)]
    containers = tuple(_container(stage, parsed.uid, item) for item in started)
    lasting = [item for item in containers if not item.init]
    return SeenPod(
        namespace=parsed.namespace,
        name=parsed.name,
        uid=parsed.uid,
        phase=parsed.phase,
        message=raw["status"].get("message", ""),
        gpus=tuple(sorted({minor for item in lasting for minor in item.gpus})),
        cores=sum(item.cores for item in lasting),
        blocks=sum(item.blocks for item in lasting),
        containers=containers,
    )


def waiting(stage: GpuNode, name: str) -> str:
    """What holds a pod's containers back."""
    status: Json = stage.server.store.get("pods", name, namespace=NAMESPACE)["status"]
    states = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    held = [item["state"]["waiting"] for item in states if "waiting" in item["state"]]
    return "; ".join(f"{item['reason']}: {item['message']}" for item in held) or "kubelet has not looked at it"


def _container(stage: GpuNode, uid: str, item: Container) -> SeenContainer:
    view = stage.kubelet.container_view(uid, item.name)
    held = stage.kubelet.devices_of(uid, item.name)
    return SeenContainer(
        name=item.name,
        init=item.role is Role.INIT,
        cores=item.limits.get(CORE, 0),
        blocks=item.limits.get(MEMORY, 0),
        gpus=tuple(sorted(minors(view))),
        core_ids=len(held.get(CORE, ())),
        memory_ids=len(held.get(MEMORY, ())),
        env=dict(view.env),
        mounts=tuple(Mounted(mount.container_path, mount.host_path, mount.read_only) for mount in view.mounts),
        devices=tuple(Device(node.container_path, node.host_path, node.permissions) for node in view.devices),
        annotations=dict(view.annotations),
        limits_file=_limits(view),
    )


def minors(view: ContainerView) -> list[int]:
    names = (node.container_path.removeprefix(PREFIX) for node in view.devices)
    return [int(name) for name in names if name.isdecimal()]


def _limits(view: ContainerView) -> int:
    """Size of the limits file if it names this pod and this container, else 0."""
    content = view.files.get(LIMITS, b"")
    return len(content) if view.uid.encode() in content and view.container.encode() in content else 0
