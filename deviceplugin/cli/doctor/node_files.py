"""The checks of a node's directories: those of the agent, kubelet's, cgroups.

In: a `NodeSubject`. Out: findings. Writing is tried by writing: rights, quotas and read-only mounts show in no mode.
"""

import asyncio
import os
import secrets
from contextlib import suppress
from pathlib import Path

from deviceplugin.cli.doctor.findings import CheckResult, failed, named, ok, warning
from deviceplugin.cli.doctor.node import NodeSubject
from deviceplugin.errors import VcudaError
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, CheckpointReader

_LEAST_ROOM = 64 << 20
"""A mirror of a driver's libraries beside the one in use needs some hundreds of MiB; below this nothing works."""
_ROOM = 1 << 30
_CGROUPS = Path("/sys/fs/cgroup")
_CONNECT_S = 5.0


async def state(subject: NodeSubject) -> CheckResult:
    """Journal, grants and mirror: writable, with room; libraries in the mirror can be mapped as programs."""
    settings = subject.settings
    places = (
        settings.allocation.checkpoint_path,
        settings.allocation.virtual_manager_path,
        settings.driver.mirror_path,
    )
    return await asyncio.to_thread(_state, places, settings.driver.mirror_path)


def _state(places: tuple[Path, ...], mirror: Path) -> CheckResult:
    existing = {place: _existing(place) for place in places}
    refused = {str(place): why for place, found in existing.items() if (why := _refused(found))}
    if refused:
        return failed(
            named([f"{place}: {why}" for place, why in refused.items()]),
            "run the agent as root, and give it a directory that can be written and is kept over reboots (value "
            "agent.stateDirectory)",
        )
    where = os.statvfs(existing[mirror])
    if where.f_flag & os.ST_NOEXEC:
        return failed(
            f"{mirror} lies on a file system that is mounted noexec: no program in a share can load the driver",
            "mount it without noexec, or choose another directory (value agent.stateDirectory)",
        )
    free = min(_free(found) for found in existing.values())
    text = f"{free >> 20} MiB free for journal, grants and driver mirror"
    if free < _LEAST_ROOM:
        return failed(f"only {text}", "make room; without it no GPU is granted")
    if free < _ROOM:
        return warning(f"only {text}", "make room: a driver upgrade needs a second mirror beside the first")
    return ok(f"{named([str(place) for place in places])} can be written; {text}")


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above it, in which the agent would make it."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _refused(directory: Path) -> str:
    """Why no file can be written there; empty if one can."""
    trial = directory / f".vcuda-doctor-{secrets.token_hex(4)}"
    try:
        trial.write_bytes(b"vcuda doctor")
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
    return ""


def _free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


async def kubelet_directory(subject: NodeSubject) -> CheckResult:
    directory = subject.settings.kubelet.device_plugin_path
    advice = (
        "correct --device-plugin-path (value agent.kubelet.devicePlugins), and mount the directory into the agent's pod"
    )
    if not directory.is_dir():
        return failed(f"kubelet's directory for device plugins, {directory}, is not there", advice)
    if why := await asyncio.to_thread(_refused, directory):
        return failed(f"no socket can be made in {directory}: {why}", "run the agent as root; mount it writable")
    socket = directory / "kubelet.sock"
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_unix_connection(socket)
            writer.close()
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        return failed(f"kubelet does not listen on {socket}: {why}", f"start kubelet; {advice}")
    return ok(f"kubelet listens in {directory}")


async def kubelet_root(subject: NodeSubject) -> CheckResult:
    registry = subject.settings.kubelet.root / "plugins_registry"
    if registry.is_dir():
        return ok(f"{registry} is there: the agent registers there")
    return warning(
        f"there is no {registry}",
        "correct --kubelet-root (value agent.kubelet.root); through kubelet.sock the agent registers too",
    )


async def checkpoint(subject: NodeSubject) -> CheckResult:
    """Kubelet's own record, against which each container is verified before it starts."""
    path = subject.settings.kubelet.device_plugin_path / CHECKPOINT_NAME
    try:
        found = await asyncio.to_thread(CheckpointReader(path, subject.settings.names).read)
    except VcudaError as error:
        return failed(error.message, "run the agent as root; if the file is damaged, restart kubelet")
    if not found.exists:
        return warning(
            f"there is no {path} yet", "kubelet writes it when it starts; correct --device-plugin-path if not"
        )
    return ok(f"kubelet's checkpoint can be read: {len(found.entries)} entries of vcuda's resources")


async def cgroups(_: NodeSubject) -> CheckResult:
    if (_CGROUPS / "cgroup.controllers").is_file():
        return ok("cgroups of version 2")
    if (_CGROUPS / "memory").is_dir() or (_CGROUPS / "systemd").is_dir():
        return ok("cgroups of version 1")
    return warning(
        f"{_CGROUPS} has no control groups", "mount the node's /sys/fs/cgroup; else use by containers is not attributed"
    )
