"""The driver mirror over a node's life: first look, upgrades of the driver and of vcuda's library, and the log."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions, MirrorUpdate
from deviceplugin.errors import ContainerError
from deviceplugin.hardware.pci import loaded_version
from sandbox.driver_root import VERSION, DriverRoot, make_driver_root, make_interposers, put

OLDER, NEWER = "570.86.10", "590.10"


@dataclass(frozen=True, slots=True)
class Node:
    """A node's driver, vcuda's library and the mirror of both."""

    driver: DriverRoot
    ours: Path
    base: Path
    mirror: DriverMirror

    def refresh(self) -> MirrorUpdate:
        found = self.mirror.refresh()
        assert found is not None, "something should be new"
        return found

    def lib64(self, flavour: str) -> Path:
        return self.base / flavour / "lib64"

    def restarted(self) -> "Node":
        return node_at(self.driver, self.ours, self.base)


def node_at(driver: DriverRoot, ours: Path, base: Path) -> Node:
    options = MirrorOptions(driver.path, ours, Machine.here())
    mirror = DriverMirror(base, options, loaded=lambda: loaded_version(driver.version_file))
    mirror.open()
    return Node(driver, ours, base, mirror)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return node_at(make_driver_root(tmp_path / "host"), make_interposers(tmp_path / "ours"), tmp_path / "vdriver")


def test_the_nodes_gpu_client_is_where_the_library_of_an_image_starts_it(node: Node) -> None:
    """Lineage D15: vcuda-controller names /usr/local/nvidia/bin/gpu-client, and the mirror hides what the image has."""
    put(node.driver.path / "usr/local/bin/gpu-client", b"#!/bin/sh\necho registered\n", mode=0o755)
    node.refresh()
    there = node.base / "nvidia/bin/gpu-client"
    assert subprocess.run([there], capture_output=True, text=True, check=True).stdout == "registered\n"
    assert not (node.base / "origin/bin/gpu-client").exists(), "whole GPUs have no limits to register for"


def version_of(lib64: Path, soname: str = "libcuda.so.1") -> str:
    """What the stub that stands there says it is."""
    return (lib64 / soname).read_bytes().rpartition(b"libcuda.so.")[2].decode()


def move_a_name_away(node: Node) -> None:
    """And the runtime makes an empty directory there."""
    (node.base / "nvidia").unlink()
    (node.base / "nvidia").mkdir()


LOSSES: dict[str, Callable[[Node], object]] = {
    "all of it": lambda node: shutil.rmtree(node.base),
    "the trees": lambda node: shutil.rmtree(node.base / ".trees"),
    "a directory": lambda node: shutil.rmtree(node.lib64("nvidia")),
    "a file": lambda node: (node.lib64("nvidia") / "libcuda.so.1").unlink(),
    "a name": move_a_name_away,
    "the current tree's name": lambda node: (node.base / ".current").unlink(),
}


@pytest.mark.parametrize("age_s", [0.0, 0.15])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_container_starts_with_what_is_missing_and_the_next_look_makes_it_again(
    node: Node, loss: str, age_s: float
) -> None:
    """Also where the mirror was looked at a moment ago: of directories that changed lately all files are looked at."""
    node.refresh()
    time.sleep(age_s)
    assert (node.mirror.why_unusable(share=True), node.mirror.why_unusable(share=False)) == ("", "")
    LOSSES[loss](node)
    for share in (True, False):
        assert "are missing on the node" in node.mirror.why_unusable(share=share)
    (said,) = node.refresh().trouble
    assert said == f"files of the driver mirror {node.base} were missing and have been made again"
    assert (node.mirror.why_unusable(share=True), node.mirror.why_unusable(share=False)) == ("", "")
    assert (node.lib64("nvidia") / "libvcuda.so.1").exists()


def test_a_file_that_was_cut_off_is_found_by_the_next_look(node: Node) -> None:
    """No directory changes then, and each start looks at directories alone."""
    node.refresh()
    time.sleep(0.15)
    assert node.mirror.why_unusable(share=True) == ""
    library = node.lib64("nvidia") / "libcuda.so.1"
    library.chmod(0o644)
    os.truncate(library, 0)
    (said,) = node.refresh().trouble
    assert "were missing" in said
    assert library.stat().st_size > 0
    assert version_of(node.lib64("origin")) == VERSION
    assert node.mirror.refresh() is None


def test_before_the_first_check_shares_must_wait(node: Node) -> None:
    assert "did not look" not in node.mirror.state.refusal
    assert node.mirror.state.refusal.startswith("shares cannot start yet")
    assert (node.base / "nvidia").is_dir()


def test_the_first_look_mirrors_everything_and_the_next_one_has_nothing_to_do(node: Node) -> None:
    found = node.refresh()
    assert found.changed
    assert found.trouble == ()
    assert (found.state.driver, found.state.missing, found.state.refusal) == (VERSION, (), "")
    assert node.mirror.state == found.state
    assert node.mirror.refresh() is None
    names = {path.name for path in node.lib64("origin").iterdir()}
    assert {path.name for path in node.driver.directory().iterdir()} <= names
    assert version_of(node.lib64("origin")) == VERSION


def test_for_shares_the_interposers_are_files_and_the_driver_is_behind_them(node: Node) -> None:
    node.refresh()
    lib64 = node.lib64("nvidia")
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1", "libvcuda.so.1"):
        assert not (lib64 / name).is_symlink()
        installed = node.ours / (name if name.endswith(".1") else f"{name}.1")
        assert (lib64 / name).read_bytes() == installed.read_bytes()
        assert (lib64 / name).stat().st_ino != installed.stat().st_ino, "a build writes into the file that is there"
    for soname in ("libcuda", "libnvidia-ml"):
        real = (node.driver.directory() / f"{soname}.so.1").read_bytes()
        named = {path.name for path in lib64.iterdir() if path.read_bytes() == real}
        assert named == {f"{soname}-real.so.1"}
        assert (lib64 / f"{soname}.so.{VERSION}").stat().st_ino == (lib64 / f"{soname}.so.1").stat().st_ino
    assert not list((node.base / "nvidia/lib").glob("libcuda.so*"))
    assert list((node.base / "origin/lib").glob("libcuda.so*"))


@pytest.mark.parametrize("machine", list(Machine))
def test_nodes_of_both_machines_are_served(tmp_path: Path, machine: Machine) -> None:
    driver = make_driver_root(tmp_path / "host", machine=machine.value)
    ours = make_interposers(tmp_path / "ours", machine=machine.value)
    mirror = DriverMirror(tmp_path / "vdriver", MirrorOptions(driver.path, ours, machine), loaded=lambda: VERSION)
    mirror.open()
    found = mirror.refresh()
    assert found is not None
    assert (found.state.refusal, found.state.missing) == ("", ())
    assert (tmp_path / "vdriver/nvidia/lib64/libcuda-real.so.1").exists()
    assert (tmp_path / "vdriver/origin/lib/libcuda.so.1").exists()


def test_programs_can_be_executed(node: Node) -> None:
    node.refresh()
    for flavour in ("nvidia", "origin"):
        said = subprocess.run([node.base / flavour / "bin/nvidia-smi"], capture_output=True, text=True, check=True)
        assert said.stdout == f"nvidia-smi {VERSION}\n"


def test_an_upgrade_of_the_driver_is_mirrored_when_its_module_is_loaded(node: Node) -> None:
    node.refresh()
    before = (node.base / "nvidia").resolve()
    node.driver.install(NEWER)
    assert node.refresh().state.driver == VERSION, "what containers need now is the driver that runs"
    assert version_of(node.lib64("nvidia"), "libcuda-real.so.1") == VERSION
    assert (node.base / "origin/bin/nvidia-smi").read_text().endswith(f"{VERSION}\n"), "a new one would not fit"
    node.driver.load(NEWER)
    found = node.refresh()
    assert found.changed
    assert found.state.driver == NEWER
    assert version_of(node.lib64("origin")) == NEWER
    assert version_of(node.lib64("nvidia"), "libcuda-real.so.1") == NEWER
    assert version_of(before / "lib64", "libcuda-real.so.1") == VERSION, "who started before goes on"
    assert not list(node.lib64("origin").glob(f"*{VERSION}"))


def test_files_that_an_upgrade_removes_stay_in_the_mirror_until_the_module_is_loaded(node: Node) -> None:
    """Package managers replace the driver's files at once, and nodes are rebooted much later."""
    node.refresh()
    node.driver.install(NEWER)
    node.driver.uninstall(VERSION)
    node.refresh()
    assert version_of(node.lib64("nvidia"), "libcuda-real.so.1") == VERSION
    assert (node.base / "origin/bin/nvidia-smi").read_text().endswith(f"{VERSION}\n"), "a new one would not fit"
    assert node.mirror.refresh() is None

    make_interposers(node.ours, content=b"a newer vcuda")
    again = node.restarted()
    found = again.refresh()
    assert found.changed
    assert (found.state.driver, found.trouble) == (VERSION, ())
    assert version_of(node.lib64("nvidia"), "libcuda-real.so.1") == VERSION
    assert (node.lib64("nvidia") / "libcuda.so.1").read_bytes() == (node.ours / "libcuda.so.1").read_bytes()
    assert again.mirror.refresh() is None
    assert again.mirror.collect(()) != ()
    assert (node.lib64("nvidia") / "libcuda-real.so.1").exists(), "the tree it was taken from may go"

    node.driver.load(NEWER)
    assert again.refresh().state.driver == NEWER


def test_a_driver_that_is_not_the_loaded_one_is_mirrored_with_a_warning(node: Node) -> None:
    node.driver.load(OLDER)
    found = node.refresh()
    assert found.state.driver == VERSION
    (sentence,) = found.trouble
    assert f"libraries are of version {VERSION} and the loaded kernel module is of {OLDER}" in sentence


def test_a_new_interposer_is_mirrored_and_the_old_one_is_not_changed(node: Node) -> None:
    node.refresh()
    front = (node.lib64("nvidia") / "libcuda.so.1").resolve()
    before, inode = front.read_bytes(), front.stat().st_ino
    make_interposers(node.ours, content=b"a newer vcuda")
    found = node.refresh()
    assert found.changed
    assert (node.lib64("nvidia") / "libcuda.so.1").read_bytes() == (node.ours / "libcuda.so.1").read_bytes() != before
    assert (front.read_bytes(), front.stat().st_ino) == (before, inode)


def test_other_installations_cost_a_look_and_change_nothing(node: Node) -> None:
    node.refresh()
    for touch in ("usr/lib64/libz.so.1", "usr/bin/ls", "etc/ld.so.cache"):
        path = node.driver.path / touch
        put(path, path.read_bytes() if path.exists() else b"")
        assert not node.refresh().changed, touch
        assert node.mirror.refresh() is None, touch


def test_a_library_that_comes_later_is_mirrored(node: Node) -> None:
    path = node.driver.directory() / f"libnvidia-encode.so.{VERSION}"
    content = path.read_bytes()
    path.unlink()
    node.driver.make_cache()
    node.refresh()
    assert not (node.lib64("nvidia") / "libnvidia-encode.so.1").exists()
    put(path, content)
    node.driver.make_cache()
    assert node.refresh().changed
    assert (node.lib64("nvidia") / "libnvidia-encode.so.1").read_bytes() == content


def test_without_our_library_shares_are_refused_and_whole_gpus_have_their_driver(node: Node) -> None:
    (node.ours / "libcuda.so.1").unlink()
    state = node.refresh().state
    assert state.refusal == (
        "shares cannot start, because nothing would enforce their limits: "
        f"vcuda's library is missing at {node.ours / 'libcuda.so.1'}; install it there or set --library-path"
    )
    assert not (node.lib64("nvidia") / "libcuda.so.1").exists()
    assert version_of(node.lib64("origin")) == VERSION
    make_interposers(node.ours)
    assert node.refresh().state.refusal == ""


def test_a_node_without_any_driver_has_an_empty_mirror(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    node = node_at(DriverRoot(tmp_path / "host"), make_interposers(tmp_path / "ours"), tmp_path / "vdriver")
    state = node.refresh().state
    assert "libcuda.so.1" in state.missing
    assert "no 64-bit libcuda.so.1 and no libnvidia-ml.so.1" in state.refusal
    assert list(node.lib64("origin").iterdir()) == []
    make_driver_root(tmp_path / "host")
    assert node.refresh().state.refusal == ""


def test_what_a_restarted_agent_says_before_it_has_looked_is_what_is_in_place(node: Node) -> None:
    node.refresh()
    assert node.restarted().mirror.state == node.mirror.state
    (node.ours / "libcuda.so.1").unlink()
    node.refresh()
    assert node.restarted().mirror.state == node.mirror.state


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system, where nothing can be hard-linked to."""
    found = Path(tempfile.mkdtemp(prefix="vc-", dir="/dev/shm"))
    assert found.stat().st_dev != tmp_path.stat().st_dev, "this test needs two file systems"
    yield found
    subprocess.run(["rm", "-rf", found], check=True)


@pytest.mark.parametrize("is_far", [False, True], ids=["one file system", "two file systems"])
def test_files_of_the_node_are_copied_once(tmp_path: Path, elsewhere: Path, is_far: bool) -> None:
    driver = make_driver_root(tmp_path / "host")
    node = node_at(driver, make_interposers(tmp_path / "ours"), (elsewhere if is_far else tmp_path) / "vdriver")
    node.refresh()
    name = f"libcuda.so.{VERSION}"
    source = driver.directory() / name
    copies = [node.lib64("nvidia") / "libcuda-real.so.1", node.lib64("origin") / name]
    assert {copy.read_bytes() for copy in copies} == {source.read_bytes()}
    assert len({copy.stat().st_ino for copy in copies}) == 1
    assert copies[0].stat().st_mode & 0o777 == 0o555
    assert node.mirror.refresh() is None

    make_interposers(node.ours, content=b"a newer vcuda")
    inode = copies[0].stat().st_ino
    assert node.refresh().changed
    assert {copy.stat().st_ino for copy in copies} == {inode}, "what was copied before is linked now"

    driver.install(NEWER)
    driver.uninstall(VERSION)
    node.refresh()
    assert version_of(node.lib64("nvidia"), "libcuda-real.so.1") == VERSION
    assert {copy.stat().st_ino for copy in copies} == {inode}
    assert node.mirror.refresh() is None


def test_no_inode_of_the_node_is_in_the_mirror(node: Node) -> None:
    """Security 18: a container that can remount the mirror writable must not reach the node's driver."""
    node.refresh()
    of_the_node = {path.stat().st_ino for path in node.driver.path.rglob("*") if path.is_file()}
    mirrored = [path for path in node.base.rglob("*") if path.is_file()]
    assert len(mirrored) > 10
    assert [path for path in mirrored if path.stat().st_ino in of_the_node] == []


def test_files_that_an_earlier_version_linked_are_copied_in_the_next_tree(node: Node) -> None:
    node.refresh()
    source = node.driver.directory() / f"libcuda.so.{VERSION}"
    mirrored = [node.lib64("nvidia") / "libcuda-real.so.1", node.lib64("origin") / source.name]
    for path in mirrored:
        path.unlink()
        path.hardlink_to(source)
    make_interposers(node.ours, content=b"a newer vcuda")
    assert node.refresh().changed
    assert {path.read_bytes() for path in mirrored} == {source.read_bytes()}
    assert source.stat().st_ino not in {path.stat().st_ino for path in mirrored}


@pytest.mark.root
def test_a_copy_has_the_label_of_its_source(node: Node) -> None:
    """On this machine the kernel only stores it: no SELinux."""
    source, label = node.driver.directory() / f"libcuda.so.{VERSION}", b"system_u:object_r:lib_t:s0"
    os.setxattr(source, "security.selinux", label)
    node.refresh()
    assert os.getxattr(node.lib64("origin") / source.name, "security.selinux") == label


def test_a_process_keeps_what_it_has_mapped_over_upgrade_and_collection(node: Node, tmp_path: Path) -> None:
    """The library that a process runs is neither truncated nor written to, even where its tree is removed."""
    node.refresh()
    held = (node.lib64("nvidia") / "libcuda-real.so.1").resolve()
    content = held.read_bytes()
    script = (
        "import mmap,sys;f=open(sys.argv[1],'rb');m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ);f.close();"
        "print('mapped',flush=True);sys.stdin.readline();sys.stdout.buffer.write(m[:])"
    )
    process = subprocess.Popen([sys.executable, "-c", script, held], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"mapped\n"
    for version in (NEWER, "595.1"):
        node.driver.install(version)
        node.driver.load(version)
        node.refresh()
    node.driver.uninstall(VERSION)
    node.mirror.collect(())
    assert not held.exists()
    assert process.communicate(b"\n", timeout=10)[0] == content


def test_an_agent_that_ends_does_not_finish_a_look(node: Node) -> None:
    node.mirror.stop()
    with pytest.raises(ContainerError, match="not finished, because the agent stops"):
        node.mirror.refresh()
    assert node.restarted().refresh().changed
