"""The functions of CUDA's driver interface by release, as NVIDIA's headers declare them.

In: a folder with cuda.h, cudaGL.h, cudaEGL.h and cudaVDPAU.h. Out: the exported names in all their versions, and
cuda_releases.txt beside this file: the same for each release since 11.8, committed because PyPI's wheels of so many
releases cannot be installed side by side. `python -m tests.library.cuda_releases` writes it; this is the only part that
needs a network. The headers stay in library/build/headers, where test_cuda_header.py finds them.
"""

import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.library.machine import LIBRARY

LIST = Path(__file__).with_name("cuda_releases.txt")
FETCHED = LIBRARY / "build/headers"
_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
_FOREIGN = ("GL/gl.h", "vdpau/vdpau.h")  # of other packages; empty ones do, for nothing is compiled
_WAYS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
_DECLARED = re.compile(r"(static inline )?\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Za-z]\w*)\s*\(")
_WHEELS = {
    "nvidia-cuda-runtime-cu11": ("11.8.89",),
    "nvidia-cuda-runtime-cu12": (
        "12.0.146",
        "12.1.105",
        "12.2.140",
        "12.3.101",
        "12.4.127",
        "12.5.82",
        "12.6.77",
        "12.8.90",
        "12.9.79",
    ),
    "nvidia-cuda-runtime": ("13.0.96", "13.1.80", "13.2.86", "13.3.29", "13.4.92", "13.5.37"),
}
_HEAD = """\
# The functions that cuda.h, cudaGL.h, cudaEGL.h and cudaVDPAU.h declare, in all versions, by the release that brought
# them. Written by `python -m tests.library.cuda_releases` from PyPI's wheels. No release since 11.8 has removed one.
"""


def declared(include: Path) -> frozenset[str]:
    """Exported names; a function that a header defines itself is none."""
    with TemporaryDirectory() as foreign:
        for each in _FOREIGN:
            (Path(foreign) / each).parent.mkdir(exist_ok=True)
            (Path(foreign) / each).touch()
        text = "".join(_preprocessed(include, Path(foreign), header, way) for header in _HEADERS for way in _WAYS)
    return frozenset(name for inline, name in _DECLARED.findall(text) if not inline)


def listed() -> dict[str, frozenset[str]]:
    """What each release has, oldest first."""
    found: dict[str, frozenset[str]] = {}
    so_far: frozenset[str] = frozenset()
    for release, names in re.findall(r"^(\d+\.\d+)\n((?:  .*\n)*)", LIST.read_text(), flags=re.MULTILINE):
        so_far |= frozenset(names.split())
        found[release] = so_far
    return found


def fetched() -> list[Path]:
    """The folders with headers of other releases than the locked ones, as far as they were fetched."""
    return sorted(path.parent for path in FETCHED.glob("*/nvidia/*/include/cuda.h"))


def _preprocessed(include: Path, foreign: Path, header: str, way: tuple[str, ...]) -> str:
    command = ["gcc", "-E", "-P", "-x", "c", f"-I{include}", f"-I{foreign}", *way, "-"]
    source = f"#include <cuda.h>\n#include <{header}>\n"
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True, timeout=60).stdout


def _fetch(distribution: str, version: str) -> tuple[str, Path]:
    """The release, and the folder with its headers."""
    release = ".".join(version.split(".")[:2])
    folder = FETCHED / release
    if not folder.exists():
        with TemporaryDirectory() as wheels:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", wheels]
            subprocess.run([*pip, f"{distribution}=={version}"], check=True)
            (wheel,) = Path(wheels).iterdir()
            with zipfile.ZipFile(wheel) as archive:
                headers = [
                    name
                    for name in archive.namelist()
                    if re.search(r"/include/(cuda|cuda\w*Typedefs|cuda(GL|EGL|VDPAU))\.h$", name)
                ]
                archive.extractall(folder, headers)
    (include,) = folder.glob("nvidia/*/include")
    return release, include


def main() -> None:
    """Every release's wheel is fetched once; the list is written from all of them."""
    parts, so_far = [_HEAD], frozenset[str]()
    for distribution, versions in _WHEELS.items():
        for version in versions:
            release, include = _fetch(distribution, version)
            names = declared(include)
            if so_far - names:
                raise SystemExit(
                    f"CUDA {release} has no longer {', '.join(sorted(so_far - names))}: extend the list's form"
                )
            new = " ".join(sorted(names - so_far))
            wrapped = textwrap.wrap(new, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            parts.append("\n".join([release, *wrapped]) + "\n")
            so_far |= names
    LIST.write_text("".join(parts))


if __name__ == "__main__":
    main()
