"""Native code for tests: what the Makefiles build, and programs of the tests under the library's warnings.

In: targets; or sources, and the flags by which a build differs. Out: the path of the result. A build is made once and
kept in library/build/tests until a native source changes. Processes that build at the same time wait for each other.
Not here: benchmarks' builds.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.library.machine import EMULATOR, LIBRARY, REPOSITORY

BUILT = LIBRARY / "build/tests"
SHARED = ("-shared", "-fPIC")
MEMORY_ERRORS_FATAL = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-pthread", "-O1", "-g", f"-I{LIBRARY}/include", f"-I{LIBRARY}")
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")


_NATIVE = {".c", ".h", ".def", ".map"}
_KEPT_S = 24 * 3600


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made(*words: str, folder: Path = LIBRARY, timeout: float = 1200) -> Path:
    """`words`: targets and settings of the folder's Makefile."""
    with alone(folder / "build/.tests.lock"):
        subprocess.run(["make", "--silent", "-C", folder, *words], check=True, timeout=timeout)
    return folder / "build"


def emulator_made(*words: str) -> Path:
    """`words`: targets and settings of emulator/Makefile."""
    return made(*words, folder=EMULATOR)


def compiled(output: Path, *words: str | Path, timeout: float = 1200) -> Path:
    """`words`: flags, sources and libraries, in the linker's order. A build of temporary files is not kept."""
    if tempfile.gettempdir() in _spelled(words):
        subprocess.run([*_command(words), "-o", output], check=True, timeout=timeout)
    else:
        shutil.copy(kept(output.name, *words, timeout=timeout), output)
    return output


def kept(name: str, *words: str | Path, timeout: float = 1200) -> Path:
    """As `compiled`, where it is kept."""
    built = built_folder() / sha256(f"{_spelled(words)}\0{name}".encode()).hexdigest()[:16] / name
    with alone(built.parent / ".lock"):
        if not built.exists():
            subprocess.run([*_command(words), "-o", built.with_name(".new")], check=True, timeout=timeout)
            built.with_name(".new").replace(built)
    return built


def _command(words: Iterable[str | Path]) -> list[str]:
    return ["gcc", *_FLAGS, *_WARNINGS, *map(str, words)]


def _spelled(words: Iterable[str | Path]) -> str:
    """Wherever the repository lies."""
    return "\0".join(_command(words)).replace(str(REPOSITORY), "")


@cache
def built_folder() -> Path:
    """Of what these native sources and this compiler make. A folder of older sources is removed after a day."""
    content = sha256(subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout)
    for root in (LIBRARY, EMULATOR, REPOSITORY / "tests/library", REPOSITORY / "benchmarks/gpu"):
        for path in sorted(root.rglob("*.*")):
            if path.suffix in _NATIVE and "build" not in path.relative_to(root).parts:
                content.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes())
    folder = BUILT / content.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in BUILT.iterdir():
        if other.stat().st_mtime < time.time() - _KEPT_S:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def runtime(name: str) -> str:
    """The sanitizer's own library, which a program that is not instrumented must have loaded first."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()
