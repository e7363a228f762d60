"""Builds the agent: the one place where its parts meet.

In: settings, the ledger, the hardware. Out: `AgentBase`, which works from the start, and `NodeAgent`, whose parts `run`
starts and stops once the GPUs are known. No decision is made here.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from deviceplugin import __version__
from deviceplugin.agent.agent_view import AgentView
from deviceplugin.agent.claims import AgentClaimFiles, ClaimAgent
from deviceplugin.agent.cluster import Cluster, NodePods, PodHints
from deviceplugin.agent.container_watch import ContainerWatch
from deviceplugin.agent.gpu_offers import GpuOffers, GrantHolders
from deviceplugin.agent.grant_files import AgentFiles, GrantSockets
from deviceplugin.agent.live_limits import LiveLimits
from deviceplugin.agent.mirroring import Mirroring, driver_mirror
from deviceplugin.agent.reconciler import Reconciler
from deviceplugin.agent.reporter import AgentReport, delays_said
from deviceplugin.config.agent import AgentSettings, IdentitySourceName
from deviceplugin.container.cdi import CdiSpecs
from deviceplugin.container.containers import ContainerFinder, ContainerRuntime
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.mirror import DriverMirror
from deviceplugin.container.processes import CgroupTree, ProcessTable
from deviceplugin.container.shared_state import SharedState
from deviceplugin.container.tmpfs import make_room, provide
from deviceplugin.gpu_manager.registration import RegistrationServers
from deviceplugin.hardware.node import Hardware
from deviceplugin.kubelet.allocate_answer import HostLayout
from deviceplugin.kubelet.allocate_context import AllocateContext
from deviceplugin.kubelet.allocator import Allocator
from deviceplugin.kubelet.answers import AnswerReader
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, CheckpointReader
from deviceplugin.kubelet.devices import DeviceFeed, catalog
from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.kubelet.dra.slice_publisher import DeviceNames
from deviceplugin.kubelet.identity import Identity, IdentitySource
from deviceplugin.kubelet.identity_sources import (
    KubeletPods,
    PendingSource,
    PodResources,
    PodResourcesSource,
    PodsSource,
)
from deviceplugin.kubelet.plugin import ResourcePlugin
from deviceplugin.kubelet.pre_start import PreStart
from deviceplugin.kubelet.registration import KubeletLink, KubeletPaths
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.pod import ContainerState
from deviceplugin.model.units import Resource
from deviceplugin.observe.metrics import LISTS_TOO_LARGE, REGISTRATIONS, AgentMetrics

_MIRROR_CHECKS = 3  # of the driver's files, between two comparisons of pods and ledger


class AgentBase(msgspec.Struct):
    """What works before the GPUs are known."""

    settings: AgentSettings
    ledger: Ledger
    hardware: Hardware
    cluster: Cluster
    view: AgentView
    metrics: AgentMetrics
    claims_link: DraLink | None


class NodeAgent(msgspec.Struct):
    """Everything that runs once the GPUs are known."""

    files: AgentFiles
    report: AgentReport
    feed: DeviceFeed
    link: KubeletLink
    claims: ClaimAgent | None
    offers: GpuOffers
    reconciler: Reconciler
    limits: LiveLimits
    mirroring: Mirroring
    kubelet_pods: KubeletPods
    pod_resources: PodResources
    watch: ContainerWatch
    sockets: GrantSockets
    runtime: ContainerRuntime | None

    async def close(self) -> None:
        if self.runtime is not None:
            await self.runtime.close()
        await self.kubelet_pods.close()
        await self.pod_resources.close()


def build_base(settings: AgentSettings, ledger: Ledger, hardware: Hardware, claims_link: DraLink | None) -> AgentBase:
    cluster = Cluster(
        settings.node.kubeconfig,
        node=settings.node.name,
        names=settings.names,
        labels=settings.node.labels,
        share_mode=settings.allocation.share_mode,
        inventory=lambda: hardware.inventory,
        close_nvml=lambda wanted: hardware.close_nvml(wanted=wanted),
        owners=lambda: (grant.allocation.owner.pod for grant in ledger.grants()),
    )
    view = AgentView(settings.node.name, hardware, ledger, cluster)
    return AgentBase(settings, ledger, hardware, cluster, view, AgentMetrics(version=__version__), claims_link)


def build_agent(base: AgentBase) -> NodeAgent:
    """After the hardware has started; sets `link`, `claims` and `watch` of the view."""
    settings, cluster, view, ledger = base.settings, base.cluster, base.view, base.ledger
    pods = _kubelet_pods(settings, cluster, base.metrics)
    resources = PodResources(settings.kubelet.root / "pod-resources" / "kubelet.sock")
    checkpoint = CheckpointReader(settings.kubelet.device_plugin_path / CHECKPOINT_NAME, settings.names)
    answers = AnswerReader(ledger, checkpoint, _running_in(settings.allocation.virtual_manager_path))
    report = AgentReport(base.metrics, cluster.events)
    mirror = driver_mirror(settings.driver, driver_version=lambda: view.inventory().driver.version)
    files = _files(settings, mirror, view)
    offers = GpuOffers(settings.kubelet.dra, frozenset(settings.kubelet.dra_gpus), ledger.grants)
    offers.check(view.inventory())
    feed = DeviceFeed(catalog(offers.for_plugin(view.inventory()), numa=settings.allocation.numa))
    hints = PodHints(annotation_names(settings.names.domain), view.inventory)
    limits = LiveLimits(ledger, cluster, files=files, hints=hints, report=report)
    reconciler = Reconciler(
        ledger,
        cluster,
        inventory=view.inventory,
        checkpoint=checkpoint,
        kubelet_pods=pods,
        resources=resources,
        files=files,
        report=report,
        limits=limits,
        names=annotation_names(settings.names.domain),
        running=_running_in(settings.allocation.virtual_manager_path),
        knows_claims=view.knows_claims,
        period_s=settings.allocation.check_period,
    )
    node_pods = NodePods(
        cluster,
        pods,
        names=annotation_names(settings.names.domain),
        volcano=settings.allocation.volcano_scheduler,
    )
    context = AllocateContext(
        feed=feed,
        ledger=ledger,
        identity=Identity(
            _sources(base, pods, resources, answers, hints),
            budget_s=base.settings.allocation.identity_budget,
            observe=base.metrics.identified,
        ),
        layout=_layout(settings),
        checkpoint=checkpoint,
        answers=answers,
        pods=node_pods,
        hints=hints,
        gpus=view,
        reclaim=reconciler,
        files=files,
        report=report,
        share_mode=settings.allocation.share_mode,
    )
    runtime = _runtime(settings)
    view.link = _kubelet_link(base, context)
    if base.claims_link is not None:
        view.claims = _claim_agent(base, base.claims_link, node_pods, files, report, runtime, offers, reconciler)
    view.watch = _container_watch(base, files, report, runtime)

    def living() -> frozenset[GrantId] | None:
        is_known = reconciler.knows_all_grants and view.knows_claims()
        return frozenset(grant.id for grant in ledger.grants()) if is_known else None

    return NodeAgent(
        files=files,
        report=report,
        feed=feed,
        link=view.link,
        claims=view.claims,
        offers=offers,
        reconciler=reconciler,
        limits=limits,
        mirroring=Mirroring(
            mirror, base.metrics, living=living, period_s=settings.allocation.check_period / _MIRROR_CHECKS
        ),
        kubelet_pods=pods,
        pod_resources=resources,
        watch=view.watch,
        sockets=_sockets(base, node_pods, view.watch, report),
        runtime=runtime,
    )


def _kubelet_link(base: AgentBase, context: AllocateContext) -> KubeletLink:
    kubelet = base.settings.kubelet
    allocator, pre_start = Allocator(context), PreStart(context)
    return KubeletLink(
        [
            ResourcePlugin(resource, context.feed, allocator, pre_start, unanswered=base.metrics)
            for resource in Resource
        ],
        KubeletPaths(kubelet.device_plugin_path, kubelet.root / "plugins_registry"),
        base.settings.names,
        on_registered=partial(base.metrics.count, REGISTRATIONS),
    )


def _claim_agent(
    base: AgentBase,
    link: DraLink,
    pods: NodePods,
    files: AgentFiles,
    report: AgentReport,
    runtime: ContainerRuntime | None,
    offers: GpuOffers,
    reconciler: Reconciler,
) -> ClaimAgent:
    settings = base.settings
    return ClaimAgent(
        base.ledger,
        base.cluster,
        pods,
        AgentClaimFiles(files, _layout(settings), base.view.inventory, base.view),
        link=link,
        report=report,
        offers=offers,
        devices=DeviceNames(settings.allocation.checkpoint_path),
        unstartable=reconciler.unstartable,
        node=settings.node.name,
        names=ClaimNames(settings.names.domain),
        root=settings.kubelet.root,
        inventory=base.view.inventory,
        cordoned=base.view.cordoned,
        running=_running_in(settings.allocation.virtual_manager_path),
        runtime=runtime,
        cdi_dir=settings.allocation.cdi_dir,
        period_s=settings.allocation.check_period,
    )


def _sockets(base: AgentBase, pods: NodePods, watch: ContainerWatch, report: AgentReport) -> GrantSockets:
    allocation, names = base.settings.allocation, annotation_names(base.settings.names.domain)

    def refused(grant_id: GrantId, why: str) -> None:
        if (grant := base.ledger.get(grant_id)) is not None:
            report.registration_refused(grant, why)

    def pod_of(grant_id: GrantId) -> str:
        grant = base.ledger.get(grant_id)
        return grant.allocation.owner.pod.uid if grant is not None else grant_id

    sockets = GrantSockets(
        base.ledger,
        pods,
        RegistrationServers(allocation.virtual_manager_path, watch.register, refused, pod_of=pod_of),
        base=allocation.virtual_manager_path,
        names=names,
        for_all=allocation.vcuda_socket,
    )
    base.cluster.reflector.subscribe(sockets.pod_changed)
    return sockets


def _running_in(base: Path) -> Callable[[Iterable[Grant]], frozenset[str]]:
    """Answers which grants have their directory mounted by a living process. `base` has these directories."""

    def running(grants: Iterable[Grant]) -> frozenset[str]:
        owners: dict[str, PodUid] = {grant.id: grant.allocation.owner.pod.uid for grant in grants}
        return ProcessTable().mounted(owners, base, pods=owners) if owners else frozenset()

    return running


def _runtime(settings: AgentSettings) -> ContainerRuntime | None:
    endpoint = settings.runtime.endpoint
    return None if endpoint is None else ContainerRuntime(endpoint)


def _container_watch(
    base: AgentBase, files: AgentFiles, report: AgentReport, runtime: ContainerRuntime | None
) -> ContainerWatch:
    settings, table, hardware, cluster = base.settings, ProcessTable(), base.hardware, base.cluster
    tree = CgroupTree(kubelet_root=table.own_root())

    def id_in_status(owner: OwnerKey) -> str:
        """The runtime's id of a running container, as the API server shows it."""
        pod = cluster.pod(owner[0])
        container = pod.container(owner[1]) if pod is not None else None
        return container.runtime_id if container is not None and container.state is ContainerState.RUNNING else ""

    return ContainerWatch(
        ledger=base.ledger,
        holders=lambda: GrantHolders(cluster.pods).keys,
        samples=base.view.samples,
        inventory=lambda: hardware.inventory,
        shared=SharedState(settings.allocation.virtual_manager_path, delays_said()),
        files=files,
        table=table,
        finder=ContainerFinder(table, tree, runtime=runtime, id_in_status=id_in_status),
        report=report,
        period_s=settings.driver.sample_period,
    )


def _files(settings: AgentSettings, mirror: DriverMirror, view: AgentView) -> AgentFiles:
    allocation = settings.allocation
    cdi = (
        CdiSpecs(allocation.cdi_dir, kept=allocation.checkpoint_path / "cdi", domain=settings.names.domain)
        if allocation.cdi or settings.kubelet.dra
        else None
    )
    base = allocation.virtual_manager_path
    return AgentFiles(
        GrantDirectories(base),
        SharedState(base, delays_said()),
        mirror=mirror,
        cdi=cdi,
        inventory=view.inventory,
        mount=(lambda held: provide(base, held=held)) if allocation.virtual_manager_tmpfs else None,
        make_room=(lambda: make_room(base)) if allocation.virtual_manager_tmpfs else (lambda: False),
    )


def _layout(settings: AgentSettings) -> HostLayout:
    return HostLayout(
        grants=PurePosixPath(settings.allocation.virtual_manager_path),
        driver_mirror=PurePosixPath(settings.driver.mirror_path),
        device_root=PurePosixPath(settings.driver.device_root),
        extra_devices=settings.driver.extra_config.devices,
        names=settings.names,
        cdi=settings.allocation.cdi,
    )


def _kubelet_pods(settings: AgentSettings, cluster: Cluster, metrics: AgentMetrics) -> KubeletPods:
    kubelet = settings.kubelet
    own = (kubelet.ca_file,) if kubelet.ca_file else (kubelet.root / "pki" / "kubelet.crt",)
    return KubeletPods(
        kubelet.pods_endpoint,
        access=cluster.credentials.access,
        node=settings.node.name,
        names=settings.names,
        own_ca_files=own,
        observe=cluster.mirror_pods.kubelet_lists,
        on_too_large=partial(metrics.count, LISTS_TOO_LARGE),
    )


def _sources(
    base: AgentBase, pods: KubeletPods, resources: PodResources, answers: AnswerReader, hints: PodHints
) -> list[IdentitySource]:
    cluster, names = base.cluster, base.settings.names
    made: dict[IdentitySourceName, IdentitySource] = {
        IdentitySourceName.PODS: PodsSource(pods.fetch, answers),
        IdentitySourceName.PODRESOURCES: PodResourcesSource(
            resources, answers, known=cluster.pods, fetch=cluster.fetch, names=names
        ),
        IdentitySourceName.APISERVER: PendingSource(cluster.pods, answers, predicate_time=hints.predicate_time),
    }
    return [made[chosen] for chosen in base.settings.allocation.identity]
