"""The check of images on a node: whether the runtime has those of vcuda's pods there, and what kubelet said where not.

In: a `NodeSubject`. Out: a finding. Nothing is pulled.
"""

from deviceplugin.cli.doctor.findings import CheckResult, failed, named, ok, skipped, warning
from deviceplugin.cli.doctor.node import NodeSubject
from deviceplugin.cli.doctor.objects import OwnPod
from deviceplugin.container.runtime import ContainerRuntime
from deviceplugin.errors import RuntimeApiError
from deviceplugin.kube.structs import Page, decode
from deviceplugin.kube.transport import core_path

_OURS = "app.kubernetes.io/name in (vcuda-agent,vcuda-scheduler)"


async def images(subject: NodeSubject) -> CheckResult:
    settings = subject.settings.runtime
    if settings.endpoint is None:
        return skipped("no container runtime is to be asked (--container-runtime-endpoint is empty)")
    pods = await _own_pods(subject)
    if not pods:
        return skipped("this node has no pod of vcuda yet, so no image is known")
    runtime = ContainerRuntime(settings.endpoint, timeout_s=settings.request_timeout)
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
    answer = await subject.transport.request("GET", core_path("pods"), what="list vcuda's pods", query=query)
    page = decode(Page, answer, what="vcuda's pods")
    return [decode(OwnPod, item, what="a pod") for item in page.items or ()]
