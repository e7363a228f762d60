"""The container runtime: what runs, and what has ended. It lives on when kubelet is killed.

In: container starts with their views. Out: the state of each container; the end of real processes. Not here: when to
start or restart. With `run_commands` a container's command runs as a plain process with the container's environment
and without its mounts; otherwise a container just counts as running until it is told to end.
"""

import asyncio
import enum
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sandbox.kubelet.podspec import Container
from sandbox.kubelet.view import ContainerView, RuntimeRefusalError


class Phase(enum.Enum):
    """Where a container is in its life."""

    RUNNING = "running"
    EXITED = "exited"


def now() -> str:
    """The API's form of this moment."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Running:
    """The latest start of a container."""

    view: ContainerView
    phase: Phase
    exit_code: int = 0
    output: str = ""
    process: asyncio.subprocess.Process | None = None
    started_at: str = field(default_factory=now)


@dataclass(slots=True)
class Runtime:
    """All containers by (pod UID, name)."""

    run_commands: bool
    work_dir: Path
    changed: Callable[[], None]
    containers: dict[tuple[str, str], Running] = field(default_factory=dict)
    _waits: set["asyncio.Task[None]"] = field(default_factory=set)

    def of(self, uid: str, name: str) -> Running | None:
        return self.containers.get((uid, name))

    def runs(self, uid: str, name: str) -> bool:
        found = self.of(uid, name)
        return found is not None and found.phase is Phase.RUNNING

    async def start(self, container: Container, view: ContainerView) -> None:
        running = Running(view, Phase.RUNNING)
        if self.run_commands and container.command:
            running.process = await self._spawn(container, view)
            wait = asyncio.create_task(self._wait(running, running.process))
            self._waits.add(wait)
            wait.add_done_callback(self._waits.discard)
        self.containers[view.uid, view.container] = running
        self.changed()

    def exit(self, uid: str, name: str, code: int) -> None:
        running = self.of(uid, name)
        if running is None or running.phase is Phase.EXITED:
            return
        if running.process is not None and running.process.returncode is None:
            running.process.kill()
        running.phase, running.exit_code = Phase.EXITED, code
        self.changed()

    def stop_pod(self, uid: str) -> None:
        for pod, name in list(self.containers):
            if pod == uid:
                self.exit(uid, name, 143)

    async def power_off(self) -> None:
        """Nothing runs any more, and init containers must run again."""
        await self.close()
        for running in self.containers.values():
            running.exit_code = 143

    async def close(self) -> None:
        """Ends every container and waits for real processes."""
        for uid, _ in list(self.containers):
            self.stop_pod(uid)
        await asyncio.gather(*self._waits, return_exceptions=True)

    async def _spawn(self, container: Container, view: ContainerView) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *container.command,
                cwd=self.work_dir,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **view.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise RuntimeRefusalError(f"failed to create containerd task: {error}") from error

    async def _wait(self, running: Running, process: asyncio.subprocess.Process) -> None:
        output, _ = await process.communicate()
        running.output = output.decode(errors="replace")
        if running.phase is Phase.RUNNING:
            running.phase, running.exit_code = Phase.EXITED, process.returncode or 0
            self.changed()
