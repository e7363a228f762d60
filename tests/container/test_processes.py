"""Processes as the kernel reports them: in made-up trees for other machines, and in this machine's /proc."""

import os
import subprocess
from pathlib import Path

import pytest

from deviceplugin.container.processes import CgroupTree, Members, ProcessTable, inner_pid, paths_of, start_time
from deviceplugin.model.allocation import PodUid
from tests.container.node_tree import NodeTree

UID, ID = PodUid("3b0c3f0e-6b8a-4a53-9e0c-2f1d6f7a9b10"), "e3b0c44298fc1c14" * 4
OTHER = "0123456789abcdef" * 4


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> NodeTree:
    return NodeTree(tmp_path / "node", is_unified=request.param)


@pytest.fixture
def unified(tmp_path: Path) -> NodeTree:
    """For what does not depend on the version of the groups."""
    return NodeTree(tmp_path / "node")


def test_a_containers_processes_wherever_kubelet_has_put_them(node: NodeTree, subtests: pytest.Subtests) -> None:
    for path in paths_of(UID, ID):
        with subtests.test(path=path):
            for pid, group in ((200, path), (100, path), (300, f"{path}/child"), (400, f"{path}x")):
                node.start(pid, group)
            tree = CgroupTree(node.cgroup)
            directory = tree.find(UID, ID)
            assert directory is not None
            assert tree.members(directory) == Members((100, 200, 300))
            group_of = ProcessTable(node.proc).container_of(300)
            assert group_of is not None
            assert (group_of.pod, group_of.container_id, tree.directory(group_of.path)) == (UID, ID, directory)
            for gone in (f"{path}/child", f"{path}x", path):
                node.remove(gone)


BASE = Path("/etc/gpu-manager/vm")
NAMES = [f"g-{number}" for number in range(1, 9)]


def test_whoever_has_a_directory_mounted_runs_whatever_its_control_group_is_called(unified: NodeTree) -> None:
    unified.start(1, "/", mounted="/", at=str(BASE))
    (unified.proc / "self").symlink_to("1")
    unified.start(100, f"/kubepods/pod{UID}/{ID}", mounted="/g-1")
    unified.start(200, "/system.slice/containerd.service", mounted="/g-2//deleted")
    unified.start(300, "/no/name/that/says/anything", mounted="/g-3")
    unified.start(400, "/", mounted="/g-4/state/region")
    unified.start(500, f"/kubepods/pod{UID}/{ID}", mounted="/g-5")
    (unified.proc / "500/mountinfo").unlink()
    table = ProcessTable(unified.proc)
    assert table.mounted(NAMES, BASE) == {"g-1", "g-2", "g-3", "g-4"}
    unified.end(100)
    assert table.mounted(["g-1"], BASE) == frozenset()


def test_a_directory_of_that_name_elsewhere_proves_nothing(unified: NodeTree) -> None:
    """A tenant can name a directory of its own so, and mount it in a user namespace."""
    unified.start(1, "/", mounted="/etc/gpu-manager", at="/etc/gpu-manager", device="8:1")
    (unified.proc / "self").symlink_to("1")
    unified.start(100, "/a", mounted="/etc/gpu-manager/vm/g-1", device="8:1")
    unified.start(200, "/b", mounted="/var/lib/kubelet/pods/x/volumes/g-2", device="8:1")
    unified.start(300, "/c", mounted="/etc/gpu-manager/vm/g-3", device="0:99")
    unified.start(400, "/d", mounted="/home/etc/gpu-manager/vm/g-4", device="8:1")
    assert ProcessTable(unified.proc).mounted(NAMES, BASE) == {"g-1"}


def test_a_pods_own_process_is_believed_where_the_directory_was_mounted_again(unified: NodeTree) -> None:
    """Its mount is of the file system that was there when it started."""
    other = PodUid(UID[::-1])
    unified.start(1, "/", mounted="/", at=str(BASE))
    (unified.proc / "self").symlink_to("1")
    unified.start(100, f"/kubepods/pod{UID}/{ID}", mounted="/g-1", device="0:7")
    unified.start(200, f"/kubepods/pod{other}/{ID}", mounted="/g-2", device="0:7")
    table = ProcessTable(unified.proc)
    assert table.mounted(NAMES, BASE, pods=dict.fromkeys(NAMES, UID)) == {"g-1"}


@pytest.mark.root
def test_the_kernel_shows_a_mount_of_the_directory_in_another_namespace(tmp_path: Path) -> None:
    """As a container has it, in whatever control group: this test's own."""
    (tmp_path / "vm/g-1").mkdir(parents=True)
    (tmp_path / "vm/g-2").mkdir()
    (tmp_path / "mnt").mkdir()
    script = f"mount --bind {tmp_path}/vm/g-1 {tmp_path}/mnt && echo && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE) as container:
        assert container.stdout is not None
        container.stdout.readline()
        assert ProcessTable().mounted(["g-1", "g-2"], tmp_path / "vm") == {"g-1"}
        container.kill()
    assert ProcessTable().mounted(["g-1", "g-2"], tmp_path / "vm") == frozenset()


def test_a_group_of_any_name_is_a_containers_where_it_has_its_id(node: NodeTree) -> None:
    """`cgroupsPerQOS: false`, a runtime that names groups in a way of its own."""
    for pid, path in enumerate((f"/pod{UID}/{ID}", f"/runtime.slice/x:{ID}", f"/runtime.slice/{ID}/inner"), start=7):
        node.start(pid, path)
        table = ProcessTable(node.proc)
        group = path.removesuffix("/inner")
        assert table.group_of(pid, UID, ID) == group
        assert table.members(UID, ID) == Members((pid,))
        assert CgroupTree(node.cgroup).directory(group) is not None
        assert table.group_of(pid, UID, OTHER) == ""
        node.remove(path)


def test_below_kubelets_root(node: NodeTree) -> None:
    node.start(1, f"/kubelet/kubepods/pod{UID}/{ID}")
    node.start(50, f"/kubelet/kubepods/besteffort/pod{UID[::-1]}/{OTHER}")
    (node.proc / "self").symlink_to(node.proc / "50")
    assert CgroupTree(node.cgroup).find(UID, ID) is None
    root = ProcessTable(node.proc).own_root()
    assert CgroupTree(node.cgroup, kubelet_root=root).find(UID, ID) is not None


def test_a_container_that_is_gone_has_no_processes_for_sure(node: NodeTree) -> None:
    path = f"/kubepods/pod{UID}/{ID}"
    node.start(1, path)
    tree = CgroupTree(node.cgroup)
    directory = tree.find(UID, ID)
    assert directory is not None
    node.end(1)
    assert tree.members(directory) == Members(())
    node.remove(path)
    assert tree.members(directory) is None


def test_processes_that_another_namespace_hides_make_the_list_incomplete(unified: NodeTree) -> None:
    path = f"/kubepods/pod{UID}/{ID}"
    unified.start(7, path)
    tree = CgroupTree(unified.cgroup)
    directory = tree.find(UID, ID)
    assert directory is not None
    (directory / "cgroup.procs").write_text("0\n7\n0\n")
    assert tree.members(directory) == Members((7,), complete=False)


def test_without_a_group_every_process_is_looked_at(node: NodeTree) -> None:
    node.start(8, f"/odd/kubepods/pod{UID}/{ID}")
    node.start(9, f"/odd/kubepods/pod{UID}/{OTHER}")
    (node.proc / "meminfo").write_text("")
    table = ProcessTable(node.proc)
    assert table.members(UID, ID) == Members((8,))
    assert table.members(UID, "no-such-container") == Members((), complete=False)


def test_a_path_with_dots_leads_nowhere(node: NodeTree) -> None:
    path = f"/../proc/kubepods/pod{UID}/{ID}"
    node.start(8, path)
    group = ProcessTable(node.proc).group_of(8, UID, ID)
    assert group
    assert CgroupTree(node.cgroup).directory(group) is None


def test_an_identity_names_a_process_within_its_own_namespace(unified: NodeTree) -> None:
    unified.start(4321, "/", inner=17, namespace="one", born=555)
    known = ProcessTable(unified.proc).identity(4321)
    assert known is not None
    assert (known.pid, known.inner, known.namespace, known.start_time) == (4321, 17, unified.namespace("one"), 555)
    assert ProcessTable(unified.proc).identity(4322) is None


def test_a_process_that_ends_meanwhile_has_no_identity(unified: NodeTree) -> None:
    for pid, harm in enumerate(("status", "stat", "ns/pid"), start=5):
        unified.start(pid, "/")
        (unified.proc / str(pid) / harm).unlink()
        assert ProcessTable(unified.proc).identity(pid) is None, harm


def test_this_machine_tells_the_same_of_a_process_as_the_process_itself() -> None:
    script = "import os,sys; print(os.getpid(), os.stat('/proc/self/ns/pid').st_ino, flush=True); sys.stdin.read()"
    with subprocess.Popen(["python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        own_pid, namespace = map(int, child.stdout.readline().split())
        known = ProcessTable().identity(child.pid)
        assert known is not None
        assert (known.inner, known.namespace) == (own_pid, namespace)
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        assert 0 <= uptime - known.start_time / os.sysconf("SC_CLK_TCK") < 30
        child.communicate()
    assert ProcessTable().identity(child.pid) is None


def test_the_innermost_number_counts_where_the_kernel_tells_it() -> None:
    assert [inner_pid(each) for each in (b"Pid:\t5\nNSpid:\t5\t2\t1\nX:\n", b"NSpid:\t77\n")] == [1, 77]
    with pytest.raises(ValueError, match="NSpid"):
        inner_pid(b"Pid:\t5\n")


def test_a_name_cannot_shift_the_fields() -> None:
    assert start_time(b"5 (x) 1 2 3 4) S " + b" ".join(str(n).encode() for n in range(4, 40))) == 22
