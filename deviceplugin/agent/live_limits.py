"""Applies a changed `vcuda-core-limit` or `vcuda-memory-limit` of a running pod to the limits of its containers.

In: pods as the watch shows them, the ledger. Out: grants with other limits, and their limits files written again;
the interposer follows within a second, gpu-manager's client at its next start. In each round of the reconciler (`sync`)
changes that came before the grant are found. Errors are logged, never raised: the old limit stays, and each round
tries again.

The author of a pod may change it without pause. Invariant: a change of a pod costs a look at two annotations; its
newest value is applied at once twice and then once in `_EVERY_S` (the agent's first look apart), all containers in one
entry of the ledger, and one container's files at a time, between which kubelet's calls are answered.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog

from deviceplugin.agent.cluster import Cluster, PodHints
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.agent.reporter import AgentReport, owner_fields
from deviceplugin.errors import VcudaError
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import StoreChange
from deviceplugin.kube.transport import TokenBucket
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.log import Pace
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod, PodLimits

log = structlog.get_logger("vcuda.agent")

_Written = tuple[str | None, str | None]
_NOTHING: _Written = (None, None)
_EVERY_S = 3.0
_AT_ONCE = 2
_BREATH_S = 0.005


class LiveLimits:
    """Subscribes itself to the cluster's pods. `run` until it is cancelled."""

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
        self._paces: dict[PodUid, TokenBucket] = {}
        self._waiting: dict[PodUid, float] = {}
        self._unwritten: set[GrantId] = set()
        self._pace = Pace()
        self._wake = asyncio.Event()
        self._has_begun = False
        cluster.reflector.subscribe(self._pod_changed)

    async def run(self) -> None:
        while True:
            self._wake.clear()
            uid, due = min(self._waiting.items(), key=lambda each: each[1], default=(None, None))
            if uid is None or due is None or (wait_s := due - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else wait_s):
                        await self._wake.wait()
                continue
            del self._waiting[uid]
            try:
                await self._follow(uid)
            except Exception:  # what an author may write must not end the agent
                log.exception("limits_not_followed", action="please report this line")

    def sync(self) -> None:
        """Looks at every watched pod; the first time the files too, which a crash may have left older."""
        by_pod: dict[PodUid, list[Grant]] = {}
        for grant in self._ledger.grants():
            by_pod.setdefault(grant.allocation.owner.pod.uid, []).append(grant)
        held = [(pod, by_pod[pod.ref.uid]) for pod in self._cluster.pods() if pod.ref.uid in by_pod]
        for pod, grants in held:
            if pod.is_gpu and not pod.is_terminal and self._differs(pod, grants):
                self._wait(pod.ref.uid)
        self._try_again()
        if not self._has_begun:
            self._has_begun = True
            for _, grants in held:
                for grant in grants:
                    self._write(grant)

    def _try_again(self) -> None:
        """Files that could not be written: annotation and ledger agree by now. It costs the author no change."""
        unwritten = [grant for each in self._unwritten if (grant := self._ledger.get(each)) is not None]
        self._unwritten = {grant.id for grant in unwritten}
        for grant in unwritten:
            self._waiting.setdefault(grant.allocation.owner.pod.uid, time.monotonic())
            self._wake.set()

    def _pod_changed(self, change: StoreChange[Pod]) -> None:
        pod = change.item
        if change.kind is EventKind.DELETED:
            for uid in (pod.ref.uid, pod.mirror_of):
                self._forget(uid)
        elif pod.mirror_of:
            if self._ledger.of_pod(pod.mirror_of):  # whether it is the mirror of that pod, `cluster` knows
                self._wait(pod.mirror_of)
        elif pod.is_gpu and self._hints.written_limits(pod) != self._known.get(pod.ref.uid, (_NOTHING, None))[0]:
            self._wait(pod.ref.uid)

    def _forget(self, uid: PodUid) -> None:
        for each in (self._known, self._paces, self._waiting):
            each.pop(uid, None)

    def _differs(self, pod: Pod, grants: Sequence[Grant]) -> bool:
        written, limits = self._known.get(pod.ref.uid, (None, {}))
        names = [grant.allocation.owner.name for grant in grants]
        is_old = written != self._hints.written_limits(pod) or not limits.keys() >= set(names)
        return is_old or any(limits[name] != each.limits for name, each in zip(names, grants, strict=True))

    def _wait(self, uid: PodUid) -> None:
        if uid not in self._waiting:
            pace = self._paces.setdefault(uid, TokenBucket(rate=1 / _EVERY_S, burst=_AT_ONCE))
            is_first = uid not in self._known  # the agent's own look, which must not cost the author a change
            self._waiting[uid] = time.monotonic() + (0.0 if is_first else pace.reserve())
            self._wake.set()

    async def _follow(self, uid: PodUid) -> None:
        pod = self._cluster.pod(uid)
        if pod is None or not pod.is_gpu or pod.is_terminal:
            return
        limits = {grant.id: self._limits(pod, grant.allocation.owner.name) for grant in self._ledger.of_pod(uid)}
        try:
            changed = self._ledger.follow_limits(limits)
        except VcudaError as error:
            if self._pace.allows("limit_change_failed", uid):
                log.warning("limit_change_failed", pod=str(pod.ref), uid=uid, error=error.message)
            return
        written = []
        for each in [*(grant.id for grant in changed), *(self._unwritten & limits.keys())]:
            await asyncio.sleep(_BREATH_S)
            now = self._ledger.get(each)
            if now is not None and self._write(now):
                written.append(now)
        if written:
            self._report.limits_changed(written)

    def _limits(self, pod: Pod, container: str) -> PodLimits:
        written = self._hints.written_limits(pod)
        known = self._known.get(pod.ref.uid)
        if known is None or known[0] != written:
            known = self._known[pod.ref.uid] = (written, {})
        if container not in known[1]:
            known[1][container] = self._hints.limits(pod, container)
        return known[1][container]

    def _write(self, grant: Grant) -> bool:
        """Whether the files say it now and did not before.

        Not before PreStartContainer has proved the owner: then it writes them itself.
        """
        was_unwritten = grant.id in self._unwritten
        self._unwritten.discard(grant.id)
        if not grant.proved:
            return False
        try:
            return self._files.limit(grant) or was_unwritten
        except VcudaError as error:
            self._unwritten.add(grant.id)
            if self._pace.allows("limits_write_failed", grant.allocation.owner.pod.uid):
                log.warning("limits_write_failed", **owner_fields(grant.allocation.owner), error=error.message)
            return False
