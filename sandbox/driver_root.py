"""The root directory of a node with an NVIDIA driver, for `--driver-root`: libraries, programs, the loader's cache.

In: a directory, a driver version, and objects that take the place of a library's stub (the emulated libcuda and NVML).
Out: a `DriverRoot` whose driver can be upgraded on disk and loaded, as an operator does. Facts kept: the libraries'
names, SONAMEs and what they need of each other as in a driver of 2026; /etc/ld.so.cache is made by ldconfig itself.
Invariant: a file is never changed in place, as package managers have it. Also here: stand-ins for vcuda's own objects,
if their content does not matter.
"""

import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.elf_file import elf_object

VERSION = "580.65.06"
_GLCORE = "libnvidia-glcore.so.{version}"
_EGLCORE = "libnvidia-eglcore.so.{version}"

# Name, SONAME, needed; {version} is the driver's. Those without a version in the name belong to libglvnd.
LIBRARIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("libcuda.so.{version}", "libcuda.so.1", ("libc.so.6",)),
    ("libnvidia-ml.so.{version}", "libnvidia-ml.so.1", ("libc.so.6",)),
    ("libcudadebugger.so.{version}", "libcudadebugger.so.1", ()),
    ("libnvidia-ptxjitcompiler.so.{version}", "libnvidia-ptxjitcompiler.so.1", ()),
    ("libnvidia-nvvm.so.{version}", "libnvidia-nvvm.so.4", ()),
    ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4", ()),
    ("libnvidia-gpucomp.so.{version}", "libnvidia-gpucomp.so.{version}", ()),
    ("libnvidia-opencl.so.{version}", "libnvidia-opencl.so.1", ()),
    ("libnvidia-encode.so.{version}", "libnvidia-encode.so.1", ("libnvcuvid.so.1",)),
    ("libnvcuvid.so.{version}", "libnvcuvid.so.1", ("libcuda.so.1",)),
    (_GLCORE, _GLCORE, ("libnvidia-tls.so.{version}", "libnvidia-gpucomp.so.{version}")),
    (_EGLCORE, _EGLCORE, ("libnvidia-tls.so.{version}", "libnvidia-gpucomp.so.{version}")),
    ("libnvidia-glsi.so.{version}", "libnvidia-glsi.so.{version}", ()),
    ("libnvidia-tls.so.{version}", "libnvidia-tls.so.{version}", ()),
    ("libGLX_nvidia.so.{version}", "libGLX_nvidia.so.0", (_GLCORE, "libnvidia-tls.so.{version}")),
    ("libEGL_nvidia.so.{version}", "libEGL_nvidia.so.0", ("libnvidia-glsi.so.{version}",)),
    ("libnvidia-egl-wayland.so.1.1.19", "libnvidia-egl-wayland.so.1", ()),
    ("libGL.so.1.7.0", "libGL.so.1", ("libGLX.so.0", "libGLdispatch.so.0")),
    ("libGLX.so.0.0.0", "libGLX.so.0", ("libGLdispatch.so.0",)),
    ("libGLdispatch.so.0.0.0", "libGLdispatch.so.0", ()),
)
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control")
_LINKS_FOR_LINKING = ("libcuda.so.1", "libnvidia-ml.so.1")  # libcuda.so and libnvidia-ml.so lead to these
_TLS = (2, 3, 99)


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """`objects` replace stubs by SONAME: `{"libcuda.so.1": Path(...)}`; `libraries` may be fewer."""

    path: Path
    version: str = VERSION
    machine: str = field(default_factory=platform.machine)
    objects: Mapping[str, Path] = field(default_factory=dict)
    directories: Mapping[int, str] = field(default_factory=lambda: {64: "usr/lib64", 32: "usr/lib"})
    libraries: tuple[tuple[str, str, tuple[str, ...]], ...] = LIBRARIES

    def directory(self, bits: int = 64) -> Path:
        return self.path / self.directories[bits]

    @property
    def version_file(self) -> Path:
        """What is /proc/driver/nvidia/version on a node."""
        return self.path / "proc/driver/nvidia/version"

    def install(self, version: str = "", *, cache: bool = True) -> None:
        """The files of a version; those of another one stay until `uninstall`."""
        version = version or self.version
        for bits in self.directories:
            self.directory(bits).mkdir(parents=True, exist_ok=True)
            for name, soname, needed in self.libraries:
                self._install_library(bits, name, soname, needed, version)
            for soname in _LINKS_FOR_LINKING:
                _link(self.directory(bits) / soname.removesuffix(".1"), soname)
        for name in PROGRAMS:
            put(self.path / "usr/bin" / name, f"#!/bin/sh\necho {name} {version}\n".encode(), mode=0o755)
        if cache:
            self.make_cache()

    def uninstall(self, version: str) -> None:
        for path in self.path.rglob(f"lib*.so.{version}"):
            path.unlink()

    def load(self, version: str = "") -> None:
        """The kernel module of this version, as /proc shows it."""
        line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version or self.version}  Release Build"
        put(self.version_file, f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n".encode())

    def make_cache(self, *options: str) -> None:
        """As the package's scripts do: SONAME links and etc/ld.so.cache."""
        put(self.path / "etc/ld.so.conf", "".join(f"/{each}\n" for each in self.directories.values()).encode())
        ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin")
        assert ldconfig is not None, "ldconfig is part of glibc and should be in /sbin"
        done = subprocess.run(
            [ldconfig, "-r", self.path, *options], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr

    def _install_library(self, bits: int, name: str, soname: str, needed: tuple[str, ...], version: str) -> None:
        path = self.directory(bits) / name.format(version=version)
        given = self.objects.get(soname) if bits == 64 else None
        if given is not None:
            content = given.read_bytes()
        else:
            content = elf_object(
                soname.format(version=version),
                needed=[each.format(version=version) for each in needed],
                bits=bits,
                machine=self.machine,
                abi=_TLS if name.startswith("libnvidia-tls") else None,
                content=f"{version} {path.name}".encode(),
            )
        put(path, content, mode=0o755)
        if soname.format(version=version) != path.name:
            _link(path.with_name(soname.format(version=version)), path.name)


def make_driver_root(
    path: Path, version: str = VERSION, *, objects: Mapping[str, Path] | None = None, machine: str = ""
) -> DriverRoot:
    """Installed and loaded."""
    root = DriverRoot(path, version, machine or platform.machine(), objects or {})
    root.install()
    root.load()
    return root


def make_interposers(directory: Path, *, machine: str = "", content: bytes = b"") -> Path:
    """Objects with the names of vcuda's interposers; they can only be mirrored, not run."""
    needs = {
        "libvcuda.so.1": (),
        "libcuda.so.1": ("libvcuda.so.1", "libcuda-real.so.1"),
        "libnvidia-ml.so.1": ("libvcuda.so.1", "libnvidia-ml-real.so.1"),
    }
    for soname, needed in needs.items():
        data = elf_object(soname, needed=needed, machine=machine or platform.machine(), content=content)
        put(directory / soname, data, mode=0o755)
    return directory


def put(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """A new file under the name, while others may still have the old one open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.chmod(mode)
    fresh.replace(path)


def _link(path: Path, target: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(path)
