"""vcuda's library as it is installed: which files are recognised as its own."""

import platform
from pathlib import Path

import pytest

from deviceplugin.container.driver_mirror.components import find_interposers, interposer_paths
from deviceplugin.container.driver_mirror.elf import Machine
from sandbox.driver_root import make_driver_root, make_interposers, put
from sandbox.elf_file import elf_object

HERE = Machine.here()
OTHER = next(machine for machine in Machine if machine is not HERE)


def test_the_three_objects_are_found_with_the_names_that_programs_open(tmp_path: Path) -> None:
    found = find_interposers(make_interposers(tmp_path), HERE)
    assert found.trouble == ""
    assert {each.path.name: each.names for each in found.objects} == {
        "libvcuda.so.1": ("libvcuda.so.1",),
        "libcuda.so.1": ("libcuda.so.1", "libcuda.so"),
        "libnvidia-ml.so.1": ("libnvidia-ml.so.1", "libnvidia-ml.so"),
    }
    assert {each.path for each in found.objects} == set(interposer_paths(tmp_path))


def test_an_objects_digest_is_that_of_its_content(tmp_path: Path) -> None:
    digests = [
        {each.digest for each in find_interposers(make_interposers(tmp_path / name, content=content), HERE).objects}
        for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two"))
    ]
    assert digests[0] == digests[1]
    assert not digests[0] & digests[2]
    assert len(digests[0]) == 3


def test_a_file_that_is_not_the_interposer_is_rejected_with_the_reason(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    driver = elf_object("libcuda.so.1", machine=platform.machine())
    other = elf_object("libother.so.1", machine=platform.machine())
    for name, content, complaint in (
        ("libvcuda.so.1", None, "vcuda's library is missing at"),
        ("libnvidia-ml.so.1", None, "/libnvidia-ml.so.1; install it there"),
        ("libcuda.so.1", b"\x7fELF", "libcuda.so.1 is damaged"),
        ("libcuda.so.1", b"text", "libcuda.so.1 is damaged"),
        (
            "libcuda.so.1",
            driver,
            "is not vcuda's: it should be called libcuda.so.1 and need libvcuda.so.1 and libcuda-real.so.1",
        ),
        ("libvcuda.so.1", other, "libvcuda.so.1 is not vcuda's: it should be called libvcuda.so.1"),
    ):
        with subtests.test(complaint=complaint):
            (make_interposers(tmp_path) / name).unlink()
            if content is not None:
                put(tmp_path / name, content)
            rejected(tmp_path, complaint)
    rejected(make_interposers(tmp_path / "other", machine=OTHER.value), "not for this machine")


def rejected(directory: Path, complaint: str) -> None:
    found = find_interposers(directory, HERE)
    assert found.objects == ()
    assert complaint in found.trouble
    assert "\n" not in found.trouble


def test_the_driver_directory_is_never_taken_for_the_interposers(tmp_path: Path) -> None:
    root = make_driver_root(tmp_path)
    put(root.directory() / "libvcuda.so.1", elf_object("libvcuda.so.1", machine=platform.machine()))
    assert "libcuda.so.1 is not vcuda's" in find_interposers(root.directory(), HERE).trouble
