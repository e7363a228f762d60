"""Paths of the node below a driver root: links are followed as they would be there, and never out of it."""

import os
from pathlib import Path

import pytest

from deviceplugin.driver_root import DriverRoot


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    (tmp_path / "secret").write_text("outside")
    base = tmp_path / "host"
    for directory in ("usr/lib64/nvidia", "etc/alternatives", "usr/bin", "opt"):
        (base / directory).mkdir(parents=True)
    (base / "usr/lib64/libcuda.so.580").write_text("driver")
    return DriverRoot(base)


def link(root: DriverRoot, path: str, target: str) -> None:
    (root.path / path).symlink_to(target)


def test_plain_paths_are_below_the_root(root: DriverRoot) -> None:
    assert root.resolve("/usr/lib64/libcuda.so.580") == root.path / "usr/lib64/libcuda.so.580"
    assert root.resolve("/usr/./lib64//nvidia/..") == root.path / "usr/lib64"
    assert root.resolve("/usr/lib64/none") is None
    assert root.resolve("/usr/lib64/libcuda.so.580/x") is None


def test_absolute_links_start_again_at_the_root(root: DriverRoot) -> None:
    """As Debian's alternatives do it: library, /etc/alternatives, the driver's own directory."""
    link(root, "usr/lib64/libcuda.so.1", "/etc/alternatives/cuda")
    link(root, "etc/alternatives/cuda", "/usr/lib64/nvidia/libcuda.so.1")
    link(root, "usr/lib64/nvidia/libcuda.so.1", "../libcuda.so.580")
    assert root.resolve("/usr/lib64/libcuda.so.1") == root.path / "usr/lib64/libcuda.so.580"


def test_nothing_above_the_root_is_reached(root: DriverRoot) -> None:
    link(root, "usr/lib64/up", "../../../../../../secret")
    link(root, "usr/lib64/away", str(root.path.parent / "secret"))
    for path in ("/usr/lib64/up", "/usr/lib64/away", "/../secret", "/../../secret"):
        assert root.resolve(path) is None


def test_links_in_a_circle_lead_nowhere(root: DriverRoot) -> None:
    link(root, "usr/lib64/a", "b")
    link(root, "usr/lib64/b", "/usr/lib64/a")
    link(root, "usr/lib64/self", "self/self")
    assert root.resolve("/usr/lib64/a") is None
    assert root.resolve("/usr/lib64/self") is None


@pytest.mark.parametrize("name", ["lib64", "lib", "bin", "sbin"])
def test_where_only_usr_is_mounted_its_namesakes_are_found_in_it(root: DriverRoot, name: str) -> None:
    (root.path / "usr" / name).mkdir(exist_ok=True)
    (root.path / "usr" / name / "file").touch()
    assert root.resolve(f"/{name}/file") == root.path / "usr" / name / "file"
    assert root.resolve("/opt64/file") is None


def test_a_directory_of_the_root_wins_over_its_namesake_in_usr(root: DriverRoot) -> None:
    (root.path / "lib64").mkdir()
    assert root.resolve("/lib64/libcuda.so.580") is None


def test_the_systems_own_root(tmp_path: Path) -> None:
    system = DriverRoot(Path("/"))
    assert system.resolve("/etc/../etc/hostname") == Path(os.path.realpath("/etc/hostname"))
    assert system.resolve(str(tmp_path / "x")) is None


def test_listings_are_sorted_and_empty_where_there_is_nothing(root: DriverRoot) -> None:
    link(root, "usr/lib64/a", "b")
    assert list(root.listing("/lib64")) == ["a", "libcuda.so.580", "nvidia"]
    assert list(root.listing("/none")) == []
    assert list(root.listing("/usr/lib64/libcuda.so.580")) == []


def test_names_that_no_file_system_takes_are_not_there(root: DriverRoot) -> None:
    assert root.resolve("/usr/" + "x" * 300) is None
