"""The agent's kubelet plugin in this process, connected to the stand-in kubelet: all is real but GPUs and cluster.

In: an inventory and identity sources. Out: a `Station` that kubelet calls. `known` is what the watch of the API server
would show; a caller fills it early, late or wrongly.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp

from deviceplugin.agent.cluster import PodHints
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import KubeError, KubeletError, VcudaError
from deviceplugin.kube.pods import PodListReader
from deviceplugin.kubelet.allocate_answer import HostLayout
from deviceplugin.kubelet.allocate_context import AllocateContext
from deviceplugin.kubelet.allocator import Allocator
from deviceplugin.kubelet.answers import AnswerReader
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.devices import DeviceFeed, catalog
from deviceplugin.kubelet.identity import IdentifiedContainer, Identity, IdentitySource
from deviceplugin.kubelet.identity_sources import PendingSource, PodResources, PodResourcesSource, PodsSource
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.kubelet.pre_start import PreStart
from deviceplugin.kubelet.registration import KubeletLink, KubeletPaths
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.placement.pod import Choice
from deviceplugin.structs import replace
from sandbox.driver_root import make_driver_root, make_interposers
from sandbox.kubelet import Kubelet, KubeletOptions

NAMES = ResourceNames()
ENDED = {"Succeeded", "Failed"}
ALL = (Source.PODS, Source.PODRESOURCES, Source.APISERVER)
Json = dict[str, Any]


@dataclass
class Unanswered:
    """Calls that ended without a decision, by their reason."""

    refused_: list[str] = field(default_factory=list)
    failed_: list[str] = field(default_factory=list)

    def refused(self, reason: str, seconds: float) -> None:
        self.refused_.append(reason)

    def start_failed(self, reason: str) -> None:
        self.failed_.append(reason)


@dataclass
class Reports:
    """Everything that the flows reported (`allocate_context.Report`)."""

    granted_: list[tuple[IdentifiedContainer, Grant]] = field(default_factory=list)
    refused_: list[str] = field(default_factory=list)
    repaired_: list[tuple[str, str]] = field(default_factory=list)
    started_: int = 0
    written_: list[str] = field(default_factory=list)
    start_failures: list[str] = field(default_factory=list)
    unanswered: Unanswered = field(default_factory=Unanswered)

    def granted(self, asking: IdentifiedContainer, grant: Grant, choice: Choice, *, seconds: float) -> None:
        self.granted_.append((asking, grant))

    def refused(
        self,
        asking: IdentifiedContainer | None,
        resource_name: str,
        count: int,
        error: VcudaError,
        *,
        seconds: float,
    ) -> None:
        self.refused_.append(error.message)

    def started(self) -> None:
        self.started_ += 1

    def limits_written(self, grant: Grant) -> None:
        self.written_.append(str(grant.allocation.owner))

    def start_failed(self, owner: ContainerRef | None, error: VcudaError) -> None:
        self.start_failures.append(error.message)

    def repaired(self, before: ContainerRef, grant: Grant) -> None:
        self.repaired_.append((str(before), str(grant.allocation.owner)))


class Station:
    """One plugin at one stand-in kubelet. Serves the flows as `Pods`, `Gpus` and `Reclaim` of `allocate_context`."""

    def __init__(
        self, kubelet: Kubelet, inventory: Inventory, base: Path, *, sources: Sequence[Source], budget_s: float = 0.5
    ) -> None:
        self.kubelet = kubelet
        self.known: list[Pod] = []
        self.reports = Reports()
        self.placements: list[Grant] = []
        self.unstartable_: list[str] = []
        self.cordon: frozenset[GpuUuid] = frozenset()
        self.moved: dict[GpuUuid, int] = {}  # minor numbers that the driver gave after `inventory` was read
        self.base = base
        self.pods_refused = False
        self.api_is_away = False
        self.feed = DeviceFeed(catalog(inventory))
        self.ledger = Ledger(Journal.open(base / "ledger.journal"))
        self.resources = PodResources(kubelet.options.podresources_socket)
        self._sources, self.budget_s = sources, budget_s
        self._session: aiohttp.ClientSession | None = None
        self.context = self._context()
        self.allocator, self.pre_start = Allocator(self.context), PreStart(self.context)
        self.plugins = [
            ResourcePlugin(resource, self.feed, self.allocator, self.pre_start, unanswered=self.reports.unanswered)
            for resource in Resource
        ]

    def link(self, **options: Callable[[], None]) -> KubeletLink:
        paths = KubeletPaths(self.kubelet.options.plugin_dir, self.kubelet.options.registry_dir)
        return KubeletLink(self.plugins, paths, NAMES, **options)

    def know(self, *pods: Json) -> None:
        """The watch of the API server shows these pods."""
        self.known += PodListReader().read(json.dumps({"items": pods}).encode())

    def grant_of(self, uid: str, container: str) -> Grant:
        grant = self.ledger.of_owner((PodUid(uid), container))
        assert grant is not None, f"no grant for {container} of {uid}"
        return grant

    def minors(self, uid: str, container: str) -> list[int]:
        gpus = {gpu.uuid: gpu.minor for gpu in self.feed.catalog.inventory.gpus}
        return sorted(gpus[share.uuid] for share in self.grant_of(uid, container).allocation.shares)

    async def close(self) -> None:
        await self.resources.close()
        self.ledger.close()
        if self._session is not None:
            await self._session.close()

    async def fetch_pods(self) -> tuple[Pod, ...]:
        if self.pods_refused:
            raise KubeletError("kubelet refuses this agent (403)")
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {"Authorization": f"Bearer {self.kubelet.options.token}"}
        async with self._session.get(self.kubelet.pods_url, headers=headers, ssl=False) as response:
            return PodListReader().read(await response.read())

    async def _fetch_one(self, namespace: str, name: str) -> Pod | None:
        if self.api_is_away:
            raise KubeError("the API server could not be asked: Connection refused")
        shown = PodListReader().read(json.dumps({"items": self.kubelet.pod_list()}).encode())
        return next((pod for pod in shown if (pod.ref.namespace, pod.ref.name) == (namespace, name)), None)

    def watched(self) -> Sequence[Pod]:
        return self.known

    async def find(self, uid: PodUid) -> Pod | None:
        shown = (
            () if self.pods_refused else PodListReader().read(json.dumps({"items": self.kubelet.pod_list()}).encode())
        )
        return next((pod for pod in (*self.known, *shown) if pod.ref.uid == uid), None)

    async def with_promised_gpus(self, pod: Pod) -> Pod:
        """No pod is Volcano's."""
        return pod

    def located(self, gpu: Gpu) -> Gpu:
        return replace(gpu, minor=self.moved.get(gpu.uuid, gpu.minor))

    async def settled(self) -> None:
        """The inventory is of now."""

    def cordoned(self) -> frozenset[GpuUuid]:
        return self.cordon

    def processes(self) -> Mapping[GpuUuid, int]:
        return {}

    async def reclaim(self) -> None:
        """As the reconciler does: a pod that kubelet no longer shows has ended."""
        shown = {pod["metadata"]["uid"] for pod in self.kubelet.pod_list() if pod["status"]["phase"] not in ENDED}
        gone = [each.id for each in self.ledger.grants() if each.proved and each.allocation.owner.pod.uid not in shown]
        self.ledger.release(gone, why="its pod ended")

    async def ensure_complete(self) -> None:
        """The ledger lacks nothing."""

    def placed(self, grant: Grant) -> None:
        self.placements.append(grant)

    def unstartable(self, container: ContainerRef, why: str) -> None:
        self.unstartable_.append(str(container))

    def _mirror(self) -> DriverMirror:
        driver = make_driver_root(self.base / "root")
        options = MirrorOptions(driver.path, make_interposers(self.base / "library"), Machine.here())
        return DriverMirror(self.base / "mirror", options, loaded=lambda: driver.version)

    def _files(self) -> AgentFiles:
        devices = self.base / "root" / "dev"
        devices.mkdir(parents=True, exist_ok=True)
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{gpu.minor}" for gpu in self.feed.catalog.inventory.gpus)):
            (devices / name).touch()
        mirror = self._mirror()
        files = AgentFiles(
            GrantDirectories(self.base / "vm"),
            SharedState(self.base / "vm"),
            mirror=mirror,
            cdi=None,
            inventory=lambda: self.feed.catalog.inventory,
        )
        files.open()
        mirror.refresh()
        return files

    def _source(self, source: Source, answers: AnswerReader, hints: PodHints) -> IdentitySource:
        if source is Source.PODS:
            return PodsSource(self.fetch_pods, answers)
        if source is Source.PODRESOURCES:
            return PodResourcesSource(
                self.resources, answers, known=lambda: self.known, fetch=self._fetch_one, names=NAMES
            )
        return PendingSource(lambda: self.known, answers, predicate_time=hints.predicate_time)

    def _context(self) -> AllocateContext:
        hints = PodHints(AnnotationNames(), lambda: self.feed.catalog.inventory)
        checkpoint = CheckpointReader(self.kubelet.checkpoint_path)
        answers = AnswerReader(self.ledger, checkpoint, lambda _grants: frozenset())
        return AllocateContext(
            feed=self.feed,
            ledger=self.ledger,
            identity=Identity(
                [self._source(source, answers, hints) for source in self._sources], budget_s=self.budget_s
            ),
            layout=HostLayout(
                PurePosixPath(self.base / "vm"),
                PurePosixPath(self.base / "mirror"),
                device_root=PurePosixPath(self.base / "root"),
            ),
            checkpoint=checkpoint,
            answers=answers,
            pods=self,
            hints=hints,
            gpus=self,
            reclaim=self,
            files=self._files(),
            report=self.reports,
            share_mode=True,
        )


@asynccontextmanager
async def station(
    base: Path,
    inventory: Inventory,
    *,
    sources: Sequence[Source] = ALL,
    budget_s: float = 0.5,
    **options: Any,
) -> AsyncIterator[Station]:
    """A running plugin at a running kubelet, registered."""
    async with Kubelet(KubeletOptions(root=base / "k", **({"first_sync_s": 0.05, "speed": 20.0} | options))) as kubelet:
        made = Station(kubelet, inventory, base, sources=sources, budget_s=budget_s)
        task = asyncio.create_task(made.link().run())
        try:
            await kubelet.wait_registered(NAMES.core, NAMES.memory)
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await made.close()


def pod_json(
    name: str,
    *containers: tuple[str, int, int],
    init: Sequence[tuple[str, int, int]] = (),
    sidecars: Sequence[str] = (),
    annotations: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    restart_policy: str = "Always",
) -> Json:
    """A pod as the API server has it; containers are (name, cores, blocks)."""

    def listed(each: tuple[str, int, int]) -> Json:
        limits = {key: str(value) for key, value in ((NAMES.core, each[1]), (NAMES.memory, each[2])) if value}
        made: Json = {
            "name": each[0],
            "image": "busybox",
            "resources": {"limits": limits, "requests": limits},
            "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        }
        return made | ({"restartPolicy": "Always"} if each[0] in sidecars else {})

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": str(uuid.uuid4()),
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": annotations or {},
        },
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": restart_policy,
            "containers": [listed(each) for each in containers],
            "initContainers": [listed(each) for each in init],
        },
        "status": {"phase": "Pending"},
    }
