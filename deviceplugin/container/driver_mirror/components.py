"""What the mirror is made of, by name: the driver's files, and the three objects of our library.

In: a directory with our library. Out: `SHARED` and `WHOLE`, the driver's files for containers with a share of a GPU and
with whole GPUs (gpu-manager's volume.conf and what newer drivers added); the objects that stand in front of the driver
for shares, with a digest of their content, or one phrase that says why there are none. A listed name means every
library whose name begins with it, so `libcuda.so` means libcuda.so.1 and not libcudart.so. A listed file may be
missing on the node, unless containers cannot do without it (`plan`).

Invariant: only an object of vcuda is taken. The real driver under the same name would let every share use
the whole GPU, so each object must be for this machine, have its name as SONAME, and need the alias of the real one.
"""

import hashlib
from pathlib import Path

import msgspec

from deviceplugin.container.driver_mirror.elf import Machine, read_elf
from deviceplugin.errors import ParseError

CUDA, NVML = "libcuda.so", "libnvidia-ml.so"


class Components(msgspec.Struct, frozen=True):
    """Names of programs, and beginnings of library names."""

    programs: tuple[str, ...]
    libraries: tuple[str, ...]


_PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)

_COMPUTE = (
    NVML,
    CUDA,
    "libcudadebugger.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-nvvm",
    "libnvidia-gpucomp.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-compiler.so",
    "libnvidia-opencl.so",
    "libnvidia-tileiras.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libnvidia-pkcs11",
    "libnvidia-sandboxutils.so",
    "libnvidia-nscq.so",
    "libnvsdm.so",
)

_VIDEO = (
    "libnvcuvid.so",
    "libnvidia-encode.so",
    "libnvidia-opticalflow.so",
    "libnvidia-fbc.so",
    "libnvidia-ifr.so",
    "libvdpau_nvidia",
)

_GRAPHICS = (
    "libnvidia-eglcore.so",
    "libnvidia-egl-wayland",
    "libnvidia-egl-gbm",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libnvidia-glcore.so",
    "libnvidia-glvkspirv.so",
    "libnvidia-tls.so",
    "libnvidia-glsi.so",
    "libnvidia-rtcore.so",
    "libnvidia-vulkan-producer.so",
    "libnvidia-present.so",
    "libnvidia-ngx.so",
    "libnvidia-api.so",
    "libnvoptix.so",
    "libGL.so",
    "libGLX.so",
    "libOpenGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libEGL.so",
    "libGLdispatch.so",
    "libGLX_nvidia.so",
    "libEGL_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLESv1_CM_nvidia.so",
)

WHOLE = Components(programs=_PROGRAMS, libraries=(*_COMPUTE, *_VIDEO, *_GRAPHICS))
SHARED = Components(programs=(*_PROGRAMS, "gpu-client"), libraries=WHOLE.libraries)


CUDA_FRONT, NVML_FRONT, STATE = "libcuda.so.1", "libnvidia-ml.so.1", "libvcuda.so.1"
CUDA_ALIAS, NVML_ALIAS = "libcuda-real.so.1", "libnvidia-ml-real.so.1"
_NEEDS = {STATE: (), CUDA_FRONT: (STATE, CUDA_ALIAS), NVML_FRONT: (STATE, NVML_ALIAS)}


class Interposer(msgspec.Struct, frozen=True):
    """One object; `names` are those that it gets in the mirror."""

    path: Path
    digest: str
    names: tuple[str, ...]


class Interposers(msgspec.Struct, frozen=True):
    """All three objects, or none and a phrase that says why."""

    objects: tuple[Interposer, ...] = ()
    trouble: str = ""


def interposer_paths(directory: Path) -> tuple[Path, ...]:
    return tuple(directory / name for name in _NEEDS)


def find_interposers(directory: Path, machine: Machine) -> Interposers:
    found = []
    for name in _NEEDS:
        path = directory / name
        if not path.is_file():
            return Interposers(trouble=f"vcuda's library is missing at {path}; install it there or set --library-path")
        trouble = _trouble(path, machine)
        if trouble:
            return Interposers(trouble=trouble)
        found.append(Interposer(path, sha256_of(path), _names(name)))
    return Interposers(tuple(found))


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _trouble(path: Path, machine: Machine) -> str:
    try:
        elf = read_elf(path)
    except ParseError as error:
        return error.message
    advice = "install vcuda's library there or set --library-path"
    if elf.bits_on(machine) != 64:
        return f"{path} is made for {elf.machine}, not for this machine; {advice}"
    lacking = [name for name in _NEEDS[path.name] if name not in elf.needed]
    if elf.soname != path.name or lacking:
        return f"{path} is not vcuda's: it should be called {path.name} and need {_words(path.name)}; {advice}"
    return ""


def _words(name: str) -> str:
    return " and ".join(_NEEDS[name]) or "nothing of the driver"


def _names(name: str) -> tuple[str, ...]:
    """The name that programs are linked for, and for the two in front the one that others open."""
    return (name,) if name == STATE else (name, name.removesuffix(".1"))
