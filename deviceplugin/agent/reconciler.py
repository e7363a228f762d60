"""Gives slots back and puts right what disagrees: the loop beside kubelet's calls.

In: the ledger, kubelet's checkpoint and pods, the API server's pods. Out: changes of the ledger as `ledger.reconcile`
decides them, swept directories, corrected annotations, deleted refused pods. A round runs at each period and soon after
a pod ended, because there is no message that a container ended (research 1.8) and slots must not wait for the next
Allocate. It runs soon, too, after a pod was placed on GPUs that its annotations do not name: no scheduler chose them
(nodeName was set, a DaemonSet, Volcano), and the extender must not give them away meanwhile. Grants are read before the
views: a view that is younger than the grant cannot miss its pod.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from deviceplugin.agent import pod_annotations
from deviceplugin.agent.files import AgentFiles
from deviceplugin.agent.hurry import Hurry
from deviceplugin.agent.live_limits import LiveLimits
from deviceplugin.agent.refused_pods import delete_refused
from deviceplugin.agent.reporter import AgentReport
from deviceplugin.agent.unallocated import GhostHunt
from deviceplugin.errors import VcudaError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.reflector import ChangeKind, Reflector, StoreChange
from deviceplugin.kubelet.podresources import PodResources
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.ledger.reconcile import Decisions, Disproved, Evidence, PodsView, reconcile
from deviceplugin.ledger.repair import Claimant, asked_for
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.agent")
_SOON_S = 0.3
_APART_S = 1.5
_PODS_BUDGET_S = 0.7  # a round may run inside an Allocate, which has 2 s


class Upkeep:
    """`run` until it is cancelled; `round` once, for the start and for tests."""

    def __init__(
        self,
        ledger: Ledger,
        client: KubeClient,
        reflector: Reflector[PodUid, Pod],
        *,
        inventory: Callable[[], Inventory],
        checkpoint: Callable[[], Checkpoint],
        kubelet_pods: Callable[[], Awaitable[Sequence[Pod]]],
        resources: PodResources,
        files: AgentFiles,
        report: AgentReport,
        hunt: GhostHunt,
        limits: LiveLimits,
        names: AnnotationNames,
        period_s: float,
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._checkpoint = checkpoint
        self._kubelet_pods = kubelet_pods
        self._resources = resources
        self._files = files
        self._report = report
        self._hunt = hunt
        self._limits = limits
        self._names = names
        self._hurry = Hurry(period_s)
        self._suspects: Mapping[GrantId, int] = {}
        self._counted = 0.0
        self._is_suspicious = False
        self._ending: set[PodUid] = set()
        self._untold: set[PodUid] = set()
        self._complaint = ""
        self._lacks_something = False
        self._is_complete = False
        self._due = asyncio.Event()
        self._client = client
        self._reflector = reflector
        reflector.subscribe(self._pod_changed)

    def soon(self) -> None:
        """Something happened that a round should look at."""
        self._due.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._hurry.wait(suspicious=self._is_suspicious, untold=bool(self._untold))):
                    await self._due.wait()
                    await asyncio.sleep(_SOON_S)
            self._due.clear()
            await self.round()

    def placed(self, grant: Grant) -> None:
        """A container was given GPUs; where its pod does not say so, it is going to be written there soon."""
        pod = self._reflector.items.get(grant.allocation.owner.pod.uid)
        if pod is None or not pod_annotations.says(pod, grant, self._names):
            self._untold.add(grant.allocation.owner.pod.uid)
            self._hurry.anew()
            self.soon()

    async def round(self) -> bool:
        """One look and what follows from it; trouble is logged, never raised. Whether kubelet showed all its pods."""
        try:
            saw_pods = await self.make_room()
            await self._correct()
        except VcudaError as error:
            log.warning("upkeep could not finish this round", cause=error.message)
            return False
        return saw_pods

    @property
    def knows_all_grants(self) -> bool:
        """Whether every grant that a container may hold was in the ledger once; what comes later always is."""
        return self._is_complete

    def doubt(self) -> None:
        """The ledger may lack grants and kubelet's checkpoint does not name them; kubelet will write it anew."""
        self._lacks_something = True

    async def complete(self) -> None:
        """A round if there is doubt; raises LedgerError."""
        if self._lacks_something:
            await self.make_room()

    async def make_room(self) -> bool:
        """The part of a round that gives slots back; raises LedgerError."""
        # Two rounds that agree are worth more than one only when time has passed between them.
        counts = time.monotonic() - self._counted >= _APART_S
        evidence = await self._look(self._suspects if counts else {})
        decisions = reconcile(evidence, self._inventory(), now=time.time())
        if counts:
            self._suspects, self._counted = decisions.suspects, time.monotonic()
        self._carry_out(decisions, evidence)
        self._ending &= {grant.allocation.owner.pod.uid for grant in self._ledger.grants()}
        self._is_suspicious = bool(decisions.suspects or self._ending)
        if evidence.kubelet is not None and evidence.checkpoint is not None:
            self._hunt.look(evidence.kubelet.pods.values(), self._ledger, evidence.checkpoint)
        if _shows_all(evidence) and evidence.checkpoint is not None and evidence.checkpoint.exists:
            # Only now is every grant that a container mounts in the ledger, whatever the journal had lost.
            self._lacks_something, self._is_complete = False, True
            self._files.sweep(self._ledger.grants())
        return _shows_all(evidence)

    async def _look(self, suspects: Mapping[GrantId, int]) -> Evidence:
        grants = self._ledger.grants()
        api = self._api_view()
        kubelet = await self._kubelet_view(api, grants)
        return Evidence(grants, self._checkpoint_or_none(), kubelet, api, suspects)

    def _api_view(self) -> PodsView | None:
        if not self._reflector.synced.is_set():
            return None
        return PodsView.of(self._reflector.items.values())

    async def _kubelet_view(self, api: PodsView | None, grants: tuple[Grant, ...]) -> PodsView | None:
        """Kubelet's own list, else its PodResources; None where it shows neither."""
        try:
            async with asyncio.timeout(_PODS_BUDGET_S):
                return PodsView.of_kubelet(await self._kubelet_pods())
        except (TimeoutError, VcudaError) as error:
            log.debug("kubelet does not show its pods", cause=str(error))
        try:
            async with asyncio.timeout(_PODS_BUDGET_S):
                names = {(each.namespace, each.name) for each in await self._resources.list()}
        except (TimeoutError, VcudaError) as error:
            log.debug("kubelet does not show its devices", cause=str(error))
            return None
        return PodsView.of_names(names, api, grants)

    def _checkpoint_or_none(self) -> Checkpoint | None:
        try:
            found = self._checkpoint()
        except VcudaError as error:
            if error.message != self._complaint:
                log.warning("kubelet's checkpoint cannot be read", cause=error.message)
            self._complaint = error.message
            return None
        self._complaint = ""
        return found

    def _carry_out(self, decisions: Decisions, evidence: Evidence) -> None:
        inventory = self._inventory()
        for grant in self._ledger.release_ended(decisions.ended, why="its pod ended"):
            self._files.drop(grant)
            self._report.released(grant)
        for wrong in decisions.disproved:
            self._settle(wrong, evidence, inventory)
        for grant_id in decisions.proved:
            if self._ledger.get(grant_id) is not None:
                self._ledger.prove(grant_id)
        for known in decisions.described:
            self._ledger.describe(known.grant.id, known.owner, known.role, inventory, index=known.index)
        self.adopt(decisions.adopt)
        for sentence in decisions.failures:
            log.warning("kubelet's checkpoint and the ledger disagree", cause=sentence)

    def adopt(self, grants: Iterable[Grant]) -> None:
        """Takes up what kubelet's checkpoint proves to be held, and says where that is more than a GPU has."""
        taken = self._ledger.adopt(grants)
        for grant in taken:
            log.warning("a grant was rebuilt from kubelet's checkpoint", container=str(grant.allocation.owner))
        for load in self._ledger.over_commitments(self._inventory()) if taken else ():
            log.error("a GPU is over-committed; delete one of its pods", load=str(load))

    def _settle(self, wrong: Disproved, evidence: Evidence, inventory: Inventory) -> None:
        before = wrong.grant.allocation.owner
        try:
            fixed = self._ledger.settle(wrong.grant.id, _claimant(wrong, evidence, self._names), inventory)
        except VcudaError as error:
            log.warning(
                "a wrong grant could not be put right yet",
                container=wrong.container,
                uid=wrong.pod,
                cause=error.message,
            )
            return
        self._report.repaired(before, fixed)

    async def _correct(self) -> None:
        if not self._reflector.synced.is_set():
            return
        self._limits.look()
        by_pod: dict[PodUid, list[Grant]] = {}
        for grant in self._ledger.grants():
            by_pod.setdefault(grant.allocation.owner.pod.uid, []).append(grant)
        pods = tuple(self._reflector.items.values())
        holders = [pod for pod in pods if pod.ref.uid in by_pod]
        await pod_annotations.correct(self._client, holders, by_pod, self._inventory(), self._names)
        self._untold = {uid for uid in self._untold & by_pod.keys() if not self._is_told(uid, by_pod[uid])}
        await delete_refused(self._client, pods)

    def _is_told(self, uid: PodUid, grants: Sequence[Grant]) -> bool:
        """By what the watch shows: what was written just now is looked at once more."""
        pod = self._reflector.items.get(uid)
        if pod is None:
            return False
        return (
            pod.is_terminal or not pod.api_uid or all(pod_annotations.says(pod, each, self._names) for each in grants)
        )

    def _pod_changed(self, change: StoreChange[Pod]) -> None:
        ended = change.kind is ChangeKind.DELETED or change.item.is_terminal
        if change.item.is_gpu and ended:
            self._ending.add(change.item.ref.uid)  # kubelet may hear of it later than we do
            self.soon()


def _shows_all(evidence: Evidence) -> bool:
    """Whether kubelet has shown every pod that may hold a grant."""
    return evidence.kubelet is not None and evidence.kubelet.complete


def _claimant(wrong: Disproved, evidence: Evidence, names: AnnotationNames) -> Claimant:
    """The container that kubelet's checkpoint names, with what the checkpoint and the pod's spec say of it."""
    assert evidence.checkpoint is not None
    counts = evidence.checkpoint.counts_of(wrong.pod, wrong.container)
    views = (view for view in (evidence.kubelet, evidence.api) if view is not None)
    pod = next((found for view in views if (found := view.pods.get(wrong.pod))), None)
    known = pod.container(wrong.container) if pod else None
    owner = known.ref if known else ContainerRef(PodRef(wrong.pod, "", ""), wrong.container)
    role, index = (known.role, known.index) if known else (ContainerRole.UNKNOWN, 0)
    request = asked_for(wrong.grant, counts, pod, wrong.container, ResourceNames(names.domain))
    return Claimant(owner, role, request, index=index)
