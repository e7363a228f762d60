"""The checks of a node: its driver, its directories, and what the agent asks of kubelet, the runtime, the API server.

In: the agent's settings. Out: findings. What is looked for and where is the agent's own code; nothing is written but
one file in each directory of the agent, which is removed again: rights, quotas and read-only mounts show in no mode.
`RIGHTS` are those of the chart's ClusterRole for the agent; a test compares them. With --wait-for-driver, the chart's
default, the agent waits for a driver; then its absence is a warning.
"""

import asyncio
import os
import secrets
import stat
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from deviceplugin.agent.mirroring import mirror_options
from deviceplugin.cli.doctor.cluster import NODES, OWN_PODS, OwnPod, lacking
from deviceplugin.cli.doctor.findings import Check, CheckResult, count, doubtful, failed, named, ok, skipped, warning
from deviceplugin.cli.doctor.nodes import node_facts
from deviceplugin.config.agent import AgentSettings
from deviceplugin.container.containers import ContainerRuntime
from deviceplugin.container.driver_mirror.components import CUDA, NVML, find_interposers
from deviceplugin.container.driver_mirror.plan import UNENFORCED, Chosen, MirrorPlan, make_plan
from deviceplugin.container.driver_mirror.search import choose, driver_version, find_libraries
from deviceplugin.driver_root import DriverRoot
from deviceplugin.errors import (
    GetMissingError,
    HardwareError,
    KubeletError,
    KubeNotFoundError,
    RuntimeApiError,
    VcudaError,
)
from deviceplugin.hardware.discovery import Discovery, discover
from deviceplugin.hardware.node import OPEN_BUDGET_S
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_executor import NvmlExecutor
from deviceplugin.hardware.pci import loaded_version
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.structs import ClusterNodeObject
from deviceplugin.kube.transport import Timeouts, Transport
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, CheckpointReader
from deviceplugin.kubelet.identity_sources import KubeletPods, PodResources
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import NEWEST_CUDA, ComputeMode

_LONGEST_REQUEST_S = 15.0


def _discovered(nvml: Nvml) -> Discovery:
    nvml.open()
    return discover(nvml)


class NodeSubject:
    """`closing` is for what a check opens."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.closing = AsyncExitStack()
        self.credentials = Credentials(settings.node.kubeconfig)
        self.api = ObjectClient(Transport(self.credentials, timeouts=Timeouts(request=_LONGEST_REQUEST_S)))
        self.runtime = ContainerRuntime(settings.runtime.endpoint) if settings.runtime.endpoint else None
        self._discovery: asyncio.Future[Discovery] | None = None
        self._executor = NvmlExecutor(Nvml(NvmlLibrary(root=settings.driver.root)))

    @property
    def loaded(self) -> str:
        """The version of the kernel's driver, empty if none is loaded."""
        return loaded_version(self.settings.driver.version_file)

    async def discovery(self) -> Discovery:
        """HardwareError if the driver does not answer, also after a hang."""
        if self._discovery is None:
            self._discovery = asyncio.ensure_future(
                self._executor.run(_discovered, what="reading the GPUs", budget=OPEN_BUDGET_S)
            )
        return await self._discovery

    async def close(self) -> None:
        await self.closing.aclose()
        if self.runtime is not None:
            await self.runtime.close()
        await self.api.close()
        await self._executor.close()


_CONTROL = ("nvidiactl", "nvidia-uvm")


async def module(subject: NodeSubject) -> CheckResult:
    settings = subject.settings.driver
    if not subject.loaded:
        made = warning if settings.wait_for_driver else failed
        return made(
            f"no NVIDIA kernel module is loaded: {settings.version_file} is not there",
            "install the driver, or load it with modprobe nvidia; with --wait-for-driver the agent waits for it",
        )
    return ok(f"kernel module of driver {subject.loaded}")


async def nvml(subject: NodeSubject) -> CheckResult:
    settings = subject.settings.driver
    try:
        found = await subject.discovery()
    except HardwareError as error:
        made = warning if settings.wait_for_driver else failed
        return made(error.finding, error.advice or "correct --driver-root, or the driver; see dmesg for NVRM")
    if found.failed or found.notes:
        return failed(
            f"{len(found.devices)} of {count(found.counted, 'GPU')} answer: "
            f"{named([*found.failed.values(), *found.notes])}",
            "see dmesg for NVRM and XIDs; reset the GPU or reboot the node",
        )
    if not found.gpus:
        return failed("NVML opens and lists no GPU", "take the agent's label off this node, or see dmesg for NVRM")
    models = Counter(gpu.model for gpu in found.gpus)
    shown = named([f"{number} × {model}" for model, number in sorted(models.items())])
    major, minor = found.driver.cuda
    if subject.loaded and found.driver.version != subject.loaded:
        return failed(
            f"NVML is of driver {found.driver.version} and the loaded kernel module of {subject.loaded}",
            "load the module of the installed driver again, or reboot the node",
        )
    if not found.driver.is_known:
        newest = ".".join(map(str, NEWEST_CUDA))
        return warning(
            f"{shown}; CUDA {major}.{minor} of the driver is newer than {newest}, all of which vcuda's library knows",
            "use a driver in docs/compatibility.md, or a newer vcuda",
        )
    return ok(f"{shown}; driver {found.driver.version}, CUDA {major}.{minor}")


async def modes(subject: NodeSubject) -> CheckResult:
    try:
        gpus = (await subject.discovery()).gpus
    except HardwareError:
        return skipped("NVML does not answer")
    mig = [f"GPU {gpu.minor}" for gpu in gpus if gpu.mig_enabled]
    prohibited = [f"GPU {gpu.minor}" for gpu in gpus if gpu.compute_mode is ComputeMode.PROHIBITED]
    if mig:
        return warning(
            f"{count(len(mig), 'GPU')} unavailable because of MIG mode: {named(mig)}",
            "nvidia-smi -i GPU -mig 0, or leave the GPU to NVIDIA's device plugin",
        )
    if prohibited:
        return warning(
            f"{count(len(prohibited), 'GPU')} unavailable because of compute mode prohibited: {named(prohibited)}",
            "nvidia-smi -i GPU -c DEFAULT",
        )
    return ok("no GPU is in MIG mode, or in compute mode prohibited")


async def libraries(subject: NodeSubject) -> CheckResult:
    """What the mirror for containers would have."""
    plan, trouble = await asyncio.to_thread(_plan, subject)
    if plan.refusal:
        reason, _, advice = plan.refusal.removeprefix(f"{UNENFORCED}: ").rpartition("; ")
        return failed(f"{reason}: shares cannot start", advice)
    if plan.missing:
        return warning(
            f"libraries of the driver are missing for containers: {named(plan.missing)}",
            "install the driver's compute libraries, or correct --driver-root",
        )
    if trouble:
        return warning(named(trouble), "install the driver again, or load its kernel module again")
    return ok(f"libcuda and NVML of driver {plan.driver}, and vcuda's library, for containers")


def _plan(subject: NodeSubject) -> tuple[MirrorPlan, tuple[str, ...]]:
    options = mirror_options(subject.settings.driver)
    prefixes = (CUDA, NVML, *options.shared.libraries, *options.whole.libraries)
    found = find_libraries(DriverRoot(options.root), prefixes, options.machine, loaded=subject.loaded)
    chosen = Chosen(
        choose(found.libraries, loaded=subject.loaded),
        {},
        find_interposers(options.library, options.machine),
        driver=driver_version(found.libraries, loaded=subject.loaded),
        root=options.root,
    )
    return make_plan(chosen, shared=options.shared, whole=options.whole), found.trouble


async def device_nodes(subject: NodeSubject) -> CheckResult:
    try:
        gpus = (await subject.discovery()).gpus
    except HardwareError:
        return skipped("NVML does not answer")
    directory = subject.settings.driver.device_root / "dev"
    wanted = [*_CONTROL, *(f"nvidia{gpu.minor}" for gpu in gpus)]
    missing = [str(directory / name) for name in wanted if not (directory / name).exists()]
    if missing:
        return failed(
            f"{count(len(missing), 'device node')} missing: {named(missing)}",
            "nvidia-modprobe -u -c 0 makes them; in a container mount the node's /dev",
        )
    if unlinked := [name for name in wanted if _lacks_link(directory, directory / name)]:
        return warning(
            f"{directory}/char has no link for {named(unlinked)}: where runc lets systemd make the control groups, "
            "containers that run lose these device nodes at the next `systemctl daemon-reload`",
            "nvidia-ctk system create-dev-char-symlinks --create-all makes the links; again after each boot",
        )
    return ok(f"{count(len(wanted), 'device node')} in {directory}")


def _lacks_link(directory: Path, node: Path) -> bool:
    """systemd knows a device by /dev/char/MAJOR:MINOR alone, and NVIDIA's driver makes no link there."""
    found = node.stat()
    link = directory / "char" / f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return stat.S_ISCHR(found.st_mode) and not link.exists()


_LEAST_ROOM = 64 << 20
"""A mirror of a driver's libraries beside the one in use needs some hundreds of MiB; below this nothing works."""
_ROOM = 1 << 30
_CGROUPS = Path("/sys/fs/cgroup")
_ANSWER_S = 5.0


async def state(subject: NodeSubject) -> CheckResult:
    """Journal, files of containers, mirror: writable, with room; libraries in the mirror can be mapped as programs."""
    settings = subject.settings
    places = (
        settings.allocation.checkpoint_path,
        settings.allocation.virtual_manager_path,
        settings.driver.mirror_path,
    )
    return await asyncio.to_thread(_state, places, settings.driver.mirror_path)


def _state(places: tuple[Path, ...], mirror: Path) -> CheckResult:
    existing = {place: _existing(place) for place in places}
    refused = {str(place): why for place, found in existing.items() if (why := _refused(found))}
    if refused:
        return failed(
            named([f"{place}: {why}" for place, why in refused.items()]),
            "run the agent as root, and give it a directory that can be written and is kept over reboots (value "
            "agent.stateDirectory)",
        )
    where = os.statvfs(existing[mirror])
    if where.f_flag & os.ST_NOEXEC:
        return failed(
            f"{mirror} lies on a file system that is mounted noexec: no program in a share can load the driver",
            "mount it without noexec, or choose another directory (value agent.stateDirectory)",
        )
    rooms = map(os.statvfs, existing.values())
    free = min(each.f_bavail * each.f_frsize for each in rooms)
    text = f"{free >> 20} MiB free for the journal, files of containers and the driver mirror"
    if free < _LEAST_ROOM:
        return failed(f"only {text}", "make room; without it no GPU is allocated")
    if free < _ROOM:
        return warning(f"only {text}", "make room: a driver upgrade needs a second mirror beside the first")
    return ok(f"{named([str(place) for place in places])} can be written; {text}")


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above it, in which the agent would make it."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _refused(directory: Path) -> str:
    """Why no file can be written there; empty if one can."""
    trial = directory / f".vcuda-doctor-{secrets.token_hex(4)}"
    try:
        trial.write_bytes(b"vcuda doctor")
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
    return ""


async def kubelet_directory(subject: NodeSubject) -> CheckResult:
    directory = subject.settings.kubelet.device_plugin_path
    advice = (
        "correct --device-plugin-path (value agent.kubelet.devicePlugins), and mount the directory into the agent's pod"
    )
    if not directory.is_dir():
        return failed(f"kubelet's directory for device plugins, {directory}, is not there", advice)
    if why := await asyncio.to_thread(_refused, directory):
        return failed(f"no socket can be made in {directory}: {why}", "run the agent as root; mount it writable")
    socket = directory / "kubelet.sock"
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_unix_connection(socket)
            writer.close()
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        return failed(f"kubelet does not listen on {socket}: {why}", f"start kubelet; {advice}")
    return ok(f"kubelet listens in {directory}")


async def kubelet_root(subject: NodeSubject) -> CheckResult:
    registry = subject.settings.kubelet.root / "plugins_registry"
    if registry.is_dir():
        return ok(f"{registry} is there: the agent registers there")
    return warning(
        f"there is no {registry}",
        "correct --kubelet-root (value agent.kubelet.root); through kubelet.sock the agent registers too",
    )


async def checkpoint(subject: NodeSubject) -> CheckResult:
    """Kubelet's own record, against which each container is verified before it starts."""
    path = subject.settings.kubelet.device_plugin_path / CHECKPOINT_NAME
    try:
        found = await asyncio.to_thread(CheckpointReader(path, subject.settings.names).read)
    except VcudaError as error:
        return failed(error.finding, error.advice or "run the agent as root; if the file is damaged, restart kubelet")
    if not found.exists:
        return warning(
            f"there is no {path} yet", "kubelet writes it when it starts; correct --device-plugin-path if not"
        )
    return ok(f"kubelet's checkpoint can be read: {len(found.entries)} entries of vcuda's resources")


async def cgroups(_: NodeSubject) -> CheckResult:
    if (_CGROUPS / "cgroup.controllers").is_file():
        return ok("cgroups of version 2")
    if (_CGROUPS / "memory").is_dir() or (_CGROUPS / "systemd").is_dir():
        return ok("cgroups of version 1")
    return warning(
        f"{_CGROUPS} has no control groups", "mount the node's /sys/fs/cgroup; else use by containers is not attributed"
    )


RIGHTS = (
    *((verb, "pods", "") for verb in ("get", "list", "watch", "patch", "delete")),
    *((verb, "nodes", "") for verb in ("get", "list", "watch", "patch")),
    ("get", "nodes", "pods"),
    *((verb, "events", "") for verb in ("create", "patch")),
)
_NOBODY = "vcuda-doctor"
_NO_RUNTIME = "no container runtime is to be asked (--container-runtime-endpoint is empty)"


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
        return doubtful(error, "start kubelet; without it containers are known by kubelet's list of pods only")
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
        async with asyncio.timeout(_ANSWER_S):
            pods = await client.fetch()
    except KubeletError as error:
        return doubtful(error, advice)
    except TimeoutError:
        return warning(f"kubelet at {kubelet.pods_endpoint} gives no answer in {_ANSWER_S:g} s", advice)
    return ok(f"kubelet lists its pods at {kubelet.pods_endpoint}: {len(pods)}")


async def container_runtime(subject: NodeSubject) -> CheckResult:
    if subject.runtime is None:
        return skipped(_NO_RUNTIME)
    try:
        await subject.runtime.running(PodUid(_NOBODY))
    except RuntimeApiError as error:
        return doubtful(error, "value agent.containerRuntime.socket; pod statuses, a little later, take its place")
    return ok(f"the container runtime answers on {subject.settings.runtime.endpoint}")


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
    if missing := await lacking(subject.api, RIGHTS):
        return failed(
            f"the agent's account may not {named(missing)}",
            "apply the ClusterRole vcuda-agent of the chart, and bind it to the agent's service account",
        )
    return ok("the agent's account has the rights of its ClusterRole")


_OURS = "app.kubernetes.io/name in (vcuda-agent,vcuda-scheduler)"
"""Of every namespace: there is one agent on a node, and perhaps a scheduler."""


async def images(subject: NodeSubject) -> CheckResult:
    if subject.runtime is None:
        return skipped(_NO_RUNTIME)
    query = {"labelSelector": _OURS, "fieldSelector": f"spec.nodeName={subject.settings.node.name}"}
    pods = [pod async for pod in subject.api.each(OWN_PODS, what="vcuda's pods", query=query)]
    if not pods:
        return skipped("this node has no pod of vcuda yet, so no image is known")
    wanted = sorted({image for pod in pods for image in pod.images.values()})
    try:
        absent = [image for image in wanted if not await subject.runtime.has_image(image)]
    except RuntimeApiError as error:
        return doubtful(error, "value agent.containerRuntime.socket")
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


CHECKS = (
    Check("state-directory", state, to_start=True),
    Check("driver-module", module, to_start=True),
    Check("nvml", nvml, to_start=True),
    Check("gpu-modes", modes),
    Check("libraries", libraries),
    Check("device-nodes", device_nodes),
    Check("kubelet-directory", kubelet_directory),
    Check("kubelet-root", kubelet_root),
    Check("kubelet-checkpoint", checkpoint),
    Check("pod-resources", pod_resources),
    Check("kubelet-pods", kubelet_pods),
    Check("container-runtime", container_runtime),
    Check("cgroups", cgroups),
    Check("credentials", credentials, needed=True, to_start=True),
    Check("api-server", api_server, needed=True),
    Check("node", node_object),
    Check("images", images),
    Check("rights", rights),
    Check("other-plugins", other_plugins),
)
