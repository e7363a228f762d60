"""The kubelet edge as the agent puts it together, against the stand-in kubelet: everything real but GPUs and cluster.

`known` is what the watch of the API server would show; a test fills it as early, late or wrongly as it likes.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp

from deviceplugin.agent.files import AgentFiles
from deviceplugin.agent.pod_hints import Wishes
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import KubeletError, VcudaError
from deviceplugin.kube.pods import PodListReader
from deviceplugin.kubelet.allocate_context import Node
from deviceplugin.kubelet.allocator import Allocating
from deviceplugin.kubelet.answer import HostLayout
from deviceplugin.kubelet.checkpoint import read_checkpoint
from deviceplugin.kubelet.claims import Claim
from deviceplugin.kubelet.decisions import KubeletDecisions
from deviceplugin.kubelet.devices import DeviceFeed, catalog
from deviceplugin.kubelet.identity import Identity, IdentitySource
from deviceplugin.kubelet.pending_source import PendingSource
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.kubelet.podresources import PodResources
from deviceplugin.kubelet.podresources_source import PodResourcesSource
from deviceplugin.kubelet.pods_source import PodsSource
from deviceplugin.kubelet.pre_start import Starting
from deviceplugin.kubelet.registration import KubeletLink, KubeletPaths, Mode
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.placement.place import Choice
from sandbox.driver_root import make_driver_root, make_interposers
from sandbox.kubelet import Kubelet, KubeletOptions

NAMES = ResourceNames()
ENDED = {"Succeeded", "Failed"}
ALL = (Source.PODS, Source.PODRESOURCES, Source.APISERVER)
Json = dict[str, Any]


@dataclass
class Told:
    """Everything that the flows reported."""

    granted_: list[tuple[Claim, Grant]] = field(default_factory=list)
    refused_: list[str] = field(default_factory=list)
    repaired_: list[tuple[str, str]] = field(default_factory=list)
    started_: list[str] = field(default_factory=list)
    start_failures: list[str] = field(default_factory=list)

    def granted(self, claim: Claim, grant: Grant, choice: Choice) -> None:
        self.granted_.append((claim, grant))

    def refused(self, claim: Claim | None, resource_name: str, count: int, error: VcudaError) -> None:
        self.refused_.append(error.message)

    def started(self, grant: Grant, *, written: bool) -> None:
        self.started_.append(str(grant.allocation.owner))

    def start_failed(self, owner: ContainerRef | None, error: VcudaError) -> None:
        self.start_failures.append(error.message)

    def repaired(self, before: ContainerRef, grant: Grant) -> None:
        self.repaired_.append((str(before), str(grant.allocation.owner)))


class Station:
    """One plugin at one stand-in kubelet."""

    def __init__(self, kubelet: Kubelet, inventory: Inventory, base: Path, *, sources: Sequence[Source]) -> None:
        self.kubelet = kubelet
        self.known: list[Pod] = []
        self.told = Told()
        self.placed: list[Grant] = []
        self.cordoned: frozenset[GpuUuid] = frozenset()
        self.base = base
        self.pods_refused = False
        self.feed = DeviceFeed(catalog(inventory))
        self.ledger = Ledger(Journal.open(base / "ledger.journal"))
        self.resources = PodResources(kubelet.options.podresources_socket)
        self._sources = sources
        self._session: aiohttp.ClientSession | None = None
        self.node = self._node()
        decisions = KubeletDecisions(Allocating(self.node), Starting(self.node), on_answer=lambda _: None)
        self.plugins = [ResourcePlugin(resource, self.feed, decisions) for resource in Resource]

    def link(self, mode: Mode = "auto", **options: Callable[[], None]) -> KubeletLink:
        paths = KubeletPaths(self.kubelet.options.plugin_dir, self.kubelet.options.registry_dir)
        return KubeletLink(self.plugins, paths, NAMES, mode=mode, **options)

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
        shown = PodListReader().read(json.dumps({"items": self.kubelet.pod_list()}).encode())
        return next((pod for pod in shown if (pod.ref.namespace, pod.ref.name) == (namespace, name)), None)

    async def _find(self, uid: PodUid) -> Pod | None:
        shown = PodListReader().read(json.dumps({"items": self.kubelet.pod_list()}).encode())
        return next((pod for pod in (*self.known, *shown) if pod.ref.uid == uid), None)

    async def _make_room(self) -> None:
        """As upkeep does: what kubelet no longer shows has ended."""
        shown = {pod["metadata"]["uid"] for pod in self.kubelet.pod_list() if pod["status"]["phase"] not in ENDED}
        gone = [each.id for each in self.ledger.grants() if each.proved and each.allocation.owner.pod.uid not in shown]
        self.ledger.release(gone, why="its pod ended")

    async def _nothing_to_do(self) -> None:
        """The ledger lacks nothing."""

    def _checkpoint(self) -> Checkpoint:
        return read_checkpoint(self.kubelet.checkpoint_path)

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

    def _source(self, source: Source, wishes: Wishes) -> IdentitySource:
        if source is Source.PODS:
            return PodsSource(self.fetch_pods, budget_s=1.0)
        if source is Source.PODRESOURCES:
            return PodResourcesSource(
                self.resources, known=lambda: self.known, fetch=self._fetch_one, names=NAMES, budget_s=1.0
            )
        return PendingSource(lambda: self.known, predicate_time=wishes.predicate_time, budget_s=1.0)

    def _node(self) -> Node:
        wishes = Wishes(AnnotationNames(), lambda: self.feed.catalog.inventory)
        files = self._files()
        return Node(
            feed=self.feed,
            ledger=self.ledger,
            identity=Identity([self._source(source, wishes) for source in self._sources]),
            layout=HostLayout(
                PurePosixPath(self.base / "vm"),
                PurePosixPath(self.base / "mirror"),
                device_root=PurePosixPath(self.base / "root"),
            ),
            files=files,
            report=self.told,
            checkpoint=self._checkpoint,
            find_pod=self._find,
            watched_pods=lambda: self.known,
            hinted=wishes.gpus,
            cordoned=lambda: self.cordoned,
            soft_cores=wishes.soft_cores,
            processes=dict,
            exists=lambda path: Path(path).exists(),
            clock=lambda: 1.0,
            make_room=self._make_room,
            complete=self._nothing_to_do,
            placed=self.placed.append,
            share_mode=True,
        )


@asynccontextmanager
async def station(
    base: Path,
    inventory: Inventory,
    *,
    sources: Sequence[Source] = ALL,
    mode: Mode = "auto",
    **options: Any,
) -> AsyncIterator[Station]:
    """A running plugin at a running kubelet, registered."""
    async with Kubelet(KubeletOptions(root=base / "k", **({"first_sync_s": 0.05, "speed": 20.0} | options))) as kubelet:
        made = Station(kubelet, inventory, base, sources=sources)
        task = asyncio.create_task(made.link(mode).run())
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
