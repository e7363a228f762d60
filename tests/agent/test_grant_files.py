"""A start does not fail because another container has taken the room."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.container import activity
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions, MirrorState
from deviceplugin.container.shared_state import SharedState
from deviceplugin.container.tmpfs import make_room
from deviceplugin.errors import ContainerError
from deviceplugin.kubelet.allocate_answer import Answer
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.pod import PodLimits
from deviceplugin.structs import replace
from tests.container.makers import put_slot
from tests.kubelet.makers import grant, inventory, pod


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs for some dozens of shares."""
    with mounted(tmp_path / "vm", "size=8m,nr_inodes=500") as base:
        yield base


@contextlib.contextmanager
def mounted(base: Path, options: str) -> Iterator[Path]:
    base.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", base], check=True)
    try:
        yield base
    finally:
        subprocess.run(["umount", "--lazy", base], check=True)  # a thread may still free files of it


def files_of(
    base: Path, *, make_room: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
) -> tuple[AgentFiles, SharedState]:
    shared = SharedState(base)
    mirror = DriverMirror(base.parent / "mirror", MirrorOptions(base, base, Machine.here()), loaded=lambda: "1")
    mirror.open()
    mirror.state = MirrorState(refusal="")
    directories = GrantDirectories(base)
    files = AgentFiles(
        directories, shared, mirror=mirror, cdi=None, inventory=lambda: inventory(2), make_room=make_room, clock=clock
    )
    return files, shared


def share_of(name: str) -> Grant:
    return grant(pod(name, ("c", 20, 8)).containers[0], (0, 20, 8), grant_id=f"g-{name}")


@pytest.mark.root
@pytest.mark.parametrize("how", ["blocks", "attributes"])
def test_room_that_another_container_has_taken_is_taken_back_before_a_start(small: Path, how: str) -> None:
    """Where nothing can grow, as on the node's disk."""
    files, shared = files_of(small)
    attacker, victim = map(share_of, ("attacker", "victim"))
    files.fill(attacker)
    if how == "blocks":
        fill_with_blocks(shared.region(attacker.id))
    else:
        fill_with_attributes(shared.region(attacker.id))
    with pytest.raises(ContainerError, match="No space left on device"):
        shared.renew(victim.id, victim.allocation.uuids)
    assert files.fill(victim)
    assert shared.region(victim.id).exists()


@pytest.mark.root
async def test_a_directory_at_allocate_is_made_though_another_container_has_taken_all_inodes(small: Path) -> None:
    """Kubelet makes a pod fail for good whose Allocate fails (Security A-1)."""
    files, shared = files_of(small)
    attacker, victim = map(share_of, ("attacker", "victim"))
    files.fill(attacker)
    fill_with_attributes(shared.region(attacker.id))
    directories = GrantDirectories(small)
    with pytest.raises(ContainerError, match="No space left on device"):
        directories.prepare(victim.id)
    files.prepare(victim, Answer())
    assert directories.path(victim.id).is_dir()
    files.drop(victim)


@pytest.mark.root
@pytest.mark.parametrize("leased", [False, True])
def test_a_tmpfs_grows_before_a_start_and_nothing_is_cut_meanwhile(small: Path, leased: bool) -> None:
    """A write lease keeps the agent from cutting the file for 45 s, and to cut takes long: kubelet waits."""
    files, shared = files_of(small, make_room=lambda: make_room(small))
    attacker, victim = map(share_of, ("attacker", "victim"))
    files.fill(attacker)
    path = shared.region(attacker.id)
    fill_with_blocks(path)
    taken, fd = path.stat().st_blocks, os.open(path, os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # what the kernel sends to who holds the lease
    try:
        if leased:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(ContainerError, match="No space left on device"):
            shared.renew(victim.id, victim.allocation.uuids)
        assert files.fill(victim)
    finally:
        signal.signal(signal.SIGIO, before)
        os.close(fd)
    assert path.stat().st_blocks == taken


@pytest.mark.root
@pytest.mark.parametrize("by", ["drop", "sweep", "start"])
def test_what_a_container_has_added_to_its_files_is_not_freed_by_the_loop(tmp_path: Path, by: str) -> None:
    """Of 1 GiB, or a million attributes, the loop would do nothing else for 0.5 s. Counted in processor time."""
    with mounted(tmp_path / "vm", "size=1g") as base:
        files, shared = files_of(base)
        attacker = share_of("attacker")
        files.fill(attacker)
        like_it = base / "like it"
        subprocess.run(["fallocate", "--length", "256M", str(like_it)], check=True)
        plain = work_of(like_it.unlink)
        subprocess.run(["fallocate", "--keep-size", "--length", "256M", shared.region(attacker.id)], check=True)
        put_slot(shared.region(attacker.id), 0, pid=7, used=1)
        if by == "drop":
            done = work_of(lambda: asyncio.run(dropping(files, attacker)))
            assert [path.name for path in base.iterdir() if path.name != "gpus"] == []
        elif by == "sweep":
            done = work_of(lambda: files.sweep([]))
        else:
            done = work_of(lambda: files.fill(attacker))
    assert done < plain / 2, f"{done} of {plain} s"


async def dropping(files: AgentFiles, attacker: Grant) -> None:
    """Until the thread is at it, for whose end the loop's end waits."""
    files.drop(attacker)
    await asyncio.sleep(0.1)


@contextlib.contextmanager
def leased(path: Path) -> Iterator[None]:
    """An open of the file waits until the kernel breaks the lease, or fails."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # what the kernel sends to who holds the lease
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_a_lease_on_its_row_keeps_no_limit_back_and_costs_no_look_at_other_containers(tmp_path: Path) -> None:
    """Security: each change of the limit of a pod looked at the files of all containers of the node, on the loop."""
    files, shared = files_of(tmp_path)
    holder, other = map(share_of, ("holder", "other"))
    for each in (holder, other):
        files.fill(each)
    (uuid,) = holder.allocation.uuids
    os.truncate(shared.region(other.id), 1 << 28)
    with leased(shared.own_row(holder.id, uuid)):
        assert files.limit(replace(holder, limits=PodLimits(soft_cores=50)))
    assert activity.read_shown_limits(shared.shown_limits(holder.id, uuid)) == activity.ShownLimits(20, 50), (
        "what neighbours read"
    )
    assert shared.region(other.id).stat().st_size == 1 << 28, "it was not looked at"
    assert files.limit(replace(holder, limits=PodLimits(soft_cores=60)))
    assert activity.LIMITS.unpack_from(shared.own_row(holder.id, uuid).read_bytes(), activity.LIMITS_AT) == (20, 60)


@pytest.mark.parametrize("how", ["limit", "fill"])
def test_what_is_not_want_of_room_costs_no_look_at_other_containers(tmp_path: Path, how: str) -> None:
    files, shared = files_of(tmp_path)
    one, other = map(share_of, ("one", "other"))
    for each in (one, other):
        files.fill(each)
    os.truncate(shared.region(other.id), 1 << 28)
    (uuid,) = one.allocation.uuids
    told = shared.shown_limits(one.id, uuid)
    told.unlink()
    told.mkdir()
    changed = replace(one, limits=PodLimits(soft_cores=50))
    with pytest.raises(ContainerError, match="Is a directory"):
        files.limit(changed) if how == "limit" else files.fill(changed)
    assert shared.region(other.id).stat().st_size == 1 << 28


@pytest.mark.root
def test_who_changes_limits_where_no_room_is_has_others_cut_once_in_some_seconds(small: Path) -> None:
    """The author of a pod sets the pace of its changes; kubelet that of starts, and it waits for the answer."""
    now = 0.0
    files, shared = files_of(small, clock=lambda: now)
    attacker, changing, victim = map(share_of, ("attacker", "changing", "victim"))
    for each in (attacker, changing):
        files.fill(each)
    path = shared.region(attacker.id)
    fill_with_blocks(path)
    assert files.limit(replace(changing, limits=PodLimits(soft_cores=50)))
    assert path.stat().st_blocks * 512 <= path.stat().st_size, "cut for the first change"
    fill_with_blocks(path)
    taken = path.stat().st_blocks
    for soft in range(51, 60):
        with pytest.raises(ContainerError, match="No space left on device"):
            files.limit(replace(changing, limits=PodLimits(soft_cores=soft)))
    assert path.stat().st_blocks == taken
    now = 10.0
    assert files.limit(replace(changing, limits=PodLimits(soft_cores=60)))
    fill_with_blocks(path)
    assert files.fill(victim), "a start does not wait"


def work_of(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def fill_with_blocks(path: Path) -> None:
    for size in (1 << 20, 1 << 16, 1 << 12):
        at = 1 << 20
        command = ["fallocate", "--keep-size", "--length", str(size), str(path), "--offset"]
        while subprocess.run([*command, str(at)], stderr=subprocess.DEVNULL).returncode == 0:
            at += size


def fill_with_attributes(path: Path) -> None:
    for size in (60_000, 100):
        try:
            for number in range(10_000):
                os.setxattr(path, f"user.{size}-{number}", bytes(size))
        except OSError:
            continue
        pytest.skip("extended attributes of this kernel's tmpfs are not bounded by its inodes")
