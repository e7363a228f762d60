"""Looking for the driver's files: through the loader's cache, without one, and in the mirror itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.container.driver_mirror.components import WHOLE
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.search import Finding, Kept, find_libraries, find_programs, identity_of
from deviceplugin.driver_root import LIBRARY_DIRECTORIES
from deviceplugin.driver_root import DriverRoot as Root
from sandbox.driver_root import LIBRARIES, VERSION, DriverRoot, make_driver_root, put
from sandbox.elf_file import elf_object


@pytest.fixture
def node(tmp_path: Path) -> DriverRoot:
    return make_driver_root(tmp_path / "host", machine="x86_64")


def find(node: DriverRoot, machine: Machine = Machine.X86_64, kept: Kept | None = None) -> Finding:
    return find_libraries(Root(node.path), WHOLE.libraries, machine, kept=kept)


def names(finding: Finding, bits: int = 64) -> set[str]:
    return {each.name for each in finding.libraries if each.bits == bits}


EVERYTHING = {name.format(version=VERSION) for name, _, _ in LIBRARIES}


def test_every_library_is_found_once_in_both_word_sizes_with_all_its_names(node: DriverRoot) -> None:
    finding = find(node)
    assert (names(finding), names(finding, 32)) == (EVERYTHING, EVERYTHING)
    assert len(finding.libraries) == 2 * len(LIBRARIES)
    (cuda,) = (each for each in finding.libraries if each.name == f"libcuda.so.{VERSION}" and each.bits == 64)
    assert cuda.source.path == node.directory() / cuda.name
    assert set(cuda.names) == {cuda.name, "libcuda.so.1", "libcuda.so"}
    assert (cuda.elf.soname, cuda.stem, cuda.version) == ("libcuda.so.1", "libcuda", VERSION)
    assert finding.trouble == ()


def test_libraries_of_other_machines_are_not_found(node: DriverRoot) -> None:
    assert find(node, Machine.AARCH64).libraries == ()


def test_an_arm_node(tmp_path: Path) -> None:
    directories = {64: "usr/lib/aarch64-linux-gnu", 32: "usr/lib/arm-linux-gnueabihf"}
    node = DriverRoot(tmp_path, machine="aarch64", directories=directories)
    node.install()
    finding = find(node, Machine.AARCH64)
    assert (names(finding), names(finding, 32)) == (EVERYTHING, EVERYTHING)


def test_names_that_only_begin_alike_are_not_found(node: DriverRoot) -> None:
    for name in ("libcudart.so.12", "libcudnn.so.9", "libGLU.so.1"):
        put(node.directory() / name, elf_object(name))
    node.make_cache()
    assert names(find(node)) == EVERYTHING


def test_without_a_usable_cache_well_known_directories_are_searched(
    node: DriverRoot, subtests: pytest.Subtests
) -> None:
    cache = node.path / "etc/ld.so.cache"
    whole = cache.read_bytes()
    spoils: dict[str, tuple[Callable[[], object], int]] = {
        "missing": (lambda: None, 0),
        "garbage": (lambda: put(cache, b"garbage"), 1),
        "torn": (lambda: put(cache, whole[:1000]), 1),
        "empty": (lambda: put(cache, b""), 1),
        "link to itself": (lambda: cache.symlink_to("/etc/ld.so.cache"), 0),
        "directory": (cache.mkdir, 1),
    }
    for name, (spoil, complaints) in spoils.items():
        with subtests.test(cache=name):
            cache.unlink(missing_ok=True)
            spoil()
            finding = find(node)
            assert (names(finding), names(finding, 32)) == (EVERYTHING, EVERYTHING)
            assert len(finding.trouble) == complaints
            assert all("\n" not in sentence and str(cache) in sentence for sentence in finding.trouble)


def test_a_cache_that_knows_nothing_of_the_driver_is_as_good_as_none(tmp_path: Path) -> None:
    node = DriverRoot(tmp_path, machine="x86_64")
    put(node.directory() / "libz.so.1", elf_object("libz.so.1"))
    node.make_cache()
    node.install(cache=False)
    assert names(find(node)) == EVERYTHING


def test_every_well_known_directory_is_searched(tmp_path: Path) -> None:
    found = {}
    for number, directory in enumerate(each for each in LIBRARY_DIRECTORIES if each.startswith("/usr")):
        node = DriverRoot(tmp_path / str(number), machine="x86_64", directories={64: directory.lstrip("/")})
        node.install(cache=False)
        found[directory] = names(find(node))
    assert found == dict.fromkeys(found, EVERYTHING)
    assert len(found) > 10


def test_a_node_of_which_only_usr_is_mounted(tmp_path: Path) -> None:
    """Debian's cache says /lib/x86_64-linux-gnu, and /lib is a link that is not there."""
    node = DriverRoot(tmp_path, machine="x86_64", directories={64: "lib/x86_64-linux-gnu"})
    node.install()
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / "lib/x86_64-linux-gnu").rename(tmp_path / "usr/lib/x86_64-linux-gnu")
    (tmp_path / "lib").rmdir()
    assert names(find(node)) == EVERYTHING


def test_debians_alternatives_lead_to_the_drivers_own_directory(tmp_path: Path) -> None:
    node = DriverRoot(tmp_path, machine="x86_64", directories={64: "usr/lib/x86_64-linux-gnu/nvidia/current"})
    node.install()
    public = tmp_path / "usr/lib/x86_64-linux-gnu"
    (tmp_path / "etc/alternatives").mkdir()
    (public / "libcuda.so.1").symlink_to("/etc/alternatives/libcuda.so.1")
    (tmp_path / "etc/alternatives/libcuda.so.1").symlink_to("/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1")
    finding = find(node)
    assert len([each for each in finding.libraries if each.stem == "libcuda"]) == 1
    assert names(finding) == EVERYTHING


def test_what_is_no_library_is_passed_over_and_what_is_broken_is_named(node: DriverRoot) -> None:
    (node.path / "etc/ld.so.cache").unlink()
    put(node.directory() / "libGL.so", b"/* GNU ld script */ INPUT(libGL.so.1)")
    put(node.directory() / "libnvoptix.so.1", b"\x7fELF and then nothing")
    (node.directory() / "libEGL.so").symlink_to("nowhere")
    (node.directory() / "libGLX.so").mkdir()
    finding = find(node)
    assert names(finding) == EVERYTHING
    (sentence,) = finding.trouble
    assert "libnvoptix.so.1 is damaged" in sentence


def test_an_identity_changes_with_the_file_and_not_with_its_links(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert identity_of(path) == identity_of(tmp_path) == ""
    put(path, b"one")
    first = identity_of(path)
    (tmp_path / "b").hardlink_to(path)
    assert identity_of(path) == identity_of(tmp_path / "b") == first
    put(path, b"two")
    assert identity_of(path) not in ("", first)
    assert identity_of(tmp_path / "b") == first


def test_programs_are_found_in_the_order_of_path_where_they_can_be_executed(node: DriverRoot) -> None:
    put(node.path / "usr/sbin/nvidia-smi", b"not executable")
    put(node.path / "usr/local/bin/nvidia-debugdump", b"#!", mode=0o755)
    (node.path / "usr/bin/gpu-client").mkdir()
    (node.path / "usr/bin/nvidia-persistenced").symlink_to("/usr/bin/nvidia-smi")
    wanted = ("nvidia-smi", "nvidia-debugdump", "gpu-client", "nvidia-persistenced", "none")
    found = {name: source.path for name, source in find_programs(Root(node.path), wanted).items()}
    assert found == {
        "nvidia-smi": node.path / "usr/bin/nvidia-smi",
        "nvidia-debugdump": node.path / "usr/local/bin/nvidia-debugdump",
        "nvidia-persistenced": node.path / "usr/bin/nvidia-smi",
    }


def test_the_mirror_itself_has_what_was_removed_of_the_version_that_is_kept(tmp_path: Path, node: DriverRoot) -> None:
    mirror = DriverRoot(tmp_path / "mirror", machine="x86_64", directories={64: "lib64"})
    mirror.install(cache=False)
    node.install("590.10")
    node.uninstall(VERSION)
    kept = Kept(VERSION, (mirror.directory(), tmp_path / "none"), mirror.path / "usr/bin")
    finding = find(node, kept=kept)
    (cuda,) = (each for each in finding.libraries if each.name == f"libcuda.so.{VERSION}")
    assert cuda.source.path == mirror.directory() / f"libcuda.so.{VERSION}"
    assert "libcuda.so.1" in cuda.names
    assert not [
        each for each in finding.libraries if each.source.path.is_relative_to(mirror.path) and "1.7" in each.name
    ]
    programs = find_programs(Root(node.path), ["nvidia-smi"], kept=kept)
    assert programs["nvidia-smi"].path == mirror.path / "usr/bin/nvidia-smi"
