"""Builds the library and the emulated driver: by their Makefiles where there is make, else with a C compiler alone.

In: the repository, $CC or gcc, cc or clang, and CFLAGS. Out: the files of both, or CannotBuild with one sentence. Not
here: warnings; the Makefiles judge them for those who change the code, here none stops a run.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = REPOSITORY / "library"
EMULATOR = REPOSITORY / "emulator"
COMPILERS = ("gcc", "cc", "clang")
OURS = ("libvcuda.so.1", "libcuda.so.1", "libnvidia-ml.so.1")
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
_TIMEOUT_S = 300
_COMMON = ("-std=c11", "-D_GNU_SOURCE", "-fPIC", "-pthread", "-fvisibility=hidden")


class CannotBuild(Exception):  # noqa: N818 - a fact about the machine
    """There is no compiler, or it failed; the message says which."""


@dataclass(frozen=True, slots=True)
class Build:
    """Directories of built files: `ours` has the interposer, `driver` the emulated driver."""

    ours: Path
    driver: Path


@dataclass(frozen=True, slots=True)
class Shared:
    """A shared library as its Makefile builds it; `sources` are patterns of files under `root`."""

    path: Path
    root: Path
    includes: tuple[Path, ...]
    sources: tuple[str, ...]
    link: tuple[str, ...]


def build(scratch: Path) -> Build:
    """By make in the repository, so that a second run compiles nothing; without make into `scratch`."""
    if shutil.which("make"):
        by_make()
        return Build(LIBRARY / "build/interposer", EMULATOR / "build")
    made = Build(scratch / "build/ours", scratch / "build/driver")
    by_compiler(made, scratch / "build")
    return made


def compiler() -> str:
    for name in filter(None, (os.environ.get("CC"), *COMPILERS)):
        if shutil.which(name):
            return name
    raise CannotBuild(f"no C compiler is here: none of {', '.join(COMPILERS)} is in PATH, and CC names none")


def cflags() -> list[str]:
    """The caller's, or the Makefiles' default."""
    return os.environ.get("CFLAGS", "-O2 -g").split()


def by_make() -> None:
    given = f"CFLAGS={' '.join(cflags())} -Wno-error"
    for folder, target in ((EMULATOR, "driver"), (LIBRARY, "all")):
        call("make", "--silent", "-C", folder, f"CC={compiler()}", given, target)


def by_compiler(made: Build, scratch: Path) -> None:
    objects, stubs = scratch / "objects", scratch / "stubs"
    for folder in (made.ours, made.driver, objects, stubs):
        folder.mkdir(parents=True)
    for name in ("libcuda-real.so.1", "libnvidia-ml-real.so.1"):
        call(*_cc(), "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", stubs / name, "-x", "c", os.devnull)
    for part in ("cuda", "nvml"):
        folder = LIBRARY / "interposer" / part
        call(*_cc(), "-E", "-P", "-x", "c", f"-I{folder}", "-o", scratch / f"{part}.map", folder / "exports.map.in")
    for library in [*_driver(made.driver), *_ours(made.ours, scratch, stubs)]:
        compiled = _compiled(library, objects / library.path.parent.name / library.path.name)
        call(*_cc(), "-shared", "-o", library.path, *compiled, *library.link, "-ldl")


def call(*command: object) -> None:
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except OSError as error:
        raise CannotBuild(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line.lower()), done.stderr.strip()[-300:])
        raise CannotBuild(f"{command[0]} ended with {done.returncode}: {said}")


def _cc() -> list[str]:
    return [compiler(), *_COMMON, *cflags()]


def _driver(target: Path) -> list[Shared]:
    parts = {"libcuda.so.1": ("cuda/*.c", "cuda/memory/*.c"), "libnvidia-ml.so.1": ("nvml/*.c",)}
    bound = ("-Wl,-Bsymbolic", "-Wl,-z,nodelete")
    return [
        Shared(
            target / name,
            EMULATOR,
            (EMULATOR, LIBRARY / "include"),
            ("*.c", "shared/*.c", *sources),
            (f"-Wl,-soname,{name}", *(bound if name == "libcuda.so.1" else ())),
        )
        for name, sources in parts.items()
    ]


def _ours(target: Path, scratch: Path, stubs: Path) -> list[Shared]:
    """The state first: the others need it."""
    bound = ("-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,-Bsymbolic", "-Wl,--enable-new-dtags")
    parts = {
        "libvcuda.so.1": (("state/*.c",), LIBRARY / "interposer/state/exports.map", ()),
        "libcuda.so.1": (("cuda/*.c", "cuda/*/*.c"), scratch / "cuda.map", ("libcuda-real.so.1",)),
        "libnvidia-ml.so.1": (("nvml/*.c",), scratch / "nvml.map", ("libnvidia-ml-real.so.1",)),
    }
    made = []
    for name, (sources, names, real) in parts.items():
        needed = [str(stubs / each) for each in real] + ([str(target / "libvcuda.so.1")] if real else [])
        link = (f"-Wl,-soname,{name}", *bound, "-Wl,-rpath,$ORIGIN", f"-Wl,--version-script,{names}")
        needs = ("-Wl,--no-as-needed", *needed, "-Wl,--as-needed") if needed else ()
        includes = (LIBRARY, LIBRARY / "include")
        made.append(Shared(target / name, LIBRARY / "interposer", includes, sources, (*link, *needs)))
    return made


def _compiled(library: Shared, objects: Path) -> list[Path]:
    """Its objects, as many at a time as there are cores."""
    objects.mkdir(parents=True)
    sources = sorted(path for pattern in library.sources for path in library.root.glob(pattern))
    places = [objects / f"{number}.o" for number in range(len(sources))]
    includes = [f"-I{path}" for path in library.includes]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [
            pool.submit(call, *_cc(), *includes, "-c", "-o", place, source)
            for place, source in zip(places, sources, strict=True)
        ]
    for each in waiting:
        each.result()
    return places
