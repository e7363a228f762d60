"""Applies a changed `vcuda-core-limit` or `vcuda-memory-limit` of a running pod to the limits of its containers.

In: pods as the watch shows them, the ledger. Out: grants with other limits, and their limits files written again;
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
from deviceplugin.model.pod_limits import PodLimits

log = structlog.get_logger("vcuda.agent")

_Written = tuple[str | None, str | None]


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
        self._known: dict[PodUid, tuple[_Written, dict[str, PodLimits]]] = {}
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
            limits = self._limits(pod, grant.allocation.owner.name)
            if grant.limits != limits:
                self._change(grant, limits)

    def _limits(self, pod: Pod, container: str) -> PodLimits:
        """Parsed again only after a change, because an annotation that cannot be read is logged each time."""
        written = self._hints.written_limits(pod)
        known = self._known.get(pod.ref.uid)
        if known is None or known[0] != written:
            known = self._known[pod.ref.uid] = (written, {})
        if container not in known[1]:
            known[1][container] = self._hints.limits(pod, container)
        return known[1][container]

    def _change(self, grant: Grant, limits: PodLimits) -> None:
        try:
            changed = self._ledger.set_limits(grant.id, limits)
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
