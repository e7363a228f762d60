"""The functions of CUDA's driver interface by release, as NVIDIA's headers declare them.

In: a folder with cuda.h, cudaGL.h, cudaEGL.h and cudaVDPAU.h. Out: the exported names in all their versions, and
cuda_releases.txt beside this file: the same for each release since 11.8, committed because PyPI's wheels of so many
releases cannot be installed side by side. `python -m tests.library.cuda_releases` writes it. `fetch` is the only part
that needs a network: it keeps the headers of a release in library/build/headers.
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
_FETCHED = LIBRARY / "build/headers"
_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
_FOREIGN = ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h")  # not here; empty ones do: nothing is compiled
_WAYS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
_WANTED = re.compile(r"/include/(cuda|cuda\w*Typedefs|cuda(GL|EGL|VDPAU))\.h$")
_DECLARED = re.compile(r"(static inline )?\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Za-z]\w*)\s*\(")
WHEELS = {
    "11.8": "nvidia-cuda-runtime-cu11==11.8.89",
    "12.0": "nvidia-cuda-runtime-cu12==12.0.146",
    "12.1": "nvidia-cuda-runtime-cu12==12.1.105",
    "12.2": "nvidia-cuda-runtime-cu12==12.2.140",
    "12.3": "nvidia-cuda-runtime-cu12==12.3.101",
    "12.4": "nvidia-cuda-runtime-cu12==12.4.127",
    "12.5": "nvidia-cuda-runtime-cu12==12.5.82",
    "12.6": "nvidia-cuda-runtime-cu12==12.6.77",
    "12.8": "nvidia-cuda-runtime-cu12==12.8.90",
    "12.9": "nvidia-cuda-runtime-cu12==12.9.79",
    "13.0": "nvidia-cuda-runtime==13.0.96",
    "13.1": "nvidia-cuda-runtime==13.1.80",
    "13.2": "nvidia-cuda-runtime==13.2.86",
    "13.3": "nvidia-cuda-runtime==13.3.29",
    "13.4": "nvidia-cuda-runtime==13.4.92",
    "13.5": "nvidia-cuda-runtime==13.5.37",
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


def fetch(release: str) -> Path:
    """The folder with a release's headers, from its wheel at the first call."""
    folder = _FETCHED / release
    if not folder.exists():
        _FETCHED.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=_FETCHED) as scratch:
            _unpack(_download(WHEELS[release], Path(scratch)), Path(scratch) / release)
            (Path(scratch) / release).rename(folder)
    (include,) = folder.glob("nvidia/*/include")
    return include


def _download(requirement: str, directory: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(directory)]
    subprocess.run([*pip, requirement], check=True)
    (wheel,) = directory.iterdir()
    return wheel


def _unpack(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [name for name in archive.namelist() if _WANTED.search(name)])


def _preprocessed(include: Path, foreign: Path, header: str, way: tuple[str, ...]) -> str:
    command = ["gcc", "-E", "-P", "-x", "c", f"-I{include}", f"-I{foreign}", *way, "-"]
    source = f"#include <cuda.h>\n#include <{header}>\n"
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True, timeout=60).stdout


def main() -> None:
    parts, so_far = [_HEAD], frozenset[str]()
    for release in WHEELS:
        names = declared(fetch(release))
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
