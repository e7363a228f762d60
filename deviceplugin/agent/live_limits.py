"""Applies a changed `vcuda-core-limit` of a running pod to the limits of its containers.

In: pods as the watch shows them, the ledger. Out: grants with another soft limit, and their limits files written again;
the interposer follows within a second, gpu-manager's client at its next start. Called at each change of a pod, and in
each round of the reconciler for changes that came before the grant. Errors are logged, never raised: the old limit
stays.
"""

import structlog

from deviceplugin.agent.cluster import Cluster
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.agent.pod_hints import PodHints
from deviceplugin.agent.reporter import AgentReport, owner_fields
from deviceplugin.errors import VcudaError
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import StoreChange
from deviceplugin.ledger.grant import Grant
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod

log = structlog.get_logger("vcuda.agent")


class LiveLimits:
    """Subscribes itself to the cluster's pods."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        *,
        files: AgentFiles,
        hints: PodHints,
        report: AgentReport,
    ) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._files = files
        self._hints = hints
        self._report = report
        self._known: dict[PodUid, tuple[str | None, int]] = {}
        self._has_begun = False
        cluster.reflector.subscribe(self._pod_changed)

    def sync(self) -> None:
        """Every watched pod; the first time the files too, which a crash may have left older than the ledger."""
        pods = self._cluster.pods()
        for pod in pods:
            self._follow(pod)
        if not self._has_begun:
            self._has_begun = True
            for grant in (each for pod in pods for each in self._ledger.of_pod(pod.ref.uid)):
                self._write(grant)

    def _pod_changed(self, change: StoreChange[Pod]) -> None:
        if change.kind is EventKind.DELETED:
            self._known.pop(change.item.ref.uid, None)
        elif change.item.mirror_of:
            self.sync()  # whether it is the mirror of a static pod, `cluster` knows
        else:
            self._follow(change.item)

    def _follow(self, pod: Pod) -> None:
        if not pod.is_gpu or pod.is_terminal:
            return
        for grant in self._ledger.of_pod(pod.ref.uid):
            soft_cores = self._soft_cores(pod)
            if grant.soft_cores != soft_cores:
                self._change(grant, soft_cores)

    def _soft_cores(self, pod: Pod) -> int:
        """Parsed again only after a change, because an annotation that cannot be read is logged each time."""
        written = self._hints.core_limit(pod)
        known = self._known.get(pod.ref.uid)
        if known is None or known[0] != written:
            known = self._known[pod.ref.uid] = (written, self._hints.soft_cores(pod))
        return known[1]

    def _change(self, grant: Grant, soft_cores: int) -> None:
        try:
            changed = self._ledger.set_soft_limit(grant.id, soft_cores)
        except VcudaError as error:
            log.warning("limit_change_failed", **owner_fields(grant.allocation.owner), error=error.message)
            return
        if self._write(changed):
            self._report.limits_changed(changed)

    def _write(self, grant: Grant) -> bool:
        """Not before PreStartContainer has proved the owner: then it writes them itself."""
        if not grant.proved:
            return False
        try:
            return self._files.limit(grant)
        except VcudaError as error:
            log.warning("limits_write_failed", **owner_fields(grant.allocation.owner), error=error.message)
            return False
