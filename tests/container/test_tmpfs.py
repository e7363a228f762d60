"""The tmpfs for files that containers write: mounted once, seen on the node, not over files in use (Security 2, 7)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.container import activity, region, shared_file, tmpfs
from deviceplugin.container.tmpfs import provide
from deviceplugin.ledger.grant import GrantId

needs_root = pytest.mark.root

SHARED = "36 1 98:0 / / rw shared:1 - ext4 /dev/root rw"
PRIVATE = "36 1 98:0 / / rw - ext4 /dev/root rw"


def proc(directory: Path, *mounts: str, filesystems: str = "nodev\ttmpfs\n") -> Path:
    made = directory / "proc"
    (made / "self").mkdir(parents=True)
    (made / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    (made / "filesystems").write_text(filesystems)
    return made


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "vm"
    base.mkdir()
    return base


def test_a_tmpfs_that_is_there_is_used_whatever_else_is(base: Path, tmp_path: Path) -> None:
    line = f"40 36 0:50 / {base} rw,nosuid - tmpfs vcuda rw"
    assert provide(base, held=True, proc=proc(tmp_path, SHARED, line)) == ""


def test_another_file_system_of_the_operators_is_left_alone(base: Path, tmp_path: Path) -> None:
    line = f"40 36 0:50 / {base} rw - xfs /dev/sdb rw"
    assert "another file system is mounted there (xfs)" in provide(base, held=False, proc=proc(tmp_path, SHARED, line))


def test_files_that_containers_hold_are_not_hidden(base: Path, tmp_path: Path) -> None:
    (base / "g-1").mkdir()
    assert "containers that run have files there" in provide(base, held=True, proc=proc(tmp_path, SHARED))
    assert (base / "g-1").is_dir()


def test_nothing_is_mounted_that_the_runtime_would_not_see(base: Path, tmp_path: Path) -> None:
    over = f"40 36 98:1 / {tmp_path} rw"
    for name, mounts in {
        "unreadable": [],
        "private": [PRIVATE],
        "slave of the node's": [SHARED, f"{over} master:3 - ext4 /dev/root rw"],
        "garbage between": [SHARED, "garbage", "- -", f"{over} - ext4 /dev/root rw"],
    }.items():
        said = provide(base, held=False, proc=proc(tmp_path / name, *mounts))
        assert "mountPropagation: Bidirectional" in said, name


def test_a_path_with_spaces_is_found(tmp_path: Path) -> None:
    base = tmp_path / "a b"
    base.mkdir()
    line = f"40 36 0:50 / {str(base).replace(' ', chr(92) + '040')} rw - tmpfs vcuda rw"
    assert provide(base, held=True, proc=proc(tmp_path, SHARED, line)) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may mount")
def test_an_agent_without_the_right_stays_on_the_disk(base: Path, tmp_path: Path) -> None:
    assert "cannot be mounted: Operation not permitted" in provide(base, held=False, proc=proc(tmp_path, SHARED))


def test_containers_may_write_where_the_kernel_asks_for_a_label(tmp_path: Path) -> None:
    """Only what is asked of the kernel: no machine of the tests has SELinux."""
    labelled = {"nodev\ttmpfs\n\text4\n": False, "nodev\tselinuxfs\nnodev\ttmpfs\n": True, "": False}
    found = {each: tmpfs.options(proc(tmp_path / str(len(each)), filesystems=each)) for each in labelled}
    label = "context=system_u:object_r:container_file_t:s0"
    assert {each: label in options for each, options in found.items()} == labelled


def test_the_room_suffices_for_every_share_of_sixteen_gpus() -> None:
    page, shares = 4096, 16 * 100
    reserved = sum(-(-form.reserved // page) for form in (region.form(GrantId("g")), activity.form(GrantId("g"))))
    others = 4  # limits, vcuda.config, pids.config, what neighbours read
    of_each_process = 3  # a slot of the region and one of the row, each over the end of a page
    assert shares * (reserved + others) * page < tmpfs.LEAST_SIZE // 2
    assert tmpfs.LEAST_SIZE // 2 // (of_each_process * page) > 40_000


def test_shares_that_fill_their_files_leave_room_for_the_others() -> None:
    """Of a smaller tmpfs, 200 of them took all, and no further container of the node started."""
    form = (region.form(GrantId("g")), activity.form(GrantId("g")))
    page, uncut = 4096, sum(each.size + shared_file.SLACK for each in form)
    assert 16 * 100 * (uncut + 20 * page) < tmpfs.MOST_SIZE


def test_its_size_depends_on_the_nodes_memory(tmp_path: Path) -> None:
    assert tmpfs.size(tmp_path) == tmpfs.LEAST_SIZE, "nothing tells it"
    sizes = {
        "MemTotal:       16079576 kB\nMemFree: 1 kB\n": 1 << 30,
        "MemTotal:       65536000 kB\n": 65536000 * 64,  # a sixteenth
        "MemTotal:       2113407180 kB\n": 12 << 30,
        "MemTotal: x kB\n": 1 << 30,
        "": 1 << 30,
    }
    found = {}
    for memory in sizes:
        (tmp_path / "meminfo").write_text(memory)
        found[memory] = tmpfs.size(tmp_path)
        assert f"size={found[memory]}," in tmpfs.options(tmp_path)
    assert found == sizes


IN_A_NAMESPACE = """
import sys
from pathlib import Path
from deviceplugin.container.tmpfs import make_room, provide
base, *rights = sys.argv[1:]
print(provide(Path(base), held=False))
print(provide(Path(base), held=False))
if "--full" in rights:
    (Path(base) / "taken").write_bytes(bytes(900 << 20))
    print([make_room(Path(base)) for _ in range(2)])
for line in Path("/proc/self/mountinfo").read_text().splitlines():
    if line.split()[4] == base:
        print(line)
"""


def in_a_namespace(base: Path, *before: str, full: bool = False) -> list[str]:
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "shared",
        *before,
        sys.executable,
        "-c",
        IN_A_NAMESPACE,
        str(base),
        *(["--full"] if full else []),
    ]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.splitlines()


@needs_root
def test_it_is_bounded_and_nothing_runs_from_it(base: Path) -> None:
    (base / "g-old" / "state").mkdir(parents=True)
    first, second, *mounts = in_a_namespace(base)
    assert (first, second, len(mounts)) == ("", "", 1)
    options = mounts[0].split()[5].split(",") + mounts[0].split(" - ")[1].split()[2].split(",")
    assert {
        "nosuid",
        "nodev",
        "noexec",
        f"size={tmpfs.size(Path('/proc')) >> 10}k",
        "nr_inodes=0",
        "mode=700",
    } <= {*options}
    assert not (base / "g-old").exists(), "nobody could remove it below the mount"


def mounted_with(*mounts: str) -> dict[str, str]:
    """The options of the one mount."""
    (line,) = mounts
    return dict(each.partition("=")[::2] for each in line.split(" - ")[1].split()[2].split(","))


def mounted_before(base: Path, options: str, *dropped: str) -> tuple[str, ...]:
    """What an earlier version, or the operator, has mounted in this namespace."""
    return ("sh", "-c", f'mount -t tmpfs -o {options} vcuda {base}; exec "$@"', "sh", *dropped)


@needs_root
def test_a_mount_of_an_earlier_version_loses_its_bound_of_inodes(base: Path) -> None:
    """Security A-1: extended attributes count as inodes, so one container used them up for all."""
    for options in ("size=1g,nr_inodes=500,nosuid,nodev,noexec", "size=1g"):
        *said, mount = in_a_namespace(base, *mounted_before(base, options))
        assert said == ["", ""], options
        found = mounted_with(mount)
        assert (found["nr_inodes"], found["size"]) == ("0", "1048576k"), options
        assert {"nosuid", "nodev", "noexec"} <= set(mount.split()[5].split(",")), options


@needs_root
def test_a_bound_of_inodes_that_stays_is_said_and_the_tmpfs_is_used(base: Path) -> None:
    before = mounted_before(base, "size=1g,nr_inodes=500", *WITHOUT_MOUNTING)
    *said, mount = in_a_namespace(base, *before)
    assert mounted_with(mount)["nr_inodes"] == "500"
    assert "inodes_bounded" in "".join(said)
    assert [line for line in said if "inodes_bounded" not in line] == ["", ""]


@needs_root
def test_it_grows_by_what_containers_hold(base: Path) -> None:
    size = tmpfs.size(Path("/proc"))
    for options, grown in ((f"size={1 << 30}", 900 << 20), (f"size={4 << 30}", 0)):
        *_, said, mount = in_a_namespace(base, *mounted_before(base, options), full=True)
        assert said == f"[{bool(grown)}, False]", options
        expected = grown + size if grown else 4 << 30
        assert 0 <= (int(mounted_with(mount)["size"].removesuffix("k")) << 10) - expected < 1 << 20, options


@needs_root
def test_it_does_not_grow_where_the_agent_may_not_mount_or_another_file_system_is(base: Path, tmp_path: Path) -> None:
    before = mounted_before(base, f"size={1 << 30}", *WITHOUT_MOUNTING)
    *_, said, mount = in_a_namespace(base, *before, full=True)
    assert (said, mounted_with(mount)["size"]) == ("[False, False]", "1048576k")
    assert not tmpfs.make_room(base), "on the disk"
    assert not tmpfs.make_room(tmp_path / "nothing")


WITHOUT_MOUNTING = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")


@needs_root
def test_without_the_right_to_mount_it_stays_on_the_disk(base: Path) -> None:
    reason, *_ = in_a_namespace(base, *WITHOUT_MOUNTING)
    assert reason == "it cannot be mounted: Operation not permitted"
