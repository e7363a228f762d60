"""A pod's worker: starts its containers in order, restarts them, stops them.

In: an admitted pod, container exits, the request to terminate. Out: PreStartContainer calls, container starts, the
pod's status. Workers of different pods run at the same time. Facts kept: PreStartContainer for each resource
in random order before every start, 30 s deadline; its error leaves the container waiting with
CreateContainerConfigError. After an error the pod is looked at again in 10 to 15 s, however often it failed
(`completeWork`, pkg/kubelet/pod_workers.go), or when something of it changes. Only a container that has ended waits
longer each time, in CrashLoopBackOff (`doBackOff`, kuberuntime_manager.go). Init containers run to their end one after
another, sidecars stay; the pod's phase is Pending until every app container has started once.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandbox.kubelet.allocation import PreStart, PreStartError
from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.podspec import Container, Pod, Role
from sandbox.kubelet.runtime import Phase, Running, Runtime, RuntimeRefusalError, make_view
from sandbox.kubelet.status import StatusWriter, Waiting
from sandbox.kubelet.waiting import Changes, Clock, CrashLoop

IDLE_S = 3600.0
LONGEST_S = 60.0  # kubelet looks at every pod once a minute
State = tuple[Phase, int, frozenset[str]] | Waiting | None


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all workers share. `loop_stands`: the sync loop waits for a plugin, so no worker is called."""

    options: KubeletOptions
    clock: Clock
    changes: Changes
    runtime: Runtime
    prestart: PreStart
    status: StatusWriter
    rng: random.Random
    report: Callable[[Pod, Json], Awaitable[None]]
    loop_stands: Callable[[], bool]


@dataclass(slots=True)
class PodWorker:
    """The life of one admitted pod. `terminated`: its containers are gone and its devices may be freed."""

    pod: Pod
    parts: WorkerParts
    terminated: bool = False
    waiting: dict[str, Waiting] = field(default_factory=dict)
    _look_at: float = math.inf
    _crash_loops: dict[str, CrashLoop] = field(default_factory=dict)
    _starts: dict[str, int] = field(default_factory=dict)
    _reported: list[State] = field(default_factory=list)

    async def run(self) -> None:
        """Until the pod has ended by itself; cancelled when it is to be terminated or kubelet dies."""
        await self.parts.clock.sleep(self.parts.options.image_pull_s)
        while not self.terminated:
            await self._sync()
            phase = self._phase()
            await self._report(phase)
            if phase in ("Succeeded", "Failed"):
                self.parts.runtime.stop_pod(self.pod.uid)
                self.terminated = True
                self.parts.changes.ring()
                return
            await self._until_something()

    async def terminate(self) -> None:
        """Stops every container after the grace that processes take to end; then the pod is known as terminated."""
        await self.parts.clock.sleep(self.parts.options.termination_s)
        self.parts.runtime.stop_pod(self.pod.uid)
        self.waiting.clear()
        self.terminated = True
        self.parts.changes.ring()

    def final_status(self) -> Json:
        return self.parts.status.build(self.pod, self.waiting, "Failed" if self._any_failed() else "Succeeded")

    async def _sync(self) -> None:
        """Starts what may start, and plans the next look by what could not."""
        failed: dict[str, float] = {}
        while ready := [item for item in self._startable() if item.name not in failed]:
            for container in ready:
                if (again_in := await self._start(container)) is not None:
                    failed[container.name] = again_in
        self._look_at = math.inf
        if failed:
            wait = min(max(0.0, min(failed.values())), LONGEST_S)
            self._look_at = self.parts.clock.now() + wait * (1 + self.parts.rng.random() / 2)

    def _startable(self) -> list[Container]:
        """What should run and does not: the next init container, or all app containers and fallen sidecars."""
        for container in self.pod.of_role(Role.INIT, Role.SIDECAR):
            if not self._done(container):
                return [] if self.parts.runtime.runs(self.pod.uid, container.name) else [container]
        return [item for item in self.pod.of_role(Role.APP) if self._wanted(item)]

    def _wanted(self, container: Container) -> bool:
        running = self.parts.runtime.of(self.pod.uid, container.name)
        return running is None or (running.phase is Phase.EXITED and self._restarts(running))

    async def _start(self, container: Container) -> float | None:
        """None if it starts, else after how long it is tried again."""
        name = container.name
        if (rest := self._crash_rest(name)) > 0:
            return rest
        number = self._starts.get(name, self._number(name))
        try:
            answers = await self.parts.prestart.options_for(self.pod, container)
            view = make_view(self.pod.uid, container, answers, rng=self.parts.rng, start=number)
            await self.parts.runtime.start(container, view)
        except PreStartError as error:
            return self._wait_for(name, Waiting("CreateContainerConfigError", str(error)))
        except RuntimeRefusalError as error:
            return self._wait_for(name, Waiting("CreateContainerError", str(error)))
        self._starts[name] = number + 1
        self.waiting.pop(name, None)
        if container.role is Role.INIT and not (self.parts.options.run_commands and container.command):
            await self.parts.clock.sleep(self.parts.options.init_run_s)
            self.parts.runtime.exit(self.pod.uid, name, 0)
        return None

    def _crash_rest(self, name: str) -> float:
        """How long a container that has ended must wait still; 0: it is tried now, and waits longer next time."""
        ended = self.parts.runtime.of(self.pod.uid, name)
        if ended is None:
            return 0.0
        loop = self._crash_loops.setdefault(name, CrashLoop(self.parts.options.retry_s))
        now = self.parts.clock.now()
        if (rest := loop.may_start_at(ended.ended) - now) > 0:
            said = f"back-off {loop.wait_s:g}s restarting failed container={name} pod={self.pod.uid}"
            self._wait_for(name, Waiting("CrashLoopBackOff", said))
            return rest
        loop.try_again(ended.ended, now)
        return 0.0

    def _wait_for(self, name: str, waiting: Waiting) -> float:
        self.waiting[name] = waiting
        self.parts.changes.ring()
        return self.parts.options.retry_s

    def _number(self, name: str) -> int:
        """How often it was started before this kubelet lived."""
        before = self.parts.runtime.of(self.pod.uid, name)
        return before.view.start + 1 if before else 0

    def _done(self, container: Container) -> bool:
        """Whether the next container may start: an init container has ended well, a sidecar runs."""
        running = self.parts.runtime.of(self.pod.uid, container.name)
        if running is None:
            return False
        if container.role is Role.SIDECAR:
            return running.phase is Phase.RUNNING
        return running.phase is Phase.EXITED and running.exit_code == 0

    def _restarts(self, running: Running) -> bool:
        policy = self.pod.restart_policy
        return policy == "Always" or (policy == "OnFailure" and running.exit_code != 0)

    def _phase(self) -> str:
        if self.pod.restart_policy == "Never" and self._init_failed():
            return "Failed"
        ended = [self.parts.runtime.of(self.pod.uid, item.name) for item in self.pod.of_role(Role.APP)]
        if all(item and item.phase is Phase.EXITED and not self._restarts(item) for item in ended):
            return "Failed" if self._any_failed() else "Succeeded"
        return "Running" if all(ended) else "Pending"

    def _init_failed(self) -> bool:
        ended = [self.parts.runtime.of(self.pod.uid, item.name) for item in self.pod.of_role(Role.INIT)]
        return any(item and item.phase is Phase.EXITED and item.exit_code != 0 for item in ended)

    def _any_failed(self) -> bool:
        ended = [self.parts.runtime.of(self.pod.uid, item.name) for item in self.pod.of_role(Role.APP)]
        return any(item is None or item.exit_code != 0 for item in ended)

    async def _report(self, phase: str) -> None:
        self._reported = self._state()
        await self.parts.report(self.pod, self.parts.status.build(self.pod, self.waiting, phase))

    async def _until_something(self) -> None:
        """Until a container changes or a look is due, and the sync loop can tell the worker."""
        change = asyncio.create_task(
            self.parts.changes.until(lambda: self._state() != self._reported, what="the pod changes", deadline_s=IDLE_S)
        )
        timer = asyncio.create_task(self.parts.clock.sleep(min(self._look_at - self.parts.clock.now(), IDLE_S)))
        try:
            await asyncio.wait({change, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            timer.cancel()
            await asyncio.gather(change, timer, return_exceptions=True)
        free = "the sync loop is free"
        await self.parts.changes.until(lambda: not self.parts.loop_stands(), what=free, deadline_s=math.inf)

    def _state(self) -> list[State]:
        """What the pod's status depends on."""
        return [self._state_of(item) for item in self.pod.containers]

    def _state_of(self, container: Container) -> State:
        if container.name in self.waiting:
            return self.waiting[container.name]
        running = self.parts.runtime.of(self.pod.uid, container.name)
        sick = self.parts.status.store.sick_of(self.pod.uid, container.name)
        return (running.phase, running.view.start, sick) if running else None
