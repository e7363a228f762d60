"""The loop that compares ledger, kubelet and API server, and corrects what differs.

In: the ledger, kubelet's checkpoint and pods, the API server's pods. Out: changes of the ledger as `ledger.reconcile`
decides them, removed directories, corrected annotations, deleted refused pods.

It runs once in each period and soon after a pod ended: no message says that a container ended, and free slots must not
wait for the next Allocate. It also runs soon after a pod got GPUs that its annotations do not name: no scheduler chose
them (nodeName was set, a DaemonSet, Volcano), and the extender must not give them to another pod. Grants are read
before the views: a view that is younger than the grant cannot lack its pod.

What the ledger knows is written back to the pods, by the contract in `model.annotations`, where a pod's annotations
differ: the ledger is right, and schedulers read the annotations to know what this node holds. Only proved grants are
written, and then the whole contract: a `predicate-node` copied from another pod would make schedulers distrust the
rest.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from deviceplugin.agent.cluster import Cluster
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.agent.live_limits import LiveLimits
from deviceplugin.agent.reporter import AgentReport, owner_fields
from deviceplugin.agent.unallocated import delete_refused, warn_unallocated
from deviceplugin.backoff import Backoff
from deviceplugin.errors import LedgerError, VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import StoreChange
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.dra.prepare import INCOMPLETE
from deviceplugin.kubelet.identity_sources import KubeletPods, PodResources
from deviceplugin.ledger.grant import Checkpoint, Grant, GrantId, Source
from deviceplugin.ledger.ledger import Claimant, Ledger, claimant_proved
from deviceplugin.ledger.reconcile import Evidence, PodsView, ReconcileActions, decide
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRef, ContainerRole, OwnerKey, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import stale_indices, trusted_allocation
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.agent")


def expected(pod: Pod, grants: Sequence[Grant], inventory: Inventory, names: AnnotationNames) -> dict[str, str]:
    """The annotations that a pod should have; none before every GPU container of it has a proved grant."""
    held = {grant.allocation.owner.name: grant for grant in grants if grant.proved}
    apps = [each for each in pod.containers if each.is_gpu and each.role is ContainerRole.APP]
    if not held or any(each.ref.name not in held for each in apps):
        return {}
    minors = {gpu.uuid: gpu.minor for gpu in inventory.gpus}
    shares = {name: grant.allocation.shares for name, grant in held.items()}
    out = {
        names.gpu_assigned: "true",
        names.predicate_node: pod.node,
        names.allocation: text.format_allocation(text.PodAllocation(PodUid(pod.api_uid or pod.ref.uid), shares)),
    }
    for container in apps:
        found = sorted(minors[share.uuid] for share in shares[container.ref.name] if share.uuid in minors)
        if found:
            out[names.gpu_indices(container.index)] = text.format_gpu_indices(found)
    return out


def corrections(
    pod: Pod, grants: Sequence[Grant], inventory: Inventory, names: AnnotationNames
) -> dict[str, str | None]:
    """What to write; None removes."""
    wanted = expected(pod, grants, inventory, names)
    if not wanted:
        return {}
    wrong = {name: value for name, value in wanted.items() if pod.annotations.get(name) != value}
    return {**wrong, **dict.fromkeys(stale_indices(pod, wanted, names))}


def is_annotated(pod: Pod, grant: Grant, names: AnnotationNames) -> bool:
    """Whether the pod's trusted annotations name what this grant's container holds."""
    container = pod.container(grant.allocation.owner.name)
    return container is not None and trusted_allocation(pod, names).shares_of(container) == grant.allocation.shares


async def sync(
    client: KubeClient,
    pods: Iterable[Pod],
    grants: Mapping[PodUid, Sequence[Grant]],
    inventory: Inventory,
    names: AnnotationNames,
) -> None:
    """Patches every pod that differs; a failure does not stop the others."""
    for pod in pods:
        wrong = corrections(pod, grants.get(pod.ref.uid, ()), inventory, names)
        if not wrong or pod.is_terminal or not pod.api_uid:
            continue
        try:
            await client.patch_pod_annotations(pod.api_ref, wrong)
        except VcudaError as error:
            log.warning("annotation_sync_failed", pod=str(pod.ref), error=error.message)


SOON_S = 2.0
_AFTER_EVENT_S = 0.3
_APART_S = 1.5
_RUNS_ON = "its pod has ended, but processes of the container still run and keep the GPU"
_PODS_BUDGET_S = 0.7  # the loop may run inside an Allocate, which has 12 s


class RoundTimer:
    """When the next round is due: after each period, and sooner while something waits for it.

    A grant that seems to have ended is checked again after 2 s, because other pods wait for its slots. A pod without
    its annotations is too, with a growing delay: if the API server refuses the annotation, hundreds of nodes must not
    ask it every other second.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._backoff = Backoff(first=SOON_S, most=max(period_s, SOON_S))

    def next_round_in(self, *, suspects: bool, unannotated: bool) -> float:
        """Seconds."""
        retry = self._backoff.next() if unannotated else self._period_s
        if not unannotated:
            self._backoff.reset()
        return min(self._period_s, SOON_S if suspects else self._period_s, retry)

    def reset(self) -> None:
        """Another pod waits for its annotations."""
        self._backoff.reset()


class Reconciler:
    """`run` until it is cancelled; `reconcile` once, for the start. Serves `kubelet.allocate_context.Reclaim`."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        *,
        inventory: Callable[[], Inventory],
        checkpoint: CheckpointReader,
        kubelet_pods: KubeletPods,
        resources: PodResources,
        files: AgentFiles,
        report: AgentReport,
        limits: LiveLimits,
        names: AnnotationNames,
        running: Callable[[Iterable[Grant]], frozenset[str]],
        knows_claims: Callable[[], bool],
        period_s: float,
    ) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._inventory = inventory
        self._checkpoint = checkpoint
        self._kubelet_pods = kubelet_pods
        self._resources = resources
        self._files = files
        self._report = report
        self._limits = limits
        self._names = names
        self._running = running
        self._knows_claims = knows_claims
        self._timer = RoundTimer(period_s)
        self._suspects: Mapping[GrantId, int] = {}
        self._counted = 0.0
        self._has_suspects = False
        self._ending: set[PodUid] = set()
        self._unannotated: set[PodUid] = set()
        self._without_gpu: Mapping[OwnerKey, int] = {}
        self._unstartable: set[PodUid] = set()
        self._last_error = ""
        self._is_incomplete = False
        self._kept: frozenset[GrantId] = frozenset()
        self._was_complete = False
        self._has_adopted = False
        self._due = asyncio.Event()
        cluster.reflector.subscribe(self._pod_changed)

    def soon(self) -> None:
        """Something happened that needs a round."""
        self._due.set()

    async def run(self) -> None:
        while True:
            wait_s = self._timer.next_round_in(suspects=self._has_suspects, unannotated=bool(self._unannotated))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()
                    await asyncio.sleep(_AFTER_EVENT_S)
            self._due.clear()
            await self.reconcile()

    async def reconcile(self) -> bool:
        """One round; errors are logged, never raised. Returns whether kubelet showed all its pods."""
        self._files.try_again()
        try:
            saw_pods = await self.reclaim()
            await self._sync_pods()
        except VcudaError as error:
            log.warning("reconcile_failed", error=error.message)
            return False
        return saw_pods

    @property
    def knows_all_grants(self) -> bool:
        """Whether every grant that a container may hold was in the ledger once; later grants always are."""
        return self._was_complete

    def mark_incomplete(self) -> None:
        """The ledger may lack grants that kubelet's checkpoint does not name; kubelet will write it again."""
        self._is_incomplete = True

    async def ensure_complete(self) -> None:
        """Waits for the cordon of a fresh agent, and reclaims if the ledger is incomplete; raises LedgerError."""
        # Both at the same time, because kubelet waits.
        await asyncio.gather(self._cluster.cordon.wait_known(), self._complete())
        if not self._knows_claims():
            raise LedgerError(INCOMPLETE)

    async def _complete(self) -> None:
        if self._is_incomplete:
            await self.reclaim()

    def placed(self, grant: Grant) -> None:
        """A container got GPUs; if its pod's annotations do not name them, they are written soon."""
        uid = grant.allocation.owner.pod.uid
        pod = self._cluster.pod(uid)
        if pod is None or not is_annotated(pod, grant, self._names):
            self._unannotated.add(uid)
            self._timer.reset()
            self.soon()

    def unstartable(self, container: ContainerRef, why: str) -> None:
        """Kubelet tries this start for ever; a pod that has a controller is deleted soon, an event names the others."""
        pod = self._cluster.pod(container.pod.uid)
        if pod is None or pod.ref.uid in self._unstartable:
            return
        self._unstartable.add(pod.ref.uid)
        self._report.unstartable(pod, container.name, why)
        self.soon()

    async def reclaim(self) -> bool:
        """The part of a round that releases grants; raises LedgerError. Returns whether kubelet showed all its pods."""
        # Two rounds that agree mean more than one only if time has passed between them.
        counts = time.monotonic() - self._counted >= _APART_S
        evidence = await self._collect(self._suspects if counts else {})
        actions = await self._without_running(decide(evidence, self._inventory(), now=time.time()))
        if counts:
            self._suspects, self._counted = actions.suspects, time.monotonic()
        self._apply(actions, evidence)
        self._ending &= {grant.allocation.owner.pod.uid for grant in self._ledger.grants()}
        if counts and evidence.kubelet is not None and evidence.checkpoint is not None:
            pods = evidence.kubelet.pods.values()
            self._without_gpu = warn_unallocated(
                pods, self._ledger, evidence.checkpoint, self._cluster.events, seen=self._without_gpu
            )
        self._has_suspects = bool(actions.suspects or self._ending or 1 in self._without_gpu.values())
        if _shows_all(evidence) and evidence.checkpoint is not None and evidence.checkpoint.exists:
            # Only now is every grant that a container mounts in the ledger, whatever the journal had lost.
            self._is_incomplete, self._was_complete = False, True
            if self._knows_claims():
                self._files.sweep(self._ledger.grants())
            if self._has_adopted and not actions.suspects:
                self._has_adopted = False
                self._report_overcommitted()
            self._report_gone()
        return _shows_all(evidence)

    async def _without_running(self, actions: ReconcileActions) -> ReconcileActions:
        """What ends a pod for kubelet or the API server may leave its container running for a while, or for long.

        A kubelet that has started again refuses pods of which it does not know yet that they run.
        """
        running = await asyncio.to_thread(self._running, actions.ended) if actions.ended else frozenset()
        kept = [grant for grant in actions.ended if grant.id in running]
        for grant in kept:
            if grant.id not in self._kept:
                log.warning("grant_kept", **owner_fields(grant.allocation.owner), grant=grant.id, reason=_RUNS_ON)
        self._kept = frozenset(grant.id for grant in kept)
        ended = tuple(grant for grant in actions.ended if grant.id not in self._kept)
        return replace(actions, ended=ended, suspects={**actions.suspects, **dict.fromkeys(self._kept, 1)})

    async def _collect(self, suspects: Mapping[GrantId, int]) -> Evidence:
        grants = tuple(each for each in self._ledger.grants() if each.source is not Source.CLAIM)
        api = PodsView.of(self._cluster.pods()) if self._cluster.is_synced else None
        kubelet = await self._kubelet_view(api, grants)
        return Evidence(grants, self.recorded(), kubelet, api, suspects)

    async def _kubelet_view(self, api: PodsView | None, grants: tuple[Grant, ...]) -> PodsView | None:
        """Kubelet's own list, otherwise its PodResources; None if it shows neither."""
        try:
            async with asyncio.timeout(_PODS_BUDGET_S):
                return PodsView.of_kubelet(await self._kubelet_pods.fetch())
        except (TimeoutError, VcudaError) as error:
            log.debug("kubelet_pods_unavailable", error=str(error))
        try:
            async with asyncio.timeout(_PODS_BUDGET_S):
                names = {(each.namespace, each.name) for each in await self._resources.list()}
        except (TimeoutError, VcudaError) as error:
            log.debug("pod_resources_unavailable", error=str(error))
            return None
        return PodsView.of_names(names, api, grants)

    def recorded(self) -> Checkpoint | None:
        """Kubelet's checkpoint; None if it cannot be read, which is logged once, and so is one that is missing."""
        found, event, why = None, "checkpoint_unreadable", ""
        try:
            found = self._checkpoint.read()
        except VcudaError as error:
            why = error.message
        if found is not None and not found.exists and self._ledger.grants():
            event, why = (
                "checkpoint_missing",
                f"{self._checkpoint.path}: is that kubelet's directory for device plugins?",
            )
        if why and why != self._last_error:
            log.warning(event, error=why)
        self._last_error = why
        return found

    def _apply(self, actions: ReconcileActions, evidence: Evidence) -> None:
        inventory = self._inventory()
        for grant in self._ledger.release_ended(actions.ended, why="its pod ended"):
            self._files.drop(grant)
            self._report.released(grant)
        for grant, key in actions.disproved:
            self._reassign(grant, key, evidence, inventory)
        for grant_id, recorded in actions.proved:
            if self._ledger.get(grant_id) is not None:
                self._ledger.prove(grant_id, recorded)
        for grant_id, container in actions.described:
            self._ledger.describe(grant_id, container, inventory)
        self.adopt(actions.adopt)
        for sentence in actions.failures:
            log.warning("checkpoint_mismatch", error=sentence)

    def adopt(self, grants: Iterable[Grant]) -> None:
        """Adds what kubelet's checkpoint proves to be held."""
        for grant in self._ledger.adopt(grants):
            self._has_adopted = True
            log.warning("grant_rebuilt", **owner_fields(grant.allocation.owner), grant=grant.id)

    def _report_overcommitted(self) -> None:
        """Once all pods were shown: before, some of these grants may be of pods that ended long ago."""
        for load in self._ledger.over_commitments(self._inventory()):
            holders = [grant for grant in self._ledger.grants() if load.uuid in grant.allocation.uuids]
            pods = sorted({str(grant.allocation.owner.pod) for grant in holders})
            log.error("gpu_overcommitted", gpu=load.uuid, load=str(load), pods=pods, action="delete one of its pods")

    def _report_gone(self) -> None:
        """A container keeps the device nodes that it started with, whichever GPU they lead to."""
        inventory = self._inventory()
        for grant in self._ledger.grants():
            gone = sorted(uuid for uuid in grant.allocation.uuids if inventory.gpu(uuid) is None)
            if gone and grant.proved:
                self._report.gpu_gone(grant, gone)

    def _reassign(self, grant: Grant, key: OwnerKey, evidence: Evidence, inventory: Inventory) -> None:
        try:
            to = _claimant(grant, key, evidence, self._names)
            fixed = self._ledger.reassign_to_owner(grant.id, to, inventory)
        except VcudaError as error:
            log.warning("grant_repair_failed", uid=key[0], container=key[1], error=error.message)
            return
        self._report.repaired(grant.allocation.owner, fixed)

    async def _sync_pods(self) -> None:
        if not self._cluster.is_synced:
            return
        self._limits.sync()
        by_pod: dict[PodUid, list[Grant]] = {}
        for grant in self._ledger.grants():
            by_pod.setdefault(grant.allocation.owner.pod.uid, []).append(grant)
        pods = self._cluster.pods()
        holders = [pod for pod in pods if pod.ref.uid in by_pod]
        await sync(self._cluster.client, holders, by_pod, self._inventory(), self._names)
        self._unannotated = {
            uid for uid in self._unannotated & by_pod.keys() if not self._is_annotated(uid, by_pod[uid])
        }
        self._unstartable &= {pod.ref.uid for pod in pods}
        await delete_refused(self._cluster.client, pods, unstartable=self._unstartable)

    def _is_annotated(self, uid: PodUid, grants: Sequence[Grant]) -> bool:
        """By what the watch shows: what was written just now is checked once more."""
        pod = self._cluster.pod(uid)
        if pod is None:
            return False
        if pod.is_terminal or not pod.api_uid:
            return True
        return all(is_annotated(pod, each, self._names) for each in grants)

    def _pod_changed(self, change: StoreChange[Pod]) -> None:
        ended = change.kind is EventKind.DELETED or change.item.is_terminal
        if change.item.is_gpu and ended:
            self._ending.add(change.item.ref.uid)  # kubelet may learn it later than the agent
            self.soon()


def _shows_all(evidence: Evidence) -> bool:
    """Whether kubelet has shown every pod that may hold a grant."""
    return evidence.kubelet is not None and evidence.kubelet.complete


def _claimant(grant: Grant, key: OwnerKey, evidence: Evidence, names: AnnotationNames) -> Claimant:
    """The container that kubelet's checkpoint names, with what the checkpoint and the pod's spec say about it."""
    assert evidence.checkpoint is not None
    views = (view for view in (evidence.kubelet, evidence.api) if view is not None)
    pod = next((found for view in views if (found := view.pods.get(key[0]))), None)
    return claimant_proved(grant, key, evidence.checkpoint.counts_of(*key), pod, ResourceNames(names.domain))
