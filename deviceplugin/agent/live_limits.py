"""A changed `vcuda-core-limit` of a running pod, carried into the limits of its containers.

In: pods as the watch shows them, the ledger. Out: grants with another soft limit, and their limits files rewritten;
our library follows within a second, gpu-manager's client at its next start. Called at each change of a pod, and from
upkeep's rounds for what a change may have come too early for. Trouble is logged, never raised: the old limit stays.
"""

import structlog

from deviceplugin.agent.files import AgentFiles
from deviceplugin.agent.pod_hints import Wishes
from deviceplugin.agent.reporter import AgentReport
from deviceplugin.errors import VcudaError
from deviceplugin.kube.reflector import ChangeKind, Reflector, StoreChange
from deviceplugin.ledger.grant import Grant
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod

log = structlog.get_logger("vcuda.agent")


class LiveLimits:
    """Subscribes itself to the reflector."""

    def __init__(
        self,
        ledger: Ledger,
        reflector: Reflector[PodUid, Pod],
        *,
        files: AgentFiles,
        wishes: Wishes,
        report: AgentReport,
    ) -> None:
        self._ledger = ledger
        self._reflector = reflector
        self._files = files
        self._wishes = wishes
        self._report = report
        self._wished: dict[PodUid, tuple[str | None, int]] = {}
        self._has_begun = False
        reflector.subscribe(self._pod_changed)

    def look(self) -> None:
        """Every pod of the store; the first time the files too, which a crash may have left behind the ledger."""
        for pod in tuple(self._reflector.items.values()):
            self._follow(pod)
        if not self._has_begun:
            self._has_begun = True
            for grant in self._ledger.grants():
                self._write(grant)

    def _pod_changed(self, change: StoreChange[Pod]) -> None:
        if change.kind is ChangeKind.DELETED:
            self._wished.pop(change.item.ref.uid, None)
        else:
            self._follow(change.item)

    def _follow(self, pod: Pod) -> None:
        if not pod.is_gpu or pod.is_terminal:
            return
        for grant in self._ledger.of_pod(pod.ref.uid):
            soft_cores = self._wish(pod)
            if grant.soft_cores != soft_cores:
                self._change(grant, soft_cores)

    def _wish(self, pod: Pod) -> int:
        """Read once as long as it stays the same: what cannot be read is complained of each time."""
        written = self._wishes.core_limit(pod)
        known = self._wished.get(pod.ref.uid)
        if known is None or known[0] != written:
            known = self._wished[pod.ref.uid] = (written, self._wishes.soft_cores(pod))
        return known[1]

    def _change(self, grant: Grant, soft_cores: int) -> None:
        try:
            changed = self._ledger.soften(grant.id, soft_cores)
        except VcudaError as error:
            log.warning("limits not changed", container=str(grant.allocation.owner), cause=error.message)
            return
        if self._write(changed):
            self._report.limits_changed(changed)

    def _write(self, grant: Grant) -> bool:
        """Not before PreStartContainer has proved whose the grant is: it writes them then."""
        if not grant.proved:
            return False
        try:
            return self._files.limit(grant)
        except VcudaError as error:
            log.warning("limits not written", container=str(grant.allocation.owner), cause=error.message)
            return False
