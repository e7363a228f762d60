"""The parts of the agent and how they hang together: the one place where siblings meet.

In: settings, the ledger, the hardware. Out: the objects that `run` starts and stops. No decision is made here.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deviceplugin import __version__
from deviceplugin.agent.cluster import Cluster
from deviceplugin.agent.container_watch import ContainerWatch
from deviceplugin.agent.files import AgentFiles
from deviceplugin.agent.live_limits import LiveLimits
from deviceplugin.agent.mirroring import Mirroring, driver_mirror
from deviceplugin.agent.pod_hints import Wishes
from deviceplugin.agent.reconciler import Upkeep
from deviceplugin.agent.reporter import AgentReport
from deviceplugin.agent.sockets import GrantSockets
from deviceplugin.agent.unallocated import GhostHunt
from deviceplugin.agent.view import AgentView
from deviceplugin.config.agent import AgentSettings, CgroupDriver, IdentitySource
from deviceplugin.container.cdi import CdiSpecs
from deviceplugin.container.cgroup import Naming
from deviceplugin.container.containers import ContainerFinder
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.mirror import DriverMirror
from deviceplugin.container.gpu_manager.registration import RegistrationServers
from deviceplugin.container.processes import CgroupTree, ProcessTable
from deviceplugin.container.runtime import ContainerRuntime
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import VcudaError
from deviceplugin.hardware.node import Hardware
from deviceplugin.kubelet import identity
from deviceplugin.kubelet.allocate_context import Node
from deviceplugin.kubelet.allocator import Allocating
from deviceplugin.kubelet.answer import HostLayout
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, CheckpointReader
from deviceplugin.kubelet.decisions import KubeletDecisions
from deviceplugin.kubelet.devices import DeviceFeed, catalog
from deviceplugin.kubelet.pending_source import PendingSource
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.kubelet.podresources import PodResources
from deviceplugin.kubelet.podresources_source import PodResourcesSource
from deviceplugin.kubelet.pods_client import KubeletPods
from deviceplugin.kubelet.pods_source import PodsSource
from deviceplugin.kubelet.pre_start import Starting
from deviceplugin.kubelet.registration import KubeletLink, KubeletPaths
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.model.units import Resource
from deviceplugin.observe.metrics import AgentMetrics


@dataclass(slots=True)
class NodeAgent:
    """Everything that runs once the GPUs are known."""

    settings: AgentSettings
    ledger: Ledger
    hardware: Hardware
    cluster: Cluster
    metrics: AgentMetrics
    files: AgentFiles
    report: AgentReport
    feed: DeviceFeed
    link: KubeletLink
    upkeep: Upkeep
    mirroring: Mirroring
    kubelet_pods: KubeletPods
    pod_resources: PodResources
    checkpoint: Callable[[], Checkpoint]
    watch: ContainerWatch
    sockets: GrantSockets
    runtime: ContainerRuntime | None

    async def close(self) -> None:
        if self.runtime is not None:
            await self.runtime.close()
        await self.kubelet_pods.close()
        await self.pod_resources.close()


class Assembly:
    """Makes the parts from settings; `view` works from the start, `node_agent` needs the inventory."""

    def __init__(self, settings: AgentSettings, ledger: Ledger, hardware: Hardware) -> None:
        self._settings = settings
        self._ledger = ledger
        self._hardware = hardware
        self._names = settings.names
        self._link: KubeletLink | None = None
        self._watch: ContainerWatch | None = None
        reader = CheckpointReader(settings.kubelet.device_plugin_path / CHECKPOINT_NAME, self._names)
        self._checkpoint: Callable[[], Checkpoint] = reader.read
        self.cluster = Cluster(
            settings.node.kubeconfig,
            node=settings.node.name,
            names=self._names,
            labels=settings.node.labels,
            share_mode=settings.allocation.share_mode,
            inventory=lambda: hardware.inventory,
        )
        self.view = AgentView(
            settings.node.name,
            inventory=lambda: hardware.inventory,
            samples=lambda: hardware.samples,
            ledger=ledger,
            uses=lambda: self._watch.uses() if self._watch is not None else {},
            cordoned=lambda: self.cluster.cordon.gpus(),
            is_registered=lambda: self._link is not None and self._link.is_registered,
            is_synced=lambda: self.cluster.is_synced,
            sockets=lambda: self._link.sockets if self._link is not None else (),
        )
        self.metrics = AgentMetrics(self.view, version=__version__)

    def node_agent(self) -> NodeAgent:
        settings, cluster = self._settings, self.cluster
        pods = self._kubelet_pods()
        resources = PodResources(settings.kubelet.root / "pod-resources" / "kubelet.sock")
        report = AgentReport(self.metrics, cluster.events)
        mirror = driver_mirror(settings.driver, driver_version=lambda: self._inventory().driver.version)
        files = self._files(mirror)
        feed = DeviceFeed(catalog(self._inventory(), numa=settings.allocation.numa))
        wishes = Wishes(annotation_names(self._names.domain), self._inventory)
        limits = LiveLimits(self._ledger, cluster.reflector, files=files, wishes=wishes, report=report)
        upkeep = self._upkeep(pods, resources, files, report, limits)
        node = self._node(pods, resources, files, report, feed, upkeep, wishes)
        self._link = self._kubelet_link(node)
        runtime = self._runtime()
        self._watch = self._container_watch(files, report, runtime)
        servers = RegistrationServers(settings.allocation.virtual_manager_path, self._watch.register)
        return NodeAgent(
            settings=settings,
            ledger=self._ledger,
            hardware=self._hardware,
            cluster=cluster,
            metrics=self.metrics,
            files=files,
            report=report,
            feed=feed,
            link=self._link,
            upkeep=upkeep,
            mirroring=Mirroring(
                mirror,
                self.metrics,
                living=lambda: self._ledger_ids() if upkeep.knows_all_grants else None,
                period_s=settings.driver.check_period,
            ),
            kubelet_pods=pods,
            pod_resources=resources,
            checkpoint=self._checkpoint,
            watch=self._watch,
            sockets=GrantSockets(self._ledger, servers),
            runtime=runtime,
        )

    def _upkeep(
        self,
        pods: KubeletPods,
        resources: PodResources,
        files: AgentFiles,
        report: AgentReport,
        limits: LiveLimits,
    ) -> Upkeep:
        cluster = self.cluster
        return Upkeep(
            self._ledger,
            cluster.client,
            cluster.reflector,
            inventory=self._inventory,
            checkpoint=self._checkpoint,
            kubelet_pods=pods.fetch,
            resources=resources,
            files=files,
            report=report,
            hunt=GhostHunt(cluster.events),
            limits=limits,
            names=annotation_names(self._names.domain),
            period_s=self._settings.allocation.check_period,
        )

    def _node(
        self,
        pods: KubeletPods,
        resources: PodResources,
        files: AgentFiles,
        report: AgentReport,
        feed: DeviceFeed,
        upkeep: Upkeep,
        wishes: Wishes,
    ) -> Node:
        async def find_pod(uid: PodUid) -> Pod | None:
            return self.cluster.pod(uid) or await _from_kubelet(pods, uid)

        async def complete() -> None:
            await asyncio.gather(self.cluster.cordon.known(), upkeep.complete())  # at once: kubelet waits

        return Node(
            feed=feed,
            ledger=self._ledger,
            identity=identity.Identity(self._sources(pods, resources, wishes)),
            layout=self._layout(),
            files=files,
            report=report,
            checkpoint=self._checkpoint,
            find_pod=find_pod,
            watched_pods=self.cluster.pods,
            hinted=wishes.gpus,
            cordoned=self.cluster.cordon.gpus,
            soft_cores=wishes.soft_cores,
            processes=self._processes,
            exists=lambda path: Path(path).exists(),
            clock=time.time,
            make_room=upkeep.make_room,
            complete=complete,
            placed=upkeep.placed,
            share_mode=self._settings.allocation.share_mode,
        )

    def _kubelet_link(self, node: Node) -> KubeletLink:
        kubelet = self._settings.kubelet
        decisions = KubeletDecisions(Allocating(node), Starting(node), on_answer=self.metrics.answered)
        return KubeletLink(
            [ResourcePlugin(resource, node.feed, decisions) for resource in Resource],
            KubeletPaths(kubelet.device_plugin_path, kubelet.root / "plugins_registry"),
            self._names,
            mode=kubelet.registration.value,
            on_registered=self.metrics.registered,
        )

    def _runtime(self) -> ContainerRuntime | None:
        runtime = self._settings.runtime
        if runtime.endpoint is None:
            return None
        return ContainerRuntime(runtime.endpoint, timeout_s=runtime.request_timeout)

    def _container_watch(
        self, files: AgentFiles, report: AgentReport, runtime: ContainerRuntime | None
    ) -> ContainerWatch:
        settings, table = self._settings, ProcessTable()
        driver = settings.runtime.cgroup_driver
        naming = None if driver is CgroupDriver.AUTO else Naming(driver.value)
        tree = CgroupTree(naming=naming, kubelet_root=table.own_root())
        return ContainerWatch(
            ledger=self._ledger,
            samples=lambda: self._hardware.samples,
            inventory=lambda: self._hardware.inventory,
            shared=SharedState(settings.allocation.virtual_manager_path),
            files=files,
            table=table,
            finder=ContainerFinder(table, tree, runtime=runtime, id_in_status=self._id_in_status),
            report=report,
            period_s=settings.driver.sample_period,
        )

    def _id_in_status(self, owner: tuple[PodUid, str]) -> str:
        """The runtime's id of a container that runs, as the API server shows it."""
        pod = self.cluster.pod(owner[0])
        container = pod.container(owner[1]) if pod is not None else None
        return container.runtime_id if container is not None and container.state is ContainerState.RUNNING else ""

    def _inventory(self) -> Inventory:
        inventory = self._hardware.inventory
        assert inventory is not None, "the node agent is made after the hardware has started"
        return inventory

    def _processes(self) -> dict[GpuUuid, int]:
        return {uuid: len(sample.processes) for uuid, sample in self._hardware.samples.items()}

    def _ledger_ids(self) -> frozenset[GrantId]:
        return frozenset(grant.id for grant in self._ledger.grants())

    def _files(self, mirror: DriverMirror) -> AgentFiles:
        allocation = self._settings.allocation
        cdi = (
            CdiSpecs(allocation.cdi_dir, kept=allocation.checkpoint_path / "cdi", domain=self._names.domain)
            if allocation.cdi
            else None
        )
        return AgentFiles(
            GrantDirectories(allocation.virtual_manager_path),
            SharedState(allocation.virtual_manager_path),
            mirror=mirror,
            cdi=cdi,
            inventory=self._inventory,
        )

    def _layout(self) -> HostLayout:
        settings = self._settings
        return HostLayout(
            grants=PurePosixPath(settings.allocation.virtual_manager_path),
            driver_mirror=PurePosixPath(settings.driver.mirror_path),
            device_root=PurePosixPath(settings.driver.device_root),
            extra_devices=settings.driver.extra_config.devices,
            names=self._names,
            cdi=settings.allocation.cdi,
        )

    def _kubelet_pods(self) -> KubeletPods:
        kubelet = self._settings.kubelet
        own = (kubelet.ca_file,) if kubelet.ca_file else (kubelet.root / "pki" / "kubelet.crt",)
        return KubeletPods(
            kubelet.pods_endpoint,
            access=self.cluster.access,
            node=self._settings.node.name,
            names=self._names,
            own_authorities=own,
            insecure=kubelet.insecure_tls,
        )

    def _sources(self, pods: KubeletPods, resources: PodResources, wishes: Wishes) -> list[identity.IdentitySource]:
        cluster, budget = self.cluster, self._settings.allocation.identity_budget
        made: dict[IdentitySource, identity.IdentitySource] = {
            IdentitySource.PODS: PodsSource(pods.fetch, budget_s=budget),
            IdentitySource.PODRESOURCES: PodResourcesSource(
                resources, known=cluster.pods, fetch=cluster.fetch, names=self._names, budget_s=budget
            ),
            IdentitySource.APISERVER: PendingSource(
                cluster.pods, predicate_time=wishes.predicate_time, budget_s=budget
            ),
        }
        return [made[chosen] for chosen in self._settings.allocation.identity]


async def _from_kubelet(pods: KubeletPods, uid: PodUid) -> Pod | None:
    try:
        async with asyncio.timeout(1.0):
            found = await pods.fetch()
    except (TimeoutError, VcudaError):
        return None
    return next((pod for pod in found if pod.ref.uid == uid), None)
