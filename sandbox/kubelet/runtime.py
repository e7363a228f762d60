"""The container runtime: what a container sees, what runs, what has ended. It lives on when kubelet is killed.

In: the answers to Allocate and the container's own environment; starts and ends. Out: one `ContainerView` for each
start, with the small files behind its mounts at that moment; the state of each container. Facts kept: answers are
merged in random order and the first wins; the pod's own environment wins over the plugin's; links in a mount's host
path are followed at the start. A mount whose host path does not exist gets an empty directory there, and the container
starts; a link that leads nowhere fails it, and so does a device that does not exist (containerd 2.2.9,
internal/cri/opts/spec_linux_opts.go; CRI-O's addOCIBindMounts does the same). With `run_commands` a command runs as a
plain process with the container's environment and without its mounts; otherwise a container counts as running until
it is ended by hand. Not here: when to start or restart, and mounts of CDI, which runc fails where they have no source.
"""

import asyncio
import enum
import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.kubelet.podspec import Container
from sandbox.kubelet.waiting import Clock

SMALL_FILE_BYTES = 64 * 1024
MAX_FILES = 200


class RuntimeRefusalError(Exception):
    """The container runtime cannot create the container."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount; it holds what the host path led to, wherever that leads later."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node with its cgroup permissions."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One start of one container; `files` are the small files behind the mounts at that moment, by container path."""

    uid: str
    container: str
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[DeviceNode, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]
    files: Mapping[str, bytes]
    start: int

    def host_path(self, path: str) -> Path:
        """Where a path inside the container lies on the host; the longest mount wins."""
        for mount in sorted(self.mounts, key=lambda mount: -len(mount.container_path)):
            if path == mount.container_path or path.startswith(mount.container_path.rstrip("/") + "/"):
                return Path(mount.host_path + path.removeprefix(mount.container_path))
        raise FileNotFoundError(f"{self.container} has no mount that holds {path}")


def make_view(
    uid: str, container: Container, responses: Iterable[pb.ContainerAllocateResponse], *, rng: random.Random, start: int
) -> ContainerView:
    """Merges and checks; raises RuntimeRefusalError where the runtime would fail."""
    answers = list(responses)
    rng.shuffle(answers)
    env: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    devices: dict[str, DeviceNode] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}
    for answer in answers:
        for name, value in answer.envs.items():
            env.setdefault(name, value)
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, Mount(mount.container_path, mount.host_path, bool(mount.read_only)))
        for node in answer.devices:
            devices.setdefault(node.container_path, DeviceNode(node.container_path, node.host_path, node.permissions))
        for name, value in answer.annotations.items():
            annotations.setdefault(name, value)
        cdi |= dict.fromkeys(device.name for device in answer.cdi_devices)
    _make_missing_sources(mounts.values())
    _check_devices(devices.values())
    held = tuple(replace(mount, host_path=str(Path(mount.host_path).resolve())) for mount in mounts.values())
    return ContainerView(
        uid=uid,
        container=container.name,
        env={**env, **container.env},
        mounts=held,
        devices=tuple(devices.values()),
        annotations=annotations,
        cdi=tuple(cdi),
        files=_small_files(held),
        start=start,
    )


def _make_missing_sources(mounts: Iterable[Mount]) -> None:
    """Shorter paths in the container first, as containerd sorts them."""
    for mount in sorted(mounts, key=lambda mount: mount.container_path.count("/")):
        try:
            if not Path(mount.host_path).exists():
                Path(mount.host_path).mkdir(0o755, parents=True)
        except OSError as error:
            said = f'failed to mkdir "{mount.host_path}": {error.strerror}'
            raise RuntimeRefusalError(f"failed to generate container spec: {said}") from error


def _check_devices(devices: Iterable[DeviceNode]) -> None:
    for device in devices:
        if not Path(device.host_path).exists():
            said = f"lstat {device.host_path}: no such file or directory"
            raise RuntimeRefusalError(f"failed to generate container spec: {said}")


def _small_files(mounts: Iterable[Mount]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for mount in mounts:
        host = Path(mount.host_path)
        for path in [host] if host.is_file() else sorted(host.rglob("*")):
            if len(files) >= MAX_FILES:
                return files
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= SMALL_FILE_BYTES:
                files[mount.container_path + str(path).removeprefix(str(host))] = path.read_bytes()
    return files


class Phase(enum.Enum):
    """Where a container is in its life."""

    RUNNING = "running"
    EXITED = "exited"


def now() -> str:
    """The API's form of this moment."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Running:
    """The latest start of a container; `ended` on kubelet's clock."""

    view: ContainerView
    phase: Phase
    exit_code: int = 0
    ended: float = 0.0
    output: str = ""
    process: asyncio.subprocess.Process | None = None
    started_at: str = field(default_factory=now)


@dataclass(slots=True)
class Runtime:
    """All containers by (pod UID, name)."""

    run_commands: bool
    work_dir: Path
    changed: Callable[[], None]
    clock: Clock
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
        self._end(running, code)

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
            self._end(running, process.returncode or 0)

    def _end(self, running: Running, code: int) -> None:
        running.phase, running.exit_code, running.ended = Phase.EXITED, code, self.clock.now()
        self.changed()
