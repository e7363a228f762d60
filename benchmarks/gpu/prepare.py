"""Builds what a run needs in the scratch directory.

In: the repository, gcc and make. Out: `ours` and `native` (driver directories), `programs`. Files are copied, so that
a later build does not change the run.
"""

import shutil
import subprocess
from pathlib import Path

from benchmarks.gpu.driver import EMULATED, REPOSITORY, Driver

LIBRARY = REPOSITORY / "library"
OURS = ("libcuda.so.1", "libnvidia-ml.so.1", "libvcuda.so.1")
SOURCES = (
    LIBRARY / "programs/overhead.c",
    LIBRARY / "programs/workload.c",
    Path(__file__).parent / "native/allocate.c",
    Path(__file__).parent / "native/pace.c",
)


def build_library() -> Path:
    for folder in (EMULATED.parent, LIBRARY):
        subprocess.run(["make", "--silent", "-C", str(folder), "all"], check=True, timeout=300)
    return LIBRARY / "build"


def lay_out(build: Path, driver: Driver, scratch: Path) -> None:
    ours, native, programs = scratch / "ours", scratch / "native", scratch / "programs"
    for directory in (ours, native, programs):
        directory.mkdir()
    for name in OURS:
        shutil.copy2(build / "interposer" / name, ours / name)
    (ours / "libcuda-real.so.1").symlink_to(driver.cuda)
    (ours / "libnvidia-ml-real.so.1").symlink_to(driver.nvml)
    (native / "libcuda.so.1").symlink_to(driver.cuda)
    (native / "libnvidia-ml.so.1").symlink_to(driver.nvml)
    for source in SOURCES:
        compile_program(source, programs / source.stem)


def compile_program(source: Path, output: Path) -> None:
    """Linked against the emulated libcuda.so.1 by SONAME; the driver is chosen when the program starts."""
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{LIBRARY}", f"-I{LIBRARY}/include"]
    driver = str(EMULATED / "libcuda.so.1")
    subprocess.run(["gcc", *flags, "-o", str(output), str(source), driver, "-ldl"], check=True, timeout=60)
