"""Which of the driver's files the mirror holds, by name: what the lineage's volume.conf lists, and what came since.

In: nothing. Out: `SHARED` for containers with a share of a GPU, `WHOLE` for those with whole ones. A library is meant
by every name that begins with the one listed, so `libcuda.so` means libcuda.so.1 and not libcudart.so. What is listed
and not on the node is not missed, unless containers cannot do without it (`plan`).
"""

from dataclasses import dataclass

CUDA, NVML = "libcuda.so", "libnvidia-ml.so"


@dataclass(frozen=True, slots=True)
class Components:
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
