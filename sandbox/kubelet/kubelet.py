"""The stand-in kubelet as its users hold it: tests, the demo, benchmarks.

In: options, optionally a source of pods (without one, the user feeds pods through `admit` and `submit`). Out: the
node's behaviour over real sockets, and a view of it: container views, calls made, allocatable, waits with a deadline.
The container runtime, the source of pods and the record of calls outlive `kill`; all else comes back from the
checkpoint.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sandbox.kubelet.calls import CallLog
from sandbox.kubelet.draplugins import DraPlugins
from sandbox.kubelet.endpoints import Endpoints
from sandbox.kubelet.life import Life, World
from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.pods import KnownPod
from sandbox.kubelet.podsapi import PodsApi, PodsApiFaults
from sandbox.kubelet.podspec import parse_pod
from sandbox.kubelet.runtime import ContainerView, Runtime, now
from sandbox.kubelet.source import DirectSource, PodConfigSource, StaticSource
from sandbox.kubelet.waiting import Changes, Clock, Pause


@dataclass(frozen=True, slots=True)
class Verdict:
    """What admission said; `reason` and `message` are empty for an admitted pod."""

    uid: str
    admitted: bool
    reason: str = ""
    message: str = ""


class Kubelet:
    """A node. `async with Kubelet(options) as kubelet:` starts it and cleans up."""

    def __init__(self, options: KubeletOptions, source: PodConfigSource | None = None) -> None:
        self.options = options
        self.clock = Clock(options.speed)
        self.changes = Changes()
        self.calls = CallLog(self.changes.ring)
        self.direct = DirectSource(options, self.clock)
        self.static = StaticSource(options.static_pods, options.node_name)
        pause = Pause()
        self._world = World(
            options=options,
            clock=self.clock,
            changes=self.changes,
            calls=self.calls,
            runtime=Runtime(options.run_commands, options.root, self.changes.ring, self.clock),
            pause=pause,
            rng=random.Random(options.seed),
            static=self.static,
            api=source or self.direct,
            pods_api=PodsApi(options, pause, listing=self.pod_list),
        )
        self._life: Life | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._world.runtime.close()

    # Life

    async def start(self, *, after: Collection[str] = ()) -> None:
        """With `after` kubelet looks at its pods only when these resources are registered.

        The real one looks after `first_sync_s`, and refuses pods whose plugin is not back by then. `after` is the event
        for a test in which the plugin must win that race on a machine of any speed.
        """
        self.options.root.mkdir(parents=True, exist_ok=True)
        self._life = Life(self._world, after=after)
        await self._life.start()

    async def kill(self) -> None:
        """As SIGKILL: sockets and streams die, socket files stay, containers run on."""
        life, self._life = self._life, None
        self._world.pause.resume()
        if life is not None:
            await life.die()

    async def stop(self) -> None:
        """As SIGTERM: the real one tells plugins nothing either."""
        await self.kill()

    async def restart(self, *, forget_checkpoint: bool = False, after: Collection[str] = ()) -> None:
        """`after`: see `start`."""
        await self.kill()
        if forget_checkpoint:
            self.checkpoint_path.unlink(missing_ok=True)
        await self.start(after=after)

    async def reboot(self, *, after: Collection[str] = ()) -> None:
        """The machine restarts: containers are gone too, the checkpoint stays. `after`: see `start`."""
        await self.kill()
        await self._world.runtime.power_off()
        await self.start(after=after)

    def hang(self) -> None:
        self._world.pause.hang()

    def resume(self) -> None:
        self._world.pause.resume()

    @property
    def endpoints(self) -> Endpoints:
        """Its ends of the plugins, while it runs."""
        assert self._life is not None
        return self._life.endpoints

    @property
    def drivers(self) -> DraPlugins:
        """The plugins of DRA drivers that it has taken, while it runs."""
        assert self._life is not None
        return self._life.drivers

    # Pods

    def submit(self, pod: Json) -> str:
        """Feeds a pod as the API server would; returns its UID without waiting."""
        uid = parse_pod(pod).uid
        pod["metadata"].setdefault("creationTimestamp", now())
        self.direct.add(pod)
        return uid

    async def admit(self, pod: Json, *, deadline_s: float = 60.0) -> Verdict:
        """Feeds a pod and waits for the verdict."""
        return await self.verdict(self.submit(pod), deadline_s=deadline_s)

    async def verdict(self, uid: str, *, deadline_s: float = 60.0) -> Verdict:
        await self.changes.until(
            lambda: self._decided(uid), what=f"pod {uid} is admitted or refused", deadline_s=deadline_s
        )
        refusal = self._known(uid).refusal
        if refusal is not None:
            return Verdict(uid, admitted=False, reason=refusal.reason, message=refusal.message)
        return Verdict(uid, admitted=True)

    def delete(self, uid: str) -> None:
        """Starts a graceful deletion."""
        self.direct.delete(uid, when=now())

    async def remove(self, uid: str, *, deadline_s: float = 60.0) -> None:
        """Deletes and waits until kubelet has forgotten the pod."""
        self.delete(uid)
        await self.wait_gone(uid, deadline_s=deadline_s)

    def exit_container(self, uid: str, container: str, *, code: int = 1) -> None:
        """Lets a running container end; its restart policy says what follows."""
        self._world.runtime.exit(uid, container, code)

    # What can be seen

    @property
    def checkpoint_path(self) -> Path:
        return self.options.checkpoint_path

    @property
    def pods_url(self) -> str:
        return self._world.pods_api.url

    @property
    def pods_port(self) -> int:
        return self._world.pods_api.port

    @property
    def pods_faults(self) -> PodsApiFaults:
        return self._world.pods_api.faults

    @property
    def pods_requests(self) -> int:
        return self._world.pods_api.requests

    def pod_list(self) -> list[Json]:
        """What GET /pods shows."""
        return self._life.listing() if self._life else []

    def capacity(self, resource: str) -> int:
        return self._life.store.capacity(resource) if self._life else 0

    def allocatable(self, resource: str) -> int:
        return len(self._life.store.healthy.get(resource, ())) if self._life else 0

    def devices_of(self, uid: str, container: str) -> dict[str, frozenset[str]]:
        """Device IDs by resource, as kubelet has recorded them."""
        if self._life is None:
            return {}
        return {resource: held.ids for resource, held in self._life.store.of_container(uid, container).items()}

    def container_view(self, uid: str, container: str) -> ContainerView:
        """What the latest start of the container saw."""
        running = self._world.runtime.of(uid, container)
        if running is None:
            raise LookupError(
                f"container {container} of pod {uid} has not been started: {self.waiting(uid, container)}"
            )
        return running.view

    def output(self, uid: str, container: str) -> str:
        """What a real process has printed, once it has ended."""
        running = self._world.runtime.of(uid, container)
        return running.output if running else ""

    def started(self, uid: str, container: str) -> bool:
        """Whether it has ever run."""
        return self._world.runtime.of(uid, container) is not None

    def runs(self, uid: str, container: str) -> bool:
        return self._world.runtime.runs(uid, container)

    def waiting(self, uid: str, container: str) -> str:
        """Why a container does not start, as `reason: message`; empty if nothing holds it."""
        known = self._life.table.get(uid) if self._life else None
        worker = known.worker if known else None
        why = worker.waiting.get(container) if worker else None
        return f"{why.reason}: {why.message}" if why else ""

    def _held_back(self, uid: str) -> str:
        known = self._life.table.get(uid) if self._life else None
        held = known.worker.waiting if known and known.worker else {}
        return "; ".join(f"{name}: {why.reason}: {why.message}" for name, why in held.items())

    # Waits

    async def wait_registered(self, *resources: str, deadline_s: float = 60.0) -> None:
        """All of them at the same moment: a plugin that registers again may lose the first one meanwhile."""
        await self.changes.until(
            lambda: all(map(self._is_offered, resources)),
            what=f"kubelet knows {' and '.join(resources)} with healthy devices",
            deadline_s=deadline_s,
        )

    def _is_offered(self, resource: str) -> bool:
        return self.allocatable(resource) > 0

    async def wait_allocatable(self, resource: str, count: int, *, deadline_s: float = 60.0) -> None:
        await self.changes.until(
            lambda: self.allocatable(resource) == count,
            what=f"{resource} has {count} allocatable devices (it has {self.allocatable(resource)})",
            deadline_s=deadline_s,
        )

    async def wait_running(self, uid: str, *, starts: int = 1, deadline_s: float = 60.0) -> None:
        """All app containers run, each at least for the `starts`-th time."""
        try:
            await self.changes.until(lambda: self._running(uid, starts), what=f"pod {uid} runs", deadline_s=deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; held back: {self._held_back(uid) or 'nothing'}") from None

    async def wait_waiting(self, uid: str, container: str, *, deadline_s: float = 60.0) -> str:
        """The reason and message with which a container is held back."""
        await self.changes.until(
            lambda: bool(self.waiting(uid, container)), what=f"{container} of {uid} is held", deadline_s=deadline_s
        )
        return self.waiting(uid, container)

    async def wait_phase(self, uid: str, phase: str, *, deadline_s: float = 60.0) -> None:
        await self.changes.until(lambda: self._phase(uid) == phase, what=f"pod {uid} is {phase}", deadline_s=deadline_s)

    async def wait_gone(self, uid: str, *, deadline_s: float = 60.0) -> None:
        await self.changes.until(
            lambda: self._life is not None and uid not in self._life.table,
            what=f"pod {uid} is gone",
            deadline_s=deadline_s,
        )

    def _phase(self, uid: str) -> str:
        known = self._life.table.get(uid) if self._life else None
        return known.pod.phase if known else ""

    def _known(self, uid: str) -> KnownPod:
        if self._life is None or uid not in self._life.table:
            raise LookupError(f"kubelet does not know pod {uid}")
        return self._life.table[uid]

    def _decided(self, uid: str) -> bool:
        known = self._life.table.get(uid) if self._life else None
        return known is not None and (known.worker is not None or known.refusal is not None)

    def _running(self, uid: str, starts: int) -> bool:
        known = self._life.table.get(uid) if self._life else None
        if known is None or known.worker is None:
            return False
        found = [self._world.runtime.of(uid, item["name"]) for item in known.pod.raw["spec"]["containers"]]
        return all(item and item.phase.value == "running" and item.view.start >= starts - 1 for item in found)
