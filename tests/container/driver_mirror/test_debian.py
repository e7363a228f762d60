"""The mirror over NVIDIA's own drivers in Debian's layout: alternatives' links, with and without the loader's cache.

Debian's packages of four drivers (tests/library/debian_drivers.py), of 550 all that the mirror takes. Without a GPU the
driver's programs start through both flavours and say that there is none.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.container.driver_mirror.components import CUDA, NVML, WHOLE
from deviceplugin.container.driver_mirror.elf import Machine, read_elf
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions, MirrorUpdate
from deviceplugin.driver_root import CACHE
from tests.container.driver_mirror.test_loading import LDCONFIG
from tests.library.compiler import made
from tests.library.debian_drivers import PACKAGED, DebianDriver, NoDriverError, debian_driver
from tests.library.machine import REPOSITORY

pytestmark = pytest.mark.thorough

_NO_DRIVER = 9
"""What nvidia-smi ends with and nvmlInit answers where no kernel module is loaded."""
_WITHOUT_GPU = "couldn't communicate with the NVIDIA driver"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A driver as installed below `root`, and the trees that containers would mount."""

    driver: DebianDriver
    root: Path
    ours: Path
    base: Path
    update: MirrorUpdate

    def lib64(self, flavour: str) -> Path:
        return self.base / flavour / "lib64"

    def run(self, flavour: str, *command: object) -> subprocess.CompletedProcess[str]:
        environment = {"LD_LIBRARY_PATH": str(self.lib64(flavour)), "PATH": os.environ["PATH"]}
        words = list(map(str, command))
        return subprocess.run(
            words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def inside(self, flavour: str, name: str, *args: object) -> Any:
        done = self.run(flavour, sys.executable, "-m", "tests.library.inside", name, json.dumps(args))
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


@contextmanager
def _mirrored(name: str, *, cache: bool = False, without: str = "") -> Iterator[Mirrored]:
    """The trees are large, so they go at once."""
    try:
        driver = debian_driver(name)
    except NoDriverError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="debian-") as folder:
        root, base = driver.installed_at(Path(folder, "host")), Path(folder, "vdriver")
        for path in root.rglob(f"{without}.so.*") if without else ():
            path.unlink()
        if cache:
            subprocess.run([LDCONFIG, "-r", root], check=True, capture_output=True, timeout=60)
        assert (root / CACHE.lstrip("/")).exists() == cache
        ours = made("interposer") / "interposer"
        mirror = DriverMirror(base, MirrorOptions(root, ours, Machine.here()), loaded=lambda: driver.version)
        mirror.open()
        update = mirror.refresh()
        assert update is not None
        yield Mirrored(driver, root, ours, base, update)


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.root)], ids=["directories", "cache"]
)
def whole(request: pytest.FixtureRequest) -> Iterator[Mirrored]:
    """Driver 550 with all its libraries. The loader's cache needs root, for ldconfig changes its root directory."""
    with _mirrored("550", cache=request.param) as mirrored:
        yield mirrored


@pytest.fixture(scope="module", params=sorted(PACKAGED))
def mirrored(request: pytest.FixtureRequest) -> Iterator[Mirrored]:
    with _mirrored(request.param) as mirrored:
        yield mirrored


def _packaged(driver: DebianDriver) -> Mapping[str, Path]:
    """Every library of the packages that belongs in a mirror, by the name of its file."""
    files = (path for path in driver.root.rglob("lib*.so.*") if path.is_file() and not path.is_symlink())
    return {path.name: path for path in files if path.name.startswith((CUDA, NVML, *WHOLE.libraries))}


def _files(directory: Path) -> Mapping[str, Path]:
    return {path.name: path for path in directory.iterdir() if not path.is_symlink()}


def test_the_state_names_the_version_and_refuses_nothing(whole: Mirrored) -> None:
    state = whole.update.state
    assert (state.driver, state.refusal, whole.update.trouble) == (whole.driver.version, "", ())
    assert whole.update.changed


def test_whole_gpus_get_every_library_of_the_packages_and_each_name_leads_to_its_file(whole: Mirrored) -> None:
    packaged, there = _packaged(whole.driver), whole.lib64("origin")
    assert len(packaged) > 25
    assert _files(there).keys() == packaged.keys()
    for name, source in packaged.items():
        assert (there / name).read_bytes() == source.read_bytes(), name
        assert (there / (read_elf(source).soname or name)).resolve().name == name


def test_shares_get_the_same_with_ours_under_every_name_of_libcuda_and_nvml(whole: Mirrored) -> None:
    there, origin = whole.lib64("nvidia"), whole.lib64("origin")
    fronts = {"libcuda": whole.driver.libcuda, "libnvidia-ml": whole.driver.nvml}
    names = {f"{stem}.so{end}" for stem in fronts for end in ("", ".1", f".{whole.driver.version}")}
    for name in names:
        stem = name.partition(".so")[0]
        assert not (there / name).is_symlink(), name
        assert (there / name).read_bytes() == (whole.ours / f"{stem}.so.1").read_bytes(), name
    for stem, real in fronts.items():
        assert (there / f"{stem}-real.so.1").read_bytes() == real.read_bytes()
    others = {path.name: path.read_bytes() for path in origin.iterdir() if path.name not in names}
    added = {"libcuda-real.so.1", "libnvidia-ml-real.so.1", "libvcuda.so.1"}
    assert {path.name for path in there.iterdir()} == others.keys() | names | added
    assert all((there / name).read_bytes() == content for name, content in others.items())


def _not_found(mirrored: Mirrored) -> set[str]:
    """What the loader does not find of NVIDIA's, and that it finds nothing of NVIDIA's elsewhere."""
    found = mirrored.run("origin", "ldd", *_files(mirrored.lib64("origin")).values()).stdout
    opened = re.findall(r"^\tlib(?:nvidia-|cuda)\S+ => (\S+)/[^/]+ \(", found, flags=re.MULTILINE)
    assert set(opened) <= {str(mirrored.lib64("origin"))}
    return set(re.findall(r"^\t(lib(?:nvidia-|cuda)\S+) => not found$", found, flags=re.MULTILINE))


def test_nothing_is_missing_where_all_packages_are(whole: Mirrored) -> None:
    assert (_not_found(whole), whole.update.state.missing) == (set(), ())


@pytest.mark.parametrize("without", ["libnvidia-gpucomp", "libnvidia-glcore"])
def test_the_library_of_a_package_that_was_left_out_is_named(without: str) -> None:
    with _mirrored("550", without=without) as mirrored:
        lost = f"{without}.so.{mirrored.driver.version}"
        assert _not_found(mirrored) == {lost}
        assert (mirrored.update.state.missing, mirrored.update.state.refusal) == ((lost,), "")


@pytest.mark.parametrize("flavour", ["nvidia", "origin"])
def test_the_driver_s_programs_are_there(whole: Mirrored, flavour: str) -> None:
    programs = {path.name for path in (whole.base / flavour / "bin").iterdir()}
    assert programs == {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-debugdump", "nvidia-smi"}


def test_a_tree_is_not_made_again_where_nothing_changed(whole: Mirrored) -> None:
    options = MirrorOptions(whole.root, whole.ours, Machine.here())
    again = DriverMirror(whole.base, options, loaded=lambda: whole.driver.version)
    again.open()
    update = again.refresh()
    assert update is not None
    assert (update.changed, update.state) == (False, whole.update.state)


def test_nvidia_smi_starts_through_both_flavours_and_says_that_there_is_no_gpu(mirrored: Mirrored) -> None:
    bare = mirrored.run("origin", mirrored.driver.smi)
    for flavour in ("nvidia", "origin"):
        done = mirrored.run(flavour, mirrored.base / flavour / "bin/nvidia-smi")
        assert (done.returncode, done.stdout, done.stderr) == (bare.returncode, bare.stdout, bare.stderr)
        assert done.returncode == _NO_DRIVER
        assert _WITHOUT_GPU in done.stdout


def test_nvml_starts_through_both_flavours_by_every_name(mirrored: Mirrored) -> None:
    for flavour in ("nvidia", "origin"):
        for name in ("libnvidia-ml.so.1", f"libnvidia-ml.so.{mirrored.driver.version}"):
            said = mirrored.inside(flavour, "answers_to_nothing", name, "nvmlInit_v2")
            assert said == {"nvmlInit_v2": str(_NO_DRIVER)}


def test_a_program_in_a_share_gets_ours_by_every_name_and_the_driver_behind_it(mirrored: Mirrored) -> None:
    for name in ("libcuda.so.1", "libcuda.so", f"libcuda.so.{mirrored.driver.version}"):
        found = mirrored.inside("nvidia", "resolved", name, "cuInit", "cuMemAlloc_v2", "cuDeviceGetName")
        places = {symbol: place for symbol, (place, _) in found.items()}
        assert places == {"cuInit": name, "cuMemAlloc_v2": name, "cuDeviceGetName": "libcuda-real.so.1"}
        said = mirrored.inside("nvidia", "answers_to_nothing", name, "cuInit", "cuMemAlloc_v2")
        assert said == {"cuInit": "100", "cuMemAlloc_v2": "3"}
