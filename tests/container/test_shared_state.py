"""Regions and activity rows: there before they are mounted, as new at each start, gone with their grant."""

import contextlib
import mmap
import os
import resource
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from deviceplugin.container import activity, region, shared_file
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from tests.container.makers import put, put_slot
from tests.container.test_tracker import lease

ONE, TWO = GrantId("g-0001"), GrantId("g-0002")
GPU, OTHER = GpuUuid("GPU-a"), GpuUuid("GPU-b")


@pytest.fixture
def shared(tmp_path: Path) -> SharedState:
    return SharedState(tmp_path)


def files(base: Path) -> set[str]:
    return {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}


def remove(shared: SharedState, grant: GrantId, uuids: Collection[GpuUuid]) -> None:
    shared.end(grant, uuids)
    shared.discard(grant)


def test_everything_that_is_mounted_exists_before_the_answer(shared: SharedState, tmp_path: Path) -> None:
    shared.prepare(ONE, {GPU})
    assert files(tmp_path) == {"g-0001/state/region", "g-0001/state/GPU-a.activity", "gpus/GPU-a/g-0001"}
    assert (tmp_path / "g-0001/gpus/GPU-a").is_dir(), "where the table is mounted below a read-only directory"
    assert shared.row(ONE, GPU).samefile(shared.own_row(ONE, GPU))
    assert shared_file.is_whole(shared.region(ONE), region.form(ONE))
    assert shared_file.is_whole(shared.row(ONE, GPU), activity.form(ONE))


def test_every_user_of_a_container_can_write_the_files_but_not_their_directory(
    shared: SharedState, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        GrantDirectories(tmp_path).prepare(ONE)
        shared.prepare(ONE, {GPU})
    finally:
        os.umask(before)
    directories = [
        tmp_path / each for each in ("g-0001", "g-0001/state", "g-0001/gpus", "g-0001/gpus/GPU-a", "gpus/GPU-a")
    ]
    assert {stat.S_IMODE(each.stat().st_mode) for each in directories} == {0o755}
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (shared.region(ONE), shared.own_row(ONE, GPU))}
    assert set(modes.values()) == {0o666}


def test_a_repeated_allocate_leaves_what_is_in_use(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    put_slot(shared.region(ONE), 0, pid=7, used=1)
    inodes = [path.stat().st_ino for path in (shared.region(ONE), shared.row(ONE, GPU))]
    shared.prepare(ONE, {GPU})
    assert [path.stat().st_ino for path in (shared.region(ONE), shared.row(ONE, GPU))] == inodes
    assert region.read(shared.region(ONE), grant=ONE, devices=1).slots[0].pid == 7


def inodes(shared: SharedState) -> list[int]:
    return [path.stat().st_ino for path in (shared.region(ONE), shared.own_row(ONE, GPU), shared.row(ONE, GPU))]


@contextlib.contextmanager
def leased(shared: SharedState) -> Iterator[None]:
    held = [lease(shared.region(ONE)), lease(shared.own_row(ONE, GPU))]
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)


def test_files_that_a_running_container_holds_leases_of_are_not_lost(shared: SharedState) -> None:
    """A claim is prepared again for its next pod: with another inode its limits would bind nobody."""
    shared.prepare(ONE, {GPU})
    before = inodes(shared)
    with leased(shared):
        shared.prepare(ONE, {GPU})
    assert inodes(shared) == before


def test_where_the_agent_has_no_descriptor_left_a_file_is_not_lost(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        kept = shared_file.is_kept(shared.region(ONE), region.form(ONE))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert kept


def test_a_start_has_new_files_where_a_process_of_the_previous_one_holds_leases(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    put_slot(shared.region(ONE), 0, pid=7, used=1)
    put(shared.own_row(ONE, GPU), activity.SIZE - 8, b"\xff" * 8)
    with leased(shared):
        shared.renew(ONE, {GPU})
    assert shared_file.is_unused(shared.region(ONE), region.form(ONE))
    assert shared_file.is_unused(shared.row(ONE, GPU), activity.form(ONE))
    assert shared.row(ONE, GPU).samefile(shared.own_row(ONE, GPU))


def test_a_start_resets_the_files_and_neighbours_keep_their_mapping(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    put_slot(shared.region(ONE), 0, pid=7, used=1)
    put(shared.own_row(ONE, GPU), activity.HEAD.size, b"\x05")
    put(shared.own_row(ONE, GPU), activity.SIZE - 8, b"\xff" * 8)
    with shared.row(ONE, GPU).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as neighbour:
        assert neighbour[-8:] == b"\xff" * 8
        shared.renew(ONE, {GPU})
        assert neighbour[-8:] == bytes(8)
        assert neighbour[: len(activity.form(ONE).head)] == activity.form(ONE).head
        assert neighbour[activity.HEAD.size] == 0
    assert region.read(shared.region(ONE), grant=ONE, devices=1).slots == ()


def test_the_second_call_before_a_start_changes_nothing(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    inode = shared.region(ONE).stat().st_ino
    shared.renew(ONE, {GPU})
    shared.renew(ONE, {GPU})
    assert shared.region(ONE).stat().st_ino == inode


def make_directory(path: Path) -> None:
    """As containerd and CRI-O do where a mount has no source; the container may write into it."""
    path.unlink()
    path.mkdir(mode=0o755)
    (path / "of the container").touch()


def test_a_corrupted_file_is_made_again_at_the_next_start(shared: SharedState, subtests: pytest.Subtests) -> None:
    harms: dict[str, Callable[[Path], object]] = {
        "cut": lambda path: os.truncate(path, 100),
        "grown": lambda path: os.truncate(path, 1 << 30),
        "closed": lambda path: path.chmod(0o600),
        "another version": lambda path: put(path, 8, b"\x09"),
        "lost": Path.unlink,
        "a directory that the runtime made": make_directory,
    }
    for name, harm in harms.items():
        with subtests.test(harm=name):
            shared.prepare(ONE, {GPU})
            harm(shared.region(ONE))
            harm(shared.own_row(ONE, GPU))
            shared.renew(ONE, {GPU})
            assert shared_file.is_whole(shared.region(ONE), region.form(ONE))
            assert shared_file.is_whole(shared.row(ONE, GPU), activity.form(ONE))
            assert shared.row(ONE, GPU).samefile(shared.own_row(ONE, GPU))
            remove(shared, ONE, {GPU})


def test_a_boot_mark_that_says_nothing_is_as_good_as_none(shared: SharedState, tmp_path: Path) -> None:
    shared.prepare(ONE, {GPU})
    for mark in (b"\xff\xfe", b"", b"\0" * 36, b"one "):
        put(shared.row(ONE, GPU), 4096, b"old")
        (tmp_path / "gpus" / ".boot").write_bytes(mark)
        shared.booted("one")
        assert shared.row(ONE, GPU).read_bytes()[4096:4099] == bytes(3), mark
        assert (tmp_path / "gpus" / ".boot").read_text() == "one"


def test_a_row_that_cannot_be_removed_keeps_nothing_else(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    shared.prepare(TWO, {GPU})
    for grant in (ONE, TWO):
        shared.row(grant, GPU).unlink()
    (shared.row(ONE, GPU) / "below").mkdir(parents=True)
    remove(shared, ONE, {GPU})
    shared.remove_all_but({TWO})
    assert not shared.region(ONE).exists()
    assert shared.region(TWO).exists()


def test_what_containers_took_is_given_back_of_all_grants(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    shared.prepare(TWO, {GPU})
    assert shared.restore_all() == ()
    put(shared.region(ONE), region.SIZE + 4096, b"disk")
    os.truncate(shared.own_row(TWO, GPU), 1 << 30)
    assert shared.restore(ONE, {GPU}) == "region is larger than allowed"
    assert shared.region(ONE).stat().st_size == region.SIZE
    assert shared.restore_all() == ("g-0002: GPU-a.activity is larger than allowed",)
    assert shared.own_row(TWO, GPU).stat().st_size == activity.SIZE
    assert shared.restore_all() == ()


def test_files_of_this_boot_may_be_mounted_by_running_containers(shared: SharedState, tmp_path: Path) -> None:
    assert not shared.is_held("this boot"), "nothing is there"
    shared.prepare(ONE, {GPU})
    assert shared.is_held("this boot"), "no mark"
    held = {}
    for mark in ("", "this boot", "another boot"):
        (tmp_path / "gpus" / ".boot").write_text(mark)
        held[mark] = shared.is_held("this boot")
    assert held == {"": True, "this boot": True, "another boot": False}
    (tmp_path / "gpus" / ".boot").write_text("this boot")
    remove(shared, ONE, {GPU})
    assert not shared.is_held("this boot")


def test_after_a_reboot_no_row_shows_times_of_the_old_clock(shared: SharedState) -> None:
    shared.booted("first")
    shared.prepare(ONE, {GPU})
    put(shared.row(ONE, GPU), 200, b"time")
    shared.booted("first")
    assert shared.row(ONE, GPU).read_bytes()[200:204] == b"time"
    shared.booted("second")
    assert shared.row(ONE, GPU).read_bytes()[200:204] == bytes(4)
    assert shared_file.is_whole(shared.row(ONE, GPU), activity.form(ONE))


def test_a_container_from_before_has_no_row_to_show_limits_in(shared: SharedState, tmp_path: Path) -> None:
    shared.show_limits(ONE, GPU, cores=20, soft_cores=60)
    assert not list(tmp_path.rglob("*"))


def test_limits_are_shown_to_neighbours(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    shared.show_limits(ONE, GPU, cores=20, soft_cores=60)
    assert shared.row(ONE, GPU).read_bytes()[52:60] == b"\x14\0\0\0\x3c\0\0\0"


def test_neighbours_read_limits_from_a_file_that_no_container_writes(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    before = os.umask(0o077)
    try:
        shared.show_limits(ONE, GPU, cores=20, soft_cores=60)
    finally:
        os.umask(before)
    shared.show_limits(ONE, GPU, cores=30, soft_cores=0)
    shown = shared.shown_limits(ONE, GPU)
    assert shown.parent == shared.row(ONE, GPU).parent
    assert shown.read_bytes() == b"\x1e\0\0\0\0\0\0\0\0\0\0\0"
    assert stat.S_IMODE(shown.stat().st_mode) == 0o644
    assert shown.stat().st_nlink == 1


def test_neighbours_are_told_what_to_assume_of_a_container(shared: SharedState) -> None:
    """Next to its limits, which may change meanwhile; for one from before this version there is nothing."""
    shared.assume(ONE, GPU, 30)
    assert not shared.shown_limits(ONE, GPU).exists()
    shared.prepare(ONE, {GPU})
    shared.show_limits(ONE, GPU, cores=20, soft_cores=0)
    shared.assume(ONE, GPU, 30)
    shared.show_limits(ONE, GPU, cores=25, soft_cores=60)
    shown = shared.shown_limits(ONE, GPU)
    assert activity.read_shown_limits(shown) == activity.ShownLimits(25, 60, 30)
    written = shown.stat().st_ino
    shared.assume(ONE, GPU, 30)
    assert shown.stat().st_ino == written, "what is told already is not written again"
    shared.assume(ONE, GPU, 0)
    assert activity.read_shown_limits(shown) == activity.ShownLimits(25, 60, 0)


def test_a_file_that_tells_nothing_of_a_container_is_written_anew(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    shown = shared.shown_limits(ONE, GPU)
    for words in (b"", b"\1\0\0\0", bytes(13)):
        shown.write_bytes(words)
        assert activity.read_shown_limits(shown) is None
        shared.show_limits(ONE, GPU, cores=20, soft_cores=0)
        assert activity.read_shown_limits(shown) == activity.ShownLimits(20, 0, 0)


def test_limits_that_cannot_be_written_are_one_sentence(shared: SharedState) -> None:
    shared.prepare(ONE, {GPU})
    shared.shown_limits(ONE, GPU).mkdir()
    with pytest.raises(ContainerError, match=r"limits .*\.g-0001 could not be written: Is a directory"):
        shared.show_limits(ONE, GPU, cores=20, soft_cores=60)


def test_names_of_a_grant_that_ended_are_gone_before_its_files(shared: SharedState, tmp_path: Path) -> None:
    """An agent that is killed between leaves them to the sweep, which spares those of grants under way."""
    for grant in (ONE, TWO):
        shared.prepare(grant, {GPU})
    shared.end(TWO, {GPU})
    shared.end(TWO, {GPU})
    assert not (tmp_path / TWO).exists()
    assert files(tmp_path / "gpus") == {"GPU-a/g-0001"}
    assert shared.restore_all() == ()
    shared.prepare(TWO, {GPU})
    SharedState(tmp_path).remove_all_but({ONE, TWO})
    assert {path.name for path in tmp_path.iterdir()} == {"gpus", ONE, TWO}
    assert shared.row(TWO, GPU).samefile(shared.own_row(TWO, GPU))


def test_nothing_is_left_of_a_grant_that_ended(shared: SharedState, tmp_path: Path) -> None:
    shared.prepare(ONE, {GPU})
    shared.prepare(TWO, {GPU, OTHER})
    for uuid in (GPU, OTHER):
        shared.show_limits(TWO, uuid, cores=20, soft_cores=60)
    remove(shared, TWO, {GPU, OTHER})
    assert {path.name for path in (tmp_path / "gpus").iterdir()} == {"GPU-a"}
    assert files(tmp_path) == {"g-0001/state/region", "g-0001/state/GPU-a.activity", "gpus/GPU-a/g-0001"}


def test_the_sweep_takes_rows_without_a_grant(shared: SharedState, tmp_path: Path) -> None:
    shared.booted("boot")
    shared.prepare(ONE, {GPU})
    shared.prepare(TWO, {OTHER})
    shared.show_limits(TWO, OTHER, cores=20, soft_cores=60)
    shared.remove_all_but({ONE})
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("gpus/*/*")} == {"gpus/GPU-a/g-0001"}
    assert not (tmp_path / "gpus/GPU-b").exists()


def test_the_sweep_spares_living_grants_and_foreign_files(tmp_path: Path) -> None:
    directories = GrantDirectories(tmp_path)
    for grant in (ONE, TWO):
        directories.write(grant, "vcuda.config", b"x")
    (tmp_path / "3b0c3f0e").mkdir()
    (tmp_path / "g-file").write_text("nobody's")
    SharedState(tmp_path).remove_all_but({ONE})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3b0c3f0e", "g-0001", "g-file"]


def test_a_missing_base_has_nothing_to_sweep(tmp_path: Path) -> None:
    SharedState(tmp_path / "nowhere").remove_all_but(set())
    assert not (tmp_path / "nowhere").exists()


def test_a_place_where_nothing_can_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "g-0001").write_text("a file in the way")
    with pytest.raises(ContainerError, match=r"state directory .*g-0001/state could not be made: Not a directory"):
        SharedState(tmp_path).prepare(ONE, {GPU})
