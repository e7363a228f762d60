"""Lays out what a run needs in the scratch directory.

In: built files, a C compiler. Out: `ours` and `native` (driver directories), `programs`. Files are copied, so that a
later build does not change the run.
"""

import shutil
from pathlib import Path

from benchmarks.gpu.build import LIBRARY, OURS, Build, call, cflags, compiler
from benchmarks.gpu.driver import Driver

SOURCES = (
    LIBRARY / "programs/overhead.c",
    LIBRARY / "programs/workload.c",
    *sorted((Path(__file__).parent / "native").glob("*.c")),
)


def lay_out(build: Build, driver: Driver, scratch: Path) -> None:
    ours, native, programs = scratch / "ours", scratch / "native", scratch / "programs"
    for directory in (ours, native, programs):
        directory.mkdir()
    for name in OURS:
        shutil.copy2(build.ours / name, ours / name)
    (ours / "libcuda-real.so.1").symlink_to(driver.cuda)
    (ours / "libnvidia-ml-real.so.1").symlink_to(driver.nvml)
    (native / "libcuda.so.1").symlink_to(driver.cuda)
    (native / "libnvidia-ml.so.1").symlink_to(driver.nvml)
    for source in SOURCES:
        compile_program(build, source, programs / source.stem)


def compile_program(build: Build, source: Path, output: Path) -> None:
    """Linked against the emulated libcuda.so.1 by SONAME; the driver is chosen when the program starts."""
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", f"-I{LIBRARY}", f"-I{LIBRARY}/include", *cflags()]
    call(compiler(), *flags, "-o", output, source, build.driver / "libcuda.so.1", "-ldl", "-lpthread")
