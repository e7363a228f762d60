"""What a container may do to its shared files costs the node nothing and is reported: Security 2 and 7."""

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deviceplugin.container import region, shared_file
from deviceplugin.container.shared_file import MOST_CUTTING, MOST_REMOVED, Form, SharedFiles, is_untouched
from deviceplugin.ledger.grant import GrantId

GRANT = GrantId("g-0001")
MIB = 1 << 20


@pytest.fixture(params=["disk", "tmpfs"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A fresh region, on the file system of the tests and on a tmpfs."""
    parent = tmp_path if request.param == "disk" else Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        shared_file.make(Path(directory) / "region", region.form(GRANT))
        yield Path(directory) / "region"


@pytest.fixture
def form() -> Form:
    return region.form(GRANT)


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def restored(path: Path, form: Form) -> str:
    """What `restore` says. The cheap look that spares it must never say anything else."""
    untouched = is_untouched(str(path), form.size)
    said = SharedFiles().restore(path, form)
    assert untouched == (not said)
    return said


def test_blocks_behind_the_end_are_given_back(path: Path, form: Form) -> None:
    """The size does not show them: from the beginning, far behind the end, over the end."""
    for where in (["-l", "20M"], ["-o", "3G", "-l", "20M"], ["-o", "580K", "-l", "20M"]):
        subprocess.run(["fallocate", "--keep-size", *where, path], check=True)
        assert path.stat().st_size == form.size
        assert restored(path, form) == "region is larger than allowed", where
        assert on_disk(path) <= form.size + 4096
        assert restored(path, form) == ""


def test_many_small_pieces_are_given_back(path: Path, form: Form) -> None:
    fd = os.open(path, os.O_RDWR)
    for piece in range(400):
        os.pwrite(fd, b"x", 10 * MIB + piece * 64 * 1024)
    os.close(fd)
    os.truncate(path, form.size + 1)
    assert restored(path, form) == "region is larger than allowed"
    assert (path.stat().st_size, on_disk(path) <= form.size + 4096) == (form.size, True)


def test_the_inode_and_what_is_in_it_stay(path: Path, form: Form) -> None:
    before, inode = path.read_bytes(), path.stat().st_ino
    os.truncate(path, 64 * MIB)
    restored(path, form)
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode)


def test_other_modes_are_taken_back(path: Path, form: Form) -> None:
    for mode in (0o4755, 0o2777, 0o6666, 0o1666, 0o000):
        path.chmod(mode)
        assert restored(path, form) == f"region had mode {mode:04o}"
        assert stat.S_IMODE(path.stat().st_mode) == shared_file.MODE


def test_extended_attributes_are_removed(path: Path, form: Form) -> None:
    try:
        os.setxattr(path, "user.one", b"x" * 2000)
        os.setxattr(path, "user.two", b"x")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")
    assert restored(path, form) == "region had extended attributes"
    assert not [name for name in os.listxattr(path) if name.startswith("user.")]


def test_attributes_of_one_container_do_not_delay_the_look_at_the_others(path: Path, form: Form) -> None:
    """Security A-1: what a look removes of a file is bounded; the rest follows, and is reported meanwhile."""
    try:
        for number in range(2 * MOST_REMOVED + 1):
            os.setxattr(path, f"user.{number}", b"")
    except OSError as error:
        pytest.skip(f"this file system has room for few attributes: {error}")
    left = []
    while restored(path, form):
        left.append(len([name for name in os.listxattr(path) if name.startswith("user.")]))
    assert left == [MOST_REMOVED + 1, 1, 0]


def test_attributes_that_the_kernel_cannot_list_are_told_of(path: Path, form: Form) -> None:
    try:
        for number in range(300):
            os.setxattr(path, f"user.{number:03}{'x' * 240}", b"")
    except OSError as error:
        pytest.skip(f"this file system has room for few attributes: {error}")
    assert "attributes that cannot be removed" in restored(path, form)


def test_an_untouched_file_and_a_missing_one_are_no_fault_of_the_container(path: Path, form: Form) -> None:
    assert restored(path, form) == ""
    assert restored(path.with_name("nothing"), form) == ""


@pytest.mark.thorough  # the kernel waits for 45 s
def test_a_write_lease_does_not_keep_the_room(tmp_path: Path, form: Form) -> None:
    """The holder takes its lease again and again. The wait for the kernel to break it is not the agent's."""
    path = tmp_path / "region"
    shared_file.make(path, form)
    child = os.fork()
    if child == 0:
        _hold_lease(path)
    try:
        _until(lambda: path.stat().st_size > form.size and _is_leased(path))
        files = SharedFiles()
        assert files.restore(path, form) == "region is larger than allowed", "told, though it cannot be cut yet"
        _until(lambda: files.restore(path, form) == "", seconds=200)
        assert on_disk(path) <= form.size + 4096
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_leases_cost_one_thread_for_a_container_and_few_for_the_node(tmp_path: Path, form: Form) -> None:
    """Adversary A-3: there was a thread for each file, 577 for the containers of one pod."""
    delays = list[str]()
    containers, files = MOST_CUTTING + 4, SharedFiles(lambda path, why: delays.append(why))
    before = threading.active_count()
    paths = [tmp_path / f"g-{container:02}" / f"{name}" for container in range(containers) for name in range(3)]
    with _leased(paths, form):
        for _ in range(3):
            assert {files.restore(path, form) for path in paths[:9]} == {
                f"{n} is larger than allowed" for n in range(3)
            }
        assert (threading.active_count() - before, delays) == (3, [])
        for _ in range(3):
            assert all(files.restore(path, form) for path in paths), "told, though it cannot be cut yet"
        assert threading.active_count() - before == MOST_CUTTING
        assert set(delays) == {f"files of {MOST_CUTTING} containers are being cut"}


def test_where_no_thread_is_left_a_leased_file_waits_for_another_look(tmp_path: Path, form: Form) -> None:
    """Adversary A-3: the exception of the one file ended the look at all others."""
    delays = list[str]()
    files, paths = (
        SharedFiles(lambda path, why: delays.append(why)),
        [tmp_path / "g-01" / "region", tmp_path / "g-02" / "region"],
    )
    with _leased(paths, form):
        before = threading.stack_size(1 << 46)  # more than a process can have, so that none starts
        try:
            assert [files.restore(path, form) for path in paths * 2] == ["region is larger than allowed"] * 4
        finally:
            threading.stack_size(before)
        assert set(delays) == {"no thread is left"}
    _until(lambda: not any(files.restore(path, form) for path in paths))


@contextlib.contextmanager
def _leased(paths: Sequence[Path], form: Form) -> Iterator[None]:
    """Files that have grown and that a container holds leases of, until it ends."""
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        shared_file.make(path, form)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            for path in paths:
                fd = os.open(path, os.O_RDWR)
                os.ftruncate(fd, 20 * MIB)
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(writer, b"1")
            time.sleep(60)
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 1)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def _hold_lease(path: Path) -> None:
    try:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fd = os.open(path, os.O_RDWR)
        os.ftruncate(fd, 20 * MIB)
        while True:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            time.sleep(0.001)
    finally:
        os._exit(1)


def _is_leased(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except BlockingIOError:
        return True
    return False


def _until(holds: object, *, seconds: float = 60) -> None:
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
