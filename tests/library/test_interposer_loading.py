"""However a program reaches the driver's libraries, the interposers answer, and both share one state."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.library.compiler import compiled
from tests.library.interposed import GIB, Container, device

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_NATIVE = Path(__file__).parent / "native/interposer_programs"


def link_name(container: Container, name: str, *, copy: bool) -> None:
    """Ours under another name too, as the mirror makes it: the same file, or where it cannot be, a copy."""
    if copy:
        shutil.copy(container.driver / CUDA, container.driver / name)
    else:
        (container.driver / name).hardlink_to(container.driver / CUDA)


def program(directory: Path, source: str, *flags: str) -> Path:
    return compiled(directory / Path(source).stem, _NATIVE / source, *flags)


@pytest.mark.parametrize("order", [(CUDA, NVML), (NVML, CUDA), (NVML, CUDA, NVML)])
def test_in_any_order(container: Container, order: tuple[str, ...]) -> None:
    found = container.run("open_libraries", *order).value
    assert found[order.index(CUDA)] == [CUDA, "cuInit"]
    assert container.run("in_order", "shown_by_nvml", "shown").errors == ""


@pytest.mark.parametrize("copy", [False, True], ids=["hard link", "copy"])
@pytest.mark.parametrize("name", ["libcuda.so", "libcuda.so.580.95.05"])
@pytest.mark.parametrize("first", [True, False])
def test_by_every_name_that_the_mirror_gives_it(container: Container, name: str, *, first: bool, copy: bool) -> None:
    link_name(container, name, copy=copy)
    found = container.run("open_libraries", *([name, CUDA] if first else [CUDA, name])).value
    assert [symbol for _, symbol in found] == ["cuInit", "cuInit"]
    assert {file for file, _ in found} <= {CUDA, name}


def test_the_interposer_is_found_by_its_own_name_after_the_driver_was_opened(container: Container) -> None:
    """glibc answers libcuda.so.1 with whatever has that SONAME already: after the real file there is no interposer."""
    link_name(container, "libcuda.so", copy=False)
    real = str((container.driver / "libcuda-real.so.1").resolve())
    found = container.run("open_libraries", real, "libcuda.so", CUDA).value
    assert found[1] == ["libcuda.so", "cuInit"]
    container.grant(device(0))
    assert container.run("shown_after", real, "libcuda.so").value[1] == 2 * GIB


def test_nvml_first_does_not_bring_the_real_driver_in(container: Container) -> None:
    """The trap of libraries that open the real libcuda from nvmlInit: the next dlopen of libcuda.so.1 finds it."""
    found = container.run("in_order", "shown_by_nvml", "shown").value
    container.grant(device(0))
    assert container.run("in_order", "shown_by_nvml", "shown").value[1]["total"] == 2 * GIB
    assert found[1]["total"] == 80 * GIB


def test_both_libraries_share_one_state(container: Container) -> None:
    container.grant(device(0))
    nvml_slot, cuda_slot = container.run("slots_of_both").value
    assert nvml_slot == cuda_slot == 0
    assert list(container.slots()) == [0]


@pytest.mark.parametrize(
    ("tags", "ours"), [("--enable-new-dtags", True), ("--disable-new-dtags", False)], ids=["RUNPATH", "RPATH"]
)
def test_a_linked_program(container: Container, short_tmp: Path, tags: str, *, ours: bool) -> None:
    """A program with a DT_RPATH to the real directory bypasses the interposer, as any library found by path."""
    real = short_tmp / "real"
    real.mkdir()
    (real / CUDA).symlink_to((container.driver / "libcuda-real.so.1").resolve())
    container.grant(device(0))
    linked = program(short_tmp, "total.c", f"-L{real}", "-l:libcuda.so.1", f"-Wl,{tags}", f"-Wl,-rpath,{real}")
    with container.start_program(linked) as process:
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert int(out) == (2 * GIB if ours else 80 * GIB)


@pytest.mark.parametrize("first", ["shown", "shown_by_nvml"])
def test_the_first_call_may_come_from_any_thread(container: Container, first: str) -> None:
    container.grant(device(0))
    outcome = container.run("from_a_thread", first)
    assert outcome.errors == ""
    assert (outcome.value["total"] if first == "shown" else outcome.value["v1"][0]) == 2 * GIB


def test_dlclose_and_open_again(container: Container) -> None:
    container.grant(device(0))
    assert container.run("reopened", 20).value == [2 * GIB] * 20


def test_a_real_driver_that_is_not_there_is_one_clear_refusal(container: Container) -> None:
    (container.driver / "libcuda-real.so.1").unlink()
    refusal = container.run("refused_library", CUDA).value
    assert "libcuda-real.so.1" in refusal
    assert container.run("shown_by_nvml").errors == ""


def test_with_an_empty_environment(container: Container, short_tmp: Path) -> None:
    """As by /etc/ld.so.cache: only the path of the library leads to the interposer."""
    starter = program(
        short_tmp, "total.c", f"-L{container.driver}", "-l:libcuda.so.1", f"-Wl,-rpath,{container.driver}"
    )
    done = subprocess.run([starter], env={}, capture_output=True, text=True, timeout=20, check=True)
    assert (int(done.stdout), done.stderr) == (80 * GIB, "")
