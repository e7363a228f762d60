"""Serves ResourceClaims beside the device plugin: connects `kubelet.dra` with the rest of the agent.

In: the ledger, the GPUs, the API server. Out: a driver that kubelet knows, and a ResourceSlice that says what it
offers. What changes about the GPUs is looked for every second, because health, use and cordon come from three places.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from deviceplugin.agent.claim_reconciler import ClaimReconciler, ClaimStatus
from deviceplugin.agent.cluster import Cluster, NodePods
from deviceplugin.agent.gpu_offers import GpuOffers
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.agent.reporter import AgentReport
from deviceplugin.container.containers import ContainerRuntime
from deviceplugin.errors import ClaimOutdatedError, ConfigError, ContainerError, RuntimeApiError, VcudaError
from deviceplugin.hardware.pci import pcie_root
from deviceplugin.kube.reflector import Reflector
from deviceplugin.kube.resource_slices import NodeSlice, slices_of
from deviceplugin.kubelet.allocate_answer import HostLayout, answer_for
from deviceplugin.kubelet.allocate_context import Gpus
from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.slice_publisher import DeviceNames, SlicePublisher, published_devices
from deviceplugin.kubelet.dra.state_file import STATE_NAME, StateFile
from deviceplugin.ledger.durable_files import cause, finished_by_caller
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.log import Pace
from deviceplugin.model.allocation import ContainerRef
from deviceplugin.model.claims import ClaimNames, PublishedDevice
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import PodContainer
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.dra")
_LOOK_S = 1.0
_ASK_AGAIN_S = 2.0
_RESTORE_AGAIN_S = 5.0
_SYS = Path("/sys")


class AgentClaimFiles:
    """`kubelet.dra.prepare.ClaimFiles`."""

    def __init__(self, files: AgentFiles, layout: HostLayout, inventory: Callable[[], Inventory], gpus: Gpus) -> None:
        self._files = files
        self._layout = replace(layout, cdi=True)
        self._inventory = inventory
        self._node_gpus = gpus

    async def ready(self, grant: Grant, container: PodContainer | None) -> str:
        allocation = grant.allocation
        await self._node_gpus.settled()
        user = container or PodContainer(allocation.owner, allocation.role, allocation.index)
        answer = answer_for(grant, self._gpus(grant), user, self._layout, exists=os.path.exists)
        with finished_by_caller() as unfinished:
            self._files.describe(grant, answer)
        # Two files and their directories are synced while the rest is made: nobody has the name before the answer.
        loop = asyncio.get_running_loop()
        finishing = [loop.run_in_executor(None, finish) for finish in unfinished]
        try:
            self._files.ready(grant)
        finally:
            await asyncio.gather(*finishing, return_exceptions=True)
        try:
            for each in finishing:
                each.result()
        except OSError as error:
            what = f"the CDI file of grant {grant.id} could not be written: {cause(error)}; check --cdi-dir"
            raise ContainerError(what) from error
        (name,) = answer.cdi_devices
        return name

    def restore(self, grant: Grant) -> None:
        """At start: kubelet starts a container again without a call, by the CDI name that it has written down."""
        self._files.ready(grant, waits=False)

    def drop(self, grant: Grant) -> None:
        self._files.drop(grant)

    def _gpus(self, grant: Grant) -> list[Gpu]:
        inventory, found = self._inventory(), []
        for share in grant.allocation.shares:
            gpu = inventory.gpu(share.uuid)
            if gpu is None:
                raise ClaimOutdatedError(
                    f"GPU {share.uuid} is not on this node any more; delete the pods that use the claim"
                )
            found.append(self._node_gpus.located(gpu))
        return found


class ClaimAgent:
    """`run` until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        pods: NodePods,
        files: AgentClaimFiles,
        *,
        link: DraLink,
        report: AgentReport,
        offers: GpuOffers,
        devices: DeviceNames,
        unstartable: Callable[[ContainerRef, str], None],
        node: str,
        names: ClaimNames,
        root: Path,
        inventory: Callable[[], Inventory],
        cordoned: Callable[[], frozenset[GpuUuid]],
        running: Callable[[Iterable[Grant]], frozenset[str]],
        runtime: ContainerRuntime | None,
        cdi_dir: Path,
        period_s: float,
    ) -> None:
        self._ledger = ledger
        self._cdi_dir = cdi_dir
        self._runtime = runtime
        self._files = files
        self._names = names
        self._inventory = inventory
        self._cordoned = cordoned
        self._offers = offers
        self._device_names = devices
        self._link = link
        self._pcie_roots: dict[str, str] = {}
        self._claims = Claims(
            ledger=ledger,
            inventory=inventory,
            get_claim=cluster.client.get_claim,
            get_pods=pods.find_all,
            files=files,
            report=report,
            driver=names.driver,
            pool=node,
            name=devices.name,
            unstartable=unstartable,
        )
        self._slices: Reflector[str, NodeSlice] = Reflector(cluster.client, slices_of(names.driver, node))
        self._publisher = SlicePublisher(
            cluster.client,
            self._slices,
            driver=names.driver,
            node=lambda: cluster.cordon.node,
            devices=self._devices,
        )
        self._reconciler = ClaimReconciler(
            ledger,
            self._claims,
            StateFile(root / STATE_NAME, names.driver),
            get_claim=cluster.client.get_claim,
            running=running,
            pods=cluster.pods,
            report_joined=report.claims_joined,
            period_s=period_s,
        )
        self._claims.is_complete = self._reconciler.is_complete
        self._unrestored: set[GrantId] = set()
        self._pace = Pace()
        self._status = ClaimStatus(
            ledger,
            inventory=inventory,
            get_claim=cluster.client.get_claim,
            show=cluster.client.show_devices,
            driver=names.driver,
            pool=node,
            name=devices.name,
        )

    @property
    def is_registered(self) -> bool:
        return self._link.is_serving

    def is_complete(self) -> bool:
        """Whether the ledger had every claim of kubelet's record once."""
        return self._reconciler.is_complete()

    @property
    def sockets(self) -> tuple[Path, ...]:
        return self._link.sockets

    async def run(self) -> None:
        await self._check_runtime()
        await self._reconciler.reconcile()
        self._forget_names()
        self._unrestored = {grant.id for grant in self._ledger.grants() if grant.source is Source.CLAIM}
        self._restore()
        self._link.serve(self._claims, self._inventory, on_registered=self._publisher.registered)
        async with asyncio.TaskGroup() as group:
            for each in (self._slices, self._publisher, self._link, self._reconciler, self._status):
                group.create_task(each.run())
            await self._follow()

    def _forget_names(self) -> None:
        """Not while claims wait for a GPU: another one would get its name, and be taken for it."""
        if self._reconciler.is_complete() and not self._reconciler.awaits_gpus:
            held = {uuid for each in self._ledger.allocations() for uuid in each.uuids}
            self._device_names.forget_all_but(held.union(gpu.uuid for gpu in self._inventory().gpus))

    async def _check_runtime(self) -> None:
        """Raises ConfigError. A runtime that does not answer yet is asked again: no container starts without it."""
        if self._runtime is None:
            raise ConfigError("--dra needs --container-runtime-endpoint, to learn whether the runtime knows CDI")
        while True:
            try:
                return await self._runtime.require_cdi(self._cdi_dir)
            except RuntimeApiError as error:
                log.warning("runtime_unknown", error=error.message)
            await asyncio.sleep(_ASK_AGAIN_S)

    def _restore(self) -> None:
        """What fails is tried again: nobody else writes the files of a claim that is prepared already."""
        for each in tuple(self._unrestored):
            self._unrestored.discard(each)
            if (grant := self._ledger.get(each)) is None:
                continue
            try:
                self._files.restore(grant)
            except VcudaError as error:
                self._unrestored.add(each)
                if self._pace.allows(each):
                    log.warning("claim_not_restored", grant=each, error=error.message)

    async def _follow(self) -> None:
        last: Sequence[PublishedDevice] = ()
        tried_at = time.monotonic()
        while True:
            now = self._devices()
            if now != last:
                last = now
                self._publisher.soon()
                self._link.health.changed()
            await asyncio.sleep(_LOOK_S)
            if self._unrestored and time.monotonic() - tried_at >= _RESTORE_AGAIN_S:
                tried_at = time.monotonic()
                self._restore()

    def _devices(self) -> tuple[PublishedDevice, ...]:
        inventory = self._offers.for_claims(self._inventory())
        return published_devices(
            inventory,
            self._names,
            used={uuid for each in self._ledger.allocations() for uuid in each.uuids},
            cordoned=self._cordoned(),
            pcie_roots={gpu.uuid: self._pcie_root(gpu) for gpu in inventory.gpus},
            others=self._offers.held_by_plugin(),
            name=self._device_names.name,
        )

    def _pcie_root(self, gpu: Gpu) -> str:
        """Read once for each GPU: this is asked every second."""
        if not (known := self._pcie_roots.get(gpu.bus_id)):
            known = self._pcie_roots[gpu.bus_id] = pcie_root(_SYS, gpu.bus_id)
        return known
