"""What a container sees, put together as kubelet and the runtime would.

In: the answers to Allocate of all resources of the container, its own environment. Out: one `ContainerView`, with the
small files behind its mounts as they were at its start. Facts kept (research 1.6): answers are merged in random order
and the first wins; the pod's own environment comes last and wins over the plugin's; a mount or device whose host path
does not exist fails the container; links in a mount's host path are followed when the container is made.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.kubelet.podspec import Container

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
    _check_paths(mounts.values(), devices.values())
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


def _check_paths(mounts: Iterable[Mount], devices: Iterable[DeviceNode]) -> None:
    for path in [mount.host_path for mount in mounts] + [device.host_path for device in devices]:
        if not Path(path).exists():
            raise RuntimeRefusalError(f"failed to create container: stat {path}: no such file or directory")


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
