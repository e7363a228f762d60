"""The files of each grant: connects the decisions of `kubelet` with what `container` and `gpu_manager` write.

In: grants and answers, the pods' annotations, `--vcuda-socket`. Out: the grant's directory before Allocate answers, its
limits at PreStartContainer, its `vcuda.sock` where it has one, and nothing after the grant's end. All sources of mounts
exist after `fill` and `ready`, or these raise: containerd and CRI-O start a container whose mount has no source, with
an empty directory. So no container starts while files of the driver mirror are missing, and no share while it lacks the
interposer.

`GrantSockets` serves the sockets of grants whose pods ask for one, because their image has gpu-manager's client, and of
those that gpu-manager gave and the agent took over, because their containers mount gpu-manager's library: from the
proof at PreStartContainer to the grant's end. After a restart of the agent all are back at once: a pod that nobody
shows yet has asked if its socket is there. A grant without a directory has no container and gets no socket: kubelet's
checkpoint names containers that ended long ago.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from deviceplugin.agent.cluster import NodePods
from deviceplugin.agent.reporter import owner_fields
from deviceplugin.container import limits_file
from deviceplugin.container.cdi import CdiSpecs
from deviceplugin.container.directories import GrantDirectories, is_no_room
from deviceplugin.container.driver_mirror.mirror import DriverMirror
from deviceplugin.container.limits_file import DeviceLimits, GrantLimits, soft_limit, successor
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ContainerError, ParseError
from deviceplugin.gpu_manager.client_files import LIMITS_FILE, ClientFiles, ContainerLimits, encode_limits
from deviceplugin.gpu_manager.registration import SOCKET_NAME, RegistrationServers
from deviceplugin.kube.reflector import StoreChange
from deviceplugin.kubelet.allocate_answer import Answer
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.log import Pace
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.preferences import parse_flag
from deviceplugin.model.units import BLOCK_BYTES

log = structlog.get_logger("vcuda.agent")
_AFTER_FIRST_S = 0.02  # kubelet asks for the other resource at once, and waits until both are answered
_AFTER_LAST_S = 0.002  # kubelet has the answer then, and writes its checkpoint before it starts a container
_AFTER_END_S = 0.02  # a claim's caller waits, and often for several in a row
_TRIES = 3
_CUT_EVERY_S = 10.0


class AgentFiles:
    """`inventory` is asked at each start of a container: the driver may be upgraded under a running agent.

    `clients` are the files for gpu-manager's client. `mount` puts a tmpfs at the base, or says why there is none.
    `make_room` makes it larger where containers hold nearly all of it; any thread may call it.
    """

    def __init__(
        self,
        directories: GrantDirectories,
        shared: SharedState,
        *,
        mirror: DriverMirror,
        cdi: CdiSpecs | None,
        inventory: Callable[[], Inventory],
        mount: Callable[[bool], str] | None = None,
        make_room: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mount = mount
        self.make_room = make_room
        self._directories = directories
        self._shared = shared
        self.clients = ClientFiles(directories)
        self._pending: dict[GrantId, asyncio.TimerHandle] = {}
        self._ended: list[GrantId] = []
        self._mirror = mirror
        self._cdi = cdi
        self._inventory = inventory
        self._has_followed = True
        self._cuts = Pace(_CUT_EVERY_S, clock=clock)

    def open(self, boot_id: str = "") -> None:
        """Once at start: the mirror can be mounted, and files that a reboot removed or made invalid are repaired."""
        self._directories.open()
        if self._mount is not None and (reason := self._mount(self._shared.is_held(boot_id))):
            log.warning("shared_state_on_disk", error=_on_disk(reason))
        self._mirror.open()
        self.follow(self._inventory())
        self._shared.booted(boot_id)

    def follow(self, inventory: Inventory) -> None:
        """GPUs may have other device nodes than when these files were written."""
        if self._cdi is not None:
            self._has_followed = self._cdi.restore({gpu.uuid: gpu.device_path for gpu in inventory.gpus})

    def try_again(self) -> None:
        """What the disk refused when GPUs changed: they may not change again for months."""
        if not self._has_followed:
            self.follow(self._inventory())

    def prepare(self, grant: Grant, answer: Answer) -> None:
        """Before Allocate answers. The shared state comes a little later, because kubelet waits."""
        self._with_room(self._make_directory, grant)
        if grant.is_share:
            self._prepare_later(grant, _AFTER_FIRST_S)
        self.describe(grant, answer)

    def answered(self, grant: Grant) -> None:
        """Kubelet has both answers: PreStartContainer comes next and should find the shared state."""
        if grant.is_share:
            self._prepare_later(grant, _AFTER_LAST_S)

    def fill(self, grant: Grant) -> bool:
        """At PreStartContainer; no process of the container runs, so its shared state starts empty."""
        self._require_driver(grant)
        return self._with_room(self._fill, grant)

    def ready(self, grant: Grant, *, waits: bool = True) -> None:
        """For a claim, at once: its containers start without another call, and some may run already.

        Its CDI file stays as it is; `describe` writes it. `waits`: kubelet, for the answer.
        """
        self._require_driver(grant)
        self._with_room(self._ready, grant, waits=waits)

    def _make_directory(self, grant: Grant) -> bool:
        return self._directories.prepare(grant.id).is_dir()

    def _ready(self, grant: Grant) -> bool:
        self._make_directory(grant)
        if grant.is_share:
            self._shared.prepare(grant.id, grant.allocation.uuids)
        return self._limit(grant)

    def _require_driver(self, grant: Grant) -> None:
        """No container starts without its driver, and no share without what limits it."""
        if why := self._mirror.why_unusable(share=grant.is_share):
            raise ContainerError(why)

    def describe(self, grant: Grant, answer: Answer) -> None:
        """Through CDI, where the answer names it. Any thread may call it, one at a time for each grant."""
        if self._cdi is not None and answer.cdi_devices:
            self._cdi.write(grant.id, devices=answer.devices, mounts=answer.mounts, env=answer.env)

    def limit(self, grant: Grant) -> bool:
        """Writes the limits, also for a running container; False if they were there already."""
        return self._with_room(self._limit, grant, waits=False)

    def _with_room(self, write: Callable[[Grant], bool], grant: Grant, *, waits: bool = True) -> bool:
        """Again, if another container has taken the room: it may take it again, but the agent needs far less.

        A tmpfs grows at once. To cut files of containers may take seconds: without a tmpfs there is no other way. It is
        a look at all of them, so without kubelet that waits, where an author sets the pace, once in `_CUT_EVERY_S`.
        """
        for _ in range(_TRIES):
            try:
                return write(grant)
            except ContainerError as error:
                if not is_no_room(error):
                    raise
                if self.make_room():
                    continue
                if not waits and not self._cuts.allows():
                    raise
                taken = self._shared.restore_all()
                if not taken:
                    raise
                log.warning("shared_files_restored", files=taken)
        return write(grant)

    def _fill(self, grant: Grant) -> bool:
        self._cancel(grant)
        if grant.is_share and not grant.is_of_gpu_manager:
            self._shared.renew(grant.id, grant.allocation.uuids)
        self.clients.forget(grant.id)
        return self._limit(grant)

    def _limit(self, grant: Grant) -> bool:
        """A container of gpu-manager's time mounts nothing that it may write to, so our library uses the old file."""
        legacy = self._legacy(grant)
        written = self._directories.write(grant.id, LIMITS_FILE, legacy)
        self.clients.limit(grant.id, legacy)
        if not grant.is_share or grant.is_of_gpu_manager:
            return written
        before = self._directories.read(grant.id, limits_file.FILE_NAME)
        limits = self._limits(grant)
        written |= self._directories.write(grant.id, limits_file.FILE_NAME, successor(limits, before))
        for each in limits.devices:
            self._shared.show_limits(grant.id, each.uuid, cores=each.cores, soft_cores=each.soft_cores)
        return written

    def register(self, grant: Grant, name: str) -> None:
        """gpu-manager's client looks for its files under this name."""
        self.clients.register(grant.id, name, self._legacy(grant))

    def has_no_container(self, grant: Grant) -> bool:
        """Rebuilt from kubelet's checkpoint, which keeps ended containers, while its directory is gone."""
        return grant.source is Source.CHECKPOINT and self._directories.is_missing(grant.id)

    def _prepare_later(self, grant: Grant, delay_s: float) -> None:
        self._cancel(grant)
        self._pending[grant.id] = asyncio.get_running_loop().call_later(delay_s, self._prepare_shared, grant)

    def _prepare_shared(self, grant: Grant) -> None:
        self._pending.pop(grant.id, None)
        try:
            self._shared.prepare(grant.id, grant.allocation.uuids)
        except ContainerError as error:  # PreStartContainer tries again and reports it to kubelet
            log.warning("shared_state_failed", **owner_fields(grant.allocation.owner), error=error.message)

    def _cancel(self, grant: Grant) -> None:
        handle = self._pending.pop(grant.id, None)
        if handle is not None:
            handle.cancel()

    def _limits(self, grant: Grant) -> GrantLimits:
        inventory = self._inventory()
        devices = []
        for share in grant.allocation.shares:
            gpu = inventory.gpu(share.uuid)
            soft = soft_limit(share.cores, grant.limits.soft_cores)
            bus_id = gpu.bus_id if gpu is not None else ""
            devices.append(DeviceLimits(share.uuid, bus_id, grant.memory_limit(share), share.cores, soft))
        return GrantLimits(grant.id, tuple(devices))

    def _legacy(self, grant: Grant) -> bytes:
        """gpu-manager's client applies the same numbers to every GPU that it sees: those of one part."""
        owner, request = grant.allocation.owner, grant.allocation.request
        limits = ContainerLimits(
            pod_uid=owner.pod.uid,
            container=owner.name,
            cores=request.cores_per_gpu if grant.is_share else request.cores,
            memory_bytes=grant.limits.memory_bytes(request.blocks_per_gpu)
            if grant.is_share
            else request.blocks * BLOCK_BYTES,
            soft_cores=grant.limits.soft_cores,
            driver_version=self._inventory().driver.version,
        )
        return encode_limits(limits)

    def drop(self, grant: Grant) -> None:
        """Removes what belongs to a grant that has ended; its names now, and what they named a little later."""
        self._cancel(grant)
        self._shared.end(grant.id, grant.allocation.uuids)
        if self._cdi is not None:
            self._cdi.remove(grant.id)
        if not self._ended:
            asyncio.get_running_loop().call_later(_AFTER_END_S, self._discard)
        self._ended.append(grant.id)

    def _discard(self) -> None:
        """Where the agent ends first, the sweep after its next start does it."""
        ended, self._ended = self._ended, []
        asyncio.get_running_loop().run_in_executor(None, self._shared.discard, *ended)

    def sweep(self, grants: Iterable[Grant]) -> None:
        """Removes everything else: a crash may have left it."""
        keep = {grant.id for grant in grants} | self._pending.keys()
        self._shared.remove_all_but(keep)
        if self._cdi is not None:
            self._cdi.remove_all_but(keep)


def _on_disk(reason: str) -> str:
    return (
        "the files that containers write stay on the node's disk, where the agent cuts them back, because there is no "
        f"tmpfs at --virtual-manager-path: {reason}"
    )


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
        """No path before it is needed: each change of the ledger asks for all grants."""
        asks = self._asks(grant, pods.get(grant.allocation.owner.pod.uid))
        if not (asks or self._for_all or grant.is_of_gpu_manager):
            return False
        path = self._base / grant.id / SOCKET_NAME
        return path.parent.is_dir() and self._is_possible(path)

    def _asks(self, grant: Grant, pod: Pod | None) -> bool:
        """The webhook rejects what cannot be read. A claim cannot ask, and a pod that nobody shows has asked before."""
        if pod is None:
            return grant.source is not Source.CLAIM and (self._base / grant.id / SOCKET_NAME).is_socket()
        try:
            return parse_flag(pod.annotations.get(self._names.socket, "false"), "vcuda-socket")
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
