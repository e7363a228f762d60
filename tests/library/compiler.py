"""Native code for tests: what library/Makefile builds, and programs of their own under the library's warnings.

In: targets; or sources, and the flags by which a build differs. Out: where it lies. Not here: benchmarks' builds.
"""

import subprocess
from pathlib import Path

from tests.library.machine import EMULATOR, LIBRARY

SHARED = ("-shared", "-fPIC")
MEMORY_ERRORS_FATAL = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-pthread", "-O1", "-g", f"-I{LIBRARY}/include", f"-I{LIBRARY}")
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")


def made(*words: str, folder: Path = LIBRARY, timeout: float = 240) -> Path:
    """`words`: targets and settings of the folder's Makefile."""
    subprocess.run(["make", "--silent", "-C", folder, *words], check=True, timeout=timeout)
    return folder / "build"


def emulator_made(*words: str) -> Path:
    """`words`: targets and settings of emulator/Makefile."""
    return made(*words, folder=EMULATOR)


def compiled(output: Path, *words: str | Path, timeout: float = 110) -> Path:
    """`words`: flags, sources and libraries, in the linker's order."""
    subprocess.run(["gcc", *_FLAGS, *_WARNINGS, "-o", output, *words], check=True, timeout=timeout)
    return output


def runtime(name: str) -> str:
    """The sanitizer's own library, which a program that is not instrumented must have loaded first."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()
