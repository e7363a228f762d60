"""Which grants have a `vcuda.sock`: those of pods that ask for it, because their image has gpu-manager's client, and
those that gpu-manager gave and the agent took over, because their containers mount gpu-manager's library.

In: the ledger, the pods' annotations, `--vcuda-socket`. Out: the grants whose sockets are served, from the proof at
PreStartContainer to the grant's end. After a restart of the agent all are back at once: a pod that nobody shows yet has
asked if its socket is there. A grant without a directory has no container and gets no socket: kubelet's checkpoint
names containers that ended long ago.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from deviceplugin.agent.cluster import NodePods
from deviceplugin.container.gpu_manager.registration import SOCKET_NAME, RegistrationServers
from deviceplugin.errors import ParseError
from deviceplugin.kube.reflector import StoreChange
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_socket
from deviceplugin.model.pod import Pod

log = structlog.get_logger("vcuda.agent")
_LONGEST_PATH = 107
_AFTER_S = 0.02  # kubelet has its answer first; no container starts that fast
_PODS_EVERY_S = 1.0  # the author of a pod may change it without pause


class GrantSockets:
    """`run` until it is cancelled. `for_all`: every share has a socket, whatever its pod says."""

    def __init__(
        self,
        ledger: Ledger,
        pods: NodePods,
        servers: RegistrationServers,
        *,
        base: Path,
        names: AnnotationNames,
        for_all: bool,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._servers = servers
        self._failed: set[GrantId] = set()
        self._base = base
        self._names = names
        self._for_all = for_all
        self._due = asyncio.Event()
        self._due.set()
        self._has_warned = False
        self._pods_due: asyncio.TimerHandle | None = None
        ledger.subscribe(self._due.set)

    def pod_changed(self, change: StoreChange[Pod]) -> None:
        """Subscribed to the reflector. Kubelet's calls change the ledger, so no start waits for this one."""
        if self._names.socket in change.item.annotations and self._pods_due is None:
            self._pods_due = asyncio.get_running_loop().call_later(_PODS_EVERY_S, self._pods_changed)

    def _pods_changed(self) -> None:
        self._pods_due = None
        self._due.set()

    async def run(self) -> None:
        try:
            while True:
                await self._due.wait()
                await asyncio.sleep(_AFTER_S)
                self._due.clear()
                await self._sync()
        finally:
            await self._servers.close()

    async def _sync(self) -> None:
        watched = {pod.ref.uid for pod in self._pods.watched()}  # kubelet is not asked for pods that ended long ago
        shares = [
            grant
            for grant in self._ledger.grants()
            if grant.proved
            and grant.is_share
            and (grant.allocation.owner.pod.uid in watched or (self._base / grant.id).is_dir())
        ]
        uids = {grant.allocation.owner.pod.uid for grant in shares if grant.source is not Source.CLAIM}
        pods = {} if self._for_all else await self._pods.find_all(uids)
        failures = await self._servers.serve({grant.id for grant in shares if self._wants(grant, pods)})
        for grant_id in failures.keys() - self._failed:
            log.warning("registration_socket_failed", grant=grant_id, error=failures[grant_id])
        self._failed = set(failures)

    def _wants(self, grant: Grant, pods: Mapping[PodUid, Pod]) -> bool:
        pod, path = pods.get(grant.allocation.owner.pod.uid), self._base / grant.id / SOCKET_NAME
        asks = self._asks(pod) if pod is not None else path.is_socket()
        wants = asks or self._for_all or grant.is_of_gpu_manager
        return wants and path.parent.is_dir() and self._is_possible(path)

    def _asks(self, pod: Pod) -> bool:
        """The webhook rejects what cannot be read."""
        try:
            return parse_socket(pod.annotations.get(self._names.socket, "false"))
        except ParseError:
            return False

    def _is_possible(self, path: Path) -> bool:
        length = len(os.fsencode(path))
        if length > _LONGEST_PATH and not self._has_warned:
            self._has_warned = True
            log.warning(
                "registration_unavailable",
                path=str(path),
                error="containers with vcuda-controller's client cannot register: the path of their socket has "
                f"{length} bytes and Linux allows {_LONGEST_PATH}; choose a shorter --virtual-manager-path",
            )
        return length <= _LONGEST_PATH
