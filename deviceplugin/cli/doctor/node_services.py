"""The checks of what the agent asks on a node and in the cluster: PodResources, kubelet's pods, CRI, the API server.

In: a `NodeSubject`. Out: findings. `RIGHTS` are those of the chart's ClusterRole for the agent; a test compares them.
"""

import asyncio

from deviceplugin.cli.doctor.findings import CheckResult, failed, named, ok, skipped, warning
from deviceplugin.cli.doctor.node import NodeSubject
from deviceplugin.cli.doctor.nodes import node_facts
from deviceplugin.cli.doctor.objects import NODES, OWN_PODS, OwnPod
from deviceplugin.container.containers import ContainerRuntime
from deviceplugin.errors import GetMissingError, KubeletError, KubeNotFoundError, RuntimeApiError
from deviceplugin.kube.objects import ObjectRef
from deviceplugin.kube.structs import ClusterNodeObject
from deviceplugin.kubelet.identity_sources import KubeletPods, PodResources
from deviceplugin.model.allocation import PodUid

RIGHTS = (
    *((verb, "pods", "") for verb in ("get", "list", "watch", "patch", "delete")),
    *((verb, "nodes", "") for verb in ("get", "list", "watch", "patch")),
    ("get", "nodes", "pods"),
    *((verb, "events", "") for verb in ("create", "patch")),
)
"""Verb, resource and subresource."""
_KUBELET_S = 5.0
_NOBODY = "vcuda-doctor"


async def pod_resources(subject: NodeSubject) -> CheckResult:
    """Asked for a pod that is not there: `List` would make kubelet free devices."""
    socket = subject.settings.kubelet.root / "pod-resources" / "kubelet.sock"
    client = PodResources(socket)
    subject.closing.push_async_callback(client.close)
    if not socket.exists():
        return warning(f"there is no {socket}", "correct --kubelet-root (value agent.kubelet.root)")
    try:
        await client.get(_NOBODY, _NOBODY)
    except GetMissingError:
        return ok(f"kubelet listens on {socket}; it has no Get, as before 1.34, and lists all pods")
    except KubeletError as error:
        return warning(error.message, "start kubelet; without it containers are known by kubelet's list of pods only")
    return ok(f"kubelet answers on {socket}")


async def kubelet_pods(subject: NodeSubject) -> CheckResult:
    kubelet, node = subject.settings.kubelet, subject.settings.node
    own = (kubelet.ca_file,) if kubelet.ca_file else (kubelet.root / "pki" / "kubelet.crt",)
    client = KubeletPods(
        kubelet.pods_endpoint,
        access=subject.credentials.access,
        node=node.name,
        names=subject.settings.names,
        own_ca_files=own,
    )
    subject.closing.push_async_callback(client.close)
    advice = "PodResources is asked in its place, which does not know init containers"
    try:
        async with asyncio.timeout(_KUBELET_S):
            pods = await client.fetch()
    except KubeletError as error:
        return warning(error.message, advice)
    except TimeoutError:
        return warning(f"kubelet at {kubelet.pods_endpoint} gives no answer in {_KUBELET_S:g} s", advice)
    return ok(f"kubelet lists its pods at {kubelet.pods_endpoint}: {len(pods)}")


async def container_runtime(subject: NodeSubject) -> CheckResult:
    endpoint = subject.settings.runtime.endpoint
    if endpoint is None:
        return skipped("no container runtime is to be asked (--container-runtime-endpoint is empty)")
    client = ContainerRuntime(endpoint)
    subject.closing.push_async_callback(client.close)
    try:
        await client.running(PodUid(_NOBODY))
    except RuntimeApiError as error:
        return warning(
            error.message, "value agent.containerRuntime.socket; pod statuses, a little later, take its place"
        )
    return ok(f"the container runtime answers on {endpoint}")


async def credentials(subject: NodeSubject) -> CheckResult:
    """Those that can never work end the agent; an API server that is away does not."""
    access = await subject.credentials.access()
    return ok(f"credentials for {access.facts.server}")


async def api_server(subject: NodeSubject) -> CheckResult:
    await subject.api.version()
    return ok("the API server answers")


async def _node(subject: NodeSubject) -> ClusterNodeObject:
    ref = ObjectRef("", subject.settings.node.name)
    return await subject.api.get(NODES, ref, what="read this node")


async def node_object(subject: NodeSubject) -> CheckResult:
    name = subject.settings.node.name
    try:
        await _node(subject)
    except KubeNotFoundError:
        return failed(f"the cluster has no node {name}", "set NODE_NAME or --hostname-override to the node's name")
    return ok(f"the cluster has this node as {name}")


async def other_plugins(subject: NodeSubject) -> CheckResult:
    found = node_facts(await _node(subject), subject.settings.names)
    if found.foreign:
        return failed(
            f"another device plugin offers GPUs of this node, as {named(found.foreign)}; a GPU can be given away twice",
            "keep that device plugin off this node; NVIDIA's with the GPU operator: "
            f"kubectl label node {found.name} nvidia.com/gpu.deploy.device-plugin=false",
        )
    return ok("no other device plugin offers GPUs of this node")


async def rights(subject: NodeSubject) -> CheckResult:
    missing = [
        f"{verb} {resource}{'/' if below else ''}{below}"
        for verb, resource, below in RIGHTS
        if not await subject.api.may(verb, resource, below=below)
    ]
    if missing:
        return failed(
            f"the agent's account may not {named(missing)}",
            "apply the ClusterRole vcuda-agent of the chart, and bind it to the agent's service account",
        )
    return ok("the agent's account has the rights of its ClusterRole")


_OURS = "app.kubernetes.io/name in (vcuda-agent,vcuda-scheduler)"


async def images(subject: NodeSubject) -> CheckResult:
    endpoint = subject.settings.runtime.endpoint
    if endpoint is None:
        return skipped("no container runtime is to be asked (--container-runtime-endpoint is empty)")
    pods = await _own_pods(subject)
    if not pods:
        return skipped("this node has no pod of vcuda yet, so no image is known")
    runtime = ContainerRuntime(endpoint)
    subject.closing.push_async_callback(runtime.close)
    wanted = sorted({image for pod in pods for image in pod.images.values()})
    try:
        absent = [image for image in wanted if not await runtime.has_image(image)]
    except RuntimeApiError as error:
        return warning(error.message, "value agent.containerRuntime.socket")
    return _finding(pods, wanted, absent)


def _finding(pods: list[OwnPod], wanted: list[str], absent: list[str]) -> CheckResult:
    if not absent:
        return ok(f"the container runtime has the images of vcuda's pods on this node: {named(wanted)}")
    advice = (
        f"on the node, crictl pull {absent[0]} tries it; the values global.imageRegistry, image.repository and "
        "image.pullSecrets name registry and credentials"
    )
    said = [(pod.images.get(name, ""), why) for pod in pods for name, why in pod.waits.items()]
    image, why = next(((image, why) for image, why in said if image in absent), ("", ""))
    if image:
        return failed(f"the container runtime does not have {image}, and kubelet says {why}", advice)
    return warning(f"the container runtime does not have {named(absent)}; a pod that starts pulls it first", advice)


async def _own_pods(subject: NodeSubject) -> list[OwnPod]:
    """Of every namespace: there is one agent on a node, and perhaps a scheduler."""
    query = {"labelSelector": _OURS, "fieldSelector": f"spec.nodeName={subject.settings.node.name}"}
    return [pod async for pod in subject.api.each(OWN_PODS, what="vcuda's pods", query=query)]
