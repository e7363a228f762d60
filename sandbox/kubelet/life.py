"""One life of kubelet, from start to death: its servers, its sync loop, its memory of devices.

In: what outlives it (sources, runtime, clock). Out: pods admitted one at a time in the order of their source. While a
plugin does not answer Allocate the sync loop stands: no pod is added, changed or deleted, and no container is started
again or tried again. Starts under way, registration, PodResources, /pods and the node's status go on (kubelet 1.36:
`syncLoopIteration` calls all handlers of pods, and the workers only when it is told). At birth the device manager's
memory is the checkpoint's: resources are known, their endpoints stopped, nothing healthy until the plugin is back.
"""

import asyncio
import math
import random
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from sandbox.kubelet import checkpoint
from sandbox.kubelet.admission import Admission, RefusalError
from sandbox.kubelet.allocation import Allocator, PreStart
from sandbox.kubelet.calls import CallLog
from sandbox.kubelet.devices import DeviceStore
from sandbox.kubelet.draplugins import DraPlugins
from sandbox.kubelet.endpoints import Endpoints
from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.podresources import PodResourcesServer
from sandbox.kubelet.pods import KnownPod, PodTable
from sandbox.kubelet.podsapi import PodsApi
from sandbox.kubelet.podspec import Pod, parse_pod
from sandbox.kubelet.registration import DevicePlugins, PluginHandler, PluginWatcher, RegistrationServer
from sandbox.kubelet.runtime import Runtime
from sandbox.kubelet.source import PodConfigSource, Sink, Update, UpdateKind
from sandbox.kubelet.status import StatusWriter, rejected
from sandbox.kubelet.waiting import Changes, Clock, Pause
from sandbox.kubelet.worker import PodWorker, WorkerParts

NODE_STATUS_S = 10.0
_Listed = TypeVar("_Listed")


@dataclass(frozen=True, slots=True)
class World:
    """What is there before kubelet starts and after it was killed."""

    options: KubeletOptions
    clock: Clock
    changes: Changes
    calls: CallLog
    runtime: Runtime
    pause: Pause
    rng: random.Random
    static: PodConfigSource
    api: PodConfigSource
    pods_api: PodsApi

    @property
    def sources(self) -> tuple[PodConfigSource, PodConfigSource]:
        """Static pods first: their source waits for nobody."""
        return (self.static, self.api)


class Life:
    """One process."""

    def __init__(self, world: World, *, after: Collection[str] = ()) -> None:
        """`after`: resources that must be registered before the first pods are looked at."""
        options = world.options
        self.world = world
        self._after = after
        self.table = PodTable()
        self.store = DeviceStore()
        self.endpoints = Endpoints(options, world.clock, self.store, world.calls, self._devices_changed)
        self.drivers = DraPlugins(world.clock, world.calls, world.changes.ring)
        allocator = Allocator(
            store=self.store,
            endpoints=self.endpoints,
            calls=world.calls,
            rng=world.rng,
            active=self.table.active_uids,
            ready=self._is_ready,
            write_checkpoint=self._write_checkpoint,
            numa_alignment=options.numa_alignment,
        )
        self._admission = Admission(allocator, self.store, options.cpu_cores)
        prestart = PreStart(self.store, self.endpoints, allocator, world.calls, world.rng, options.prestart_timeout_s)
        status = StatusWriter(world.runtime, self.store, world.rng, options.resource_health_status)
        self._parts = WorkerParts(
            options,
            world.clock,
            world.changes,
            world.runtime,
            prestart,
            status,
            world.rng,
            self._report,
            lambda: self._loop_stands,
        )
        self._registration = RegistrationServer(options, self.endpoints, world.pause)
        self._podresources = PodResourcesServer(
            options,
            self.store,
            world.pause,
            known=lambda: self._any_order(self.table.pods()),
            active=lambda: self._any_order(self.table.active()),
            ready=self._is_ready,
        )
        self._order = random.Random(options.seed)  # its own: how often clients list pods changes nothing else
        self._updates: Sink = asyncio.Queue()
        self._ready: set[str] = set()
        self._loop_stands = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        options = self.world.options
        options.plugin_dir.mkdir(parents=True, exist_ok=True)
        remembered = checkpoint.read(options.checkpoint_path, self.store)
        for resource in remembered:
            self.endpoints.restore_stopped(resource)
        if options.pods_api:
            await self.world.pods_api.start()
        if options.podresources:
            await self._podresources.start()
        await self._registration.start()
        if options.plugin_watcher:
            handlers: dict[str, PluginHandler] = {
                "DevicePlugin": DevicePlugins(self.endpoints),
                "DRAPlugin": self.drivers,
            }
            watcher = PluginWatcher(
                options, handlers, clock=self.world.clock, calls=self.world.calls, pause=self.world.pause
            )
            self._spawn(watcher.run())
        self._spawn(self._watch_capacity())
        self._spawn(self._sync_loop(options.first_sync_s if remembered else 0.0))

    async def die(self) -> None:
        """Everything in memory is gone at once; the files and the containers stay."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.endpoints.close()
        await self.drivers.close()
        await self._registration.stop()
        await self._podresources.stop()
        await self.world.pods_api.stop()
        self.world.changes.ring()

    def listing(self) -> list[Json]:
        return self._any_order(known.listed() for known in self.table.values())

    def _any_order(self, pods: Iterable[_Listed]) -> list[_Listed]:
        """Both listings are in the order of a Go map, another one each time (`podsMapToPods` of pod/pod_manager.go)."""
        listed = list(pods)
        self._order.shuffle(listed)
        return listed

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _devices_changed(self) -> None:
        self._write_checkpoint()
        self.world.changes.ring()

    def _write_checkpoint(self) -> None:
        options = self.world.options
        checkpoint.write(options.checkpoint_path, self.store, form=options.checkpoint_form)

    async def _watch_capacity(self) -> None:
        """Kubelet reads the capacity when it writes the node's status, and only then notices expired plugins."""
        while True:
            await self.world.pause.passed()
            self.endpoints.expire()
            counts = {name: (self.store.capacity(name), len(healthy)) for name, healthy in self.store.healthy.items()}
            for source in self.world.sources:
                await source.report_node(counts, kubelet_port=self.world.pods_api.port)
            await self.world.clock.sleep(NODE_STATUS_S)

    async def _sync_loop(self, delay_s: float) -> None:
        """`delay_s`: what passes on a real restart between the registration server and the first pods.

        The real kubelet waits for no plugin: a pod that needs devices before its plugin is back is refused.
        """
        await asyncio.sleep(delay_s)
        await self.world.changes.until(self._are_back, what=f"{self._after} are registered", deadline_s=math.inf)
        for source in self.world.sources:
            self._spawn(source.run(self._updates))
        while True:
            update = await self._updates.get()
            await self.world.pause.passed()
            self._loop_stands = True
            await self._handle(update)
            self._loop_stands = False
            self.world.changes.ring()
            await asyncio.sleep(0)  # workers get their turn, however many updates there are

    def _are_back(self) -> bool:
        return all(self.store.healthy.get(resource) for resource in self._after)

    async def _handle(self, update: Update) -> None:
        source = next(source for source in self.world.sources if source.name == update.source)
        pods = [parse_pod(raw) for raw in update.pods]
        if update.kind in (UpdateKind.SET, UpdateKind.GONE):
            named = {pod.uid for pod in pods}
            mine = [uid for uid, known in self.table.items() if known.source is source]
            for uid in [uid for uid in mine if (uid in named) == (update.kind is UpdateKind.GONE)]:
                self._forget(uid)
        if update.kind is not UpdateKind.GONE:
            for pod in sorted(pods, key=lambda pod: pod.created):
                known = self.table.get(pod.uid)
                if known is None:
                    await self._add(KnownPod(pod, source))
                else:
                    self._change(known, pod)
        self._ready.add(update.source)

    async def _add(self, known: KnownPod) -> None:
        """The pod is visible first, then it is admitted. One that is being deleted too: it ends afterwards."""
        pod = known.pod
        self.table[pod.uid] = known
        self.world.changes.ring()
        if pod.terminal:
            self.world.runtime.stop_pod(pod.uid)
        else:
            await self._admit(known)
        if pod.deleting:
            self._terminate(known)
        self.world.changes.ring()

    async def _admit(self, known: KnownPod) -> None:
        pod = known.pod
        try:
            await self._admission.admit(pod, others=self.table.active(), running=self._left_alone(pod))
        except RefusalError as refusal:
            known.refusal = refusal
            self.world.runtime.stop_pod(pod.uid)
            self._spawn(self._report(pod, rejected(refusal.reason, refusal.message)))
        else:
            known.worker = PodWorker(known.pod, self._parts)
            known.task = self._spawn(known.worker.run())
            if known.source is self.world.static:
                self._spawn(self.world.api.mirror(pod.raw))

    def _left_alone(self, pod: Pod) -> Callable[[str], bool]:
        """Before all sources are ready, containers that the runtime reports running are not allocated again."""
        ready = self._is_ready()
        return lambda container: not ready and self.world.runtime.runs(pod.uid, container)

    def _is_ready(self) -> bool:
        """Every source has shown all its pods once, and they have been handled."""
        return {source.name for source in self.world.sources} <= self._ready

    def _change(self, known: KnownPod, pod: Pod) -> None:
        known.pod = pod
        if known.worker is not None:
            known.worker.pod = pod
        if pod.deleting and not known.terminating:
            self._terminate(known)
        self.world.changes.ring()

    def _terminate(self, known: KnownPod) -> None:
        known.terminating = True
        if known.task is not None:
            known.task.cancel()
        known.task = self._spawn(self._end(known))

    async def _end(self, known: KnownPod) -> None:
        if known.worker is not None and not known.worker.terminated:
            await known.worker.terminate()
            await self._report(known.pod, known.worker.final_status())
        await known.source.finish(known.pod.raw)

    def _forget(self, uid: str) -> None:
        """The source has it no more; what still runs is stopped."""
        known = self.table.pop(uid)
        if known.worker is not None and not known.worker.terminated and not known.terminating:
            self._terminate(known)
        self.world.changes.ring()

    async def _report(self, pod: Pod, status: Json) -> None:
        known = self.table.get(pod.uid)
        if known is not None:
            await known.source.report(pod.raw, status)
            if known.source is self.world.static:
                await self.world.api.report(pod.raw, status)
