"""The finished tree under the real loader: programs get the interposer, also after ldconfig."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions
from sandbox.driver_root import VERSION, make_driver_root, make_interposers

NATIVE = Path(__file__).parent / "native"
LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin") or "ldconfig"


@dataclass(frozen=True, slots=True)
class Built:
    """A mirror of a driver that works, and a program for it."""

    base: Path
    program: Path

    def run(self, flavour: str, *names: str, library_path: Path | None = None) -> str:
        path = library_path or self.base / flavour / "lib64"
        environment = {"LD_LIBRARY_PATH": str(path), "PATH": os.environ["PATH"]}
        command = [str(self.program), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def compile_shared(source: str, target: Path, soname: str, *flags: str | Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    options = [
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        f"-Wl,-soname,{soname}",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--no-as-needed",
    ]
    subprocess.run(["gcc", *options, "-o", target, NATIVE / source, *flags], check=True, timeout=60)
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    home = tmp_path_factory.mktemp("loading")
    real = compile_shared("driver.c", home / "made/libcuda.so.1", "libcuda.so.1")
    driver = make_driver_root(home / "host", objects={"libcuda.so.1": real})

    ours = make_interposers(home / "ours")
    stubs = home / "stubs"
    alias = compile_shared("driver.c", stubs / "libcuda-real.so.1", "libcuda-real.so.1")
    empty = home / "empty.c"
    empty.touch()
    state = compile_shared(str(empty), ours / "libvcuda.so.1", "libvcuda.so.1")
    compile_shared("front.c", ours / "libcuda.so.1", "libcuda.so.1", state, alias, "-ldl")

    program = home / "program"
    command: list[str | Path] = ["gcc", "-Wall", "-Werror", "-o", program, NATIVE / "program.c", real, "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    options = MirrorOptions(driver.path, ours, Machine.here())
    mirror = DriverMirror(home / "vdriver", options, loaded=lambda: VERSION)
    mirror.open()
    found = mirror.refresh()
    assert found is not None
    assert found.state.refusal == ""
    return Built(home / "vdriver", program)


def test_a_program_gets_the_interposer_and_through_it_the_driver(built: Built) -> None:
    """Its version is a function that the interposer does not have, so the loader finds the driver's."""
    assert built.run("nvidia") == "101 13000"


def test_another_name_opens_the_same_library(built: Built) -> None:
    assert built.run("nvidia", "libcuda.so.1", "libcuda.so") == "101 13000 libcuda.so.1=101 libcuda.so=101"


@pytest.mark.parametrize(("flavour", "answer"), [("nvidia", 101), ("origin", 1)])
def test_opening_the_versioned_file_first_gives_the_same_library(built: Built, flavour: str, answer: int) -> None:
    """Glibc answers the second name with what the first has brought, because both files have one SONAME."""
    script = "import ctypes, sys; print(*(ctypes.CDLL(name).cuInit(0) for name in sys.argv[1:]))"
    command = [sys.executable, "-c", script, f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so"]
    environment = {"LD_LIBRARY_PATH": str(built.base / flavour / "lib64"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == [str(answer)] * 3


def test_whole_gpus_get_the_driver_alone(built: Built) -> None:
    names = ("libcuda.so.1", "libcuda.so", "libcuda-real.so.1", "libvcuda.so.1")
    said = built.run("origin", *names)
    assert said == "1 13000 libcuda.so.1=1 libcuda.so=1 libcuda-real.so.1=-1 libvcuda.so.1=-1"


def test_ldconfig_in_an_image_leaves_the_interposer_in_front(built: Built, tmp_path: Path) -> None:
    """It moves links to the newest file of a SONAME, which the driver's shares with the interposer; not plain files."""
    copy = tmp_path / "lib64"
    shutil.copytree(built.base / "nvidia/lib64", copy, symlinks=True)
    subprocess.run([LDCONFIG, "-n", copy], check=True, capture_output=True, timeout=20)
    assert not (copy / "libcuda.so.1").is_symlink()
    assert built.run("nvidia", "libcuda.so", library_path=copy) == "101 13000 libcuda.so=101"
