"""NVIDIA's drivers as Debian packages them. Their libraries run without a GPU up to cuInit, which says there is none.

In: a driver's name here, and the machine's apt, from which only the mirror's address and the way to it are taken. Out:
the driver unpacked beside the builds, at the first call. Raises `NoDriverError` with the reason where Debian cannot be
asked or has another driver by now. apt works on lists and a cache of its own, and nothing is installed.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from deviceplugin.driver_root import DriverRoot
from tests.library.compiler import alone
from tests.library.machine import LIBRARY

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_WHOLE = (
    *("libcuda1", "libcudadebugger1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4"),
    *("libnvidia-gpucomp", "libnvidia-allocator1", "libnvidia-cfg1", "libnvidia-pkcs11-openssl3", "nvidia-opencl-icd"),
    *("libnvcuvid1", "libnvidia-encode1", "libnvidia-opticalflow1", "libnvidia-fbc1", "nvidia-vdpau-driver"),
    *("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-glvkspirv", "libnvidia-rtcore", "libnvidia-ngx1"),
    *("libnvidia-api1", "libegl-nvidia0", "libglx-nvidia0", "libgles-nvidia1", "libgles-nvidia2"),
    *("nvidia-smi", "nvidia-cuda-mps", "nvidia-driver-bin", "nvidia-alternative", "glx-alternative-nvidia"),
)
"""Without libnvoptix1, which takes as long as all others, and what is of Xorg or the kernel."""


def _tools(infix: str = "") -> tuple[str, str]:
    return f"nvidia-{infix}smi", f"nvidia-{infix}alternative"


class NoDriverError(Exception):
    """Why a driver cannot be had from Debian here."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """Where Debian has a driver."""

    suite: str
    names: tuple[str, ...]


PACKAGED = {
    "470": Packaged("bookworm", (*(f"libnvidia-tesla-470-{each}" for each in ("cuda1", "ml1")), *_tools("tesla-470-"))),
    "535": Packaged("bookworm", ("libcuda1", "libnvidia-ml1", *_tools())),
    "550": Packaged("trixie", _WHOLE),
    "555": Packaged("experimental", ("libcuda1", "libnvidia-ml1", *_tools())),
}


@dataclass(frozen=True, slots=True)
class DebianDriver:
    """`root` has the files as the packages bring them; the scripts that they would run are in `scripts`."""

    root: Path
    scripts: Path

    @property
    def libcuda(self) -> Path:
        return self._only(f"{_LIBRARIES.lstrip('/')}/nvidia/*/libcuda.so.*.*")

    @property
    def nvml(self) -> Path:
        return self._only(f"{_LIBRARIES.lstrip('/')}/nvidia/*/libnvidia-ml.so.*.*")

    @property
    def smi(self) -> Path:
        return self._only("usr/lib/nvidia/*/nvidia-smi")

    @property
    def version(self) -> str:
        return self.libcuda.name.removeprefix("libcuda.so.")

    def _only(self, pattern: str) -> Path:
        (found,) = self.root.glob(pattern)
        return found

    def installed_at(self, root: Path) -> Path:
        """A copy in which Debian's alternatives lead to the files, as after an installation."""
        shutil.copytree(self.root, root, symlinks=True, copy_function=_copy)
        (root / "usr/bin").mkdir(exist_ok=True)
        own = f"nvidia/{self.libcuda.parent.name}"
        for package, name, target in (("nvidia", "nvidia/nvidia", own), ("glx", "glx", "nvidia")):
            _link(root, f"/usr/lib/{name}", package, f"/usr/lib/{target}")
            for script in self.scripts.glob(f"{package}-*alternative*/postinst"):
                for link, alternative, source in _alternatives(script.read_text()):
                    _link(root, link, f"{package}--{alternative}", source)
        (root / "etc/ld.so.conf").write_text(f"{_LIBRARIES}\n")
        return root


def functions_of(library: Path, beginning: str) -> list[str]:
    """What a library exports, by name."""
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        defined = {each.name for each in symbols.iter_symbols() if each["st_shndx"] != "SHN_UNDEF"}
    return sorted(name for name in defined if re.match(rf"{beginning}[A-Z]", name))


def debian_driver(name: str) -> DebianDriver:
    """Raises NoDriverError."""
    folder = LIBRARY / f"build/clients/debian-driver-{name}"
    driver = DebianDriver(folder / "root", folder / "scripts")
    with alone(folder.with_suffix(".lock")):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _unpack(PACKAGED[name], folder)
            if not driver.version.startswith(f"{name}."):
                raise NoDriverError(f"Debian's {PACKAGED[name].suite} has driver {driver.version}, not {name} any more")
            (folder / ".complete").touch()
    return driver


def _unpack(packaged: Packaged, folder: Path) -> None:
    packages = folder / "packages"
    packages.mkdir(parents=True)
    _own_apt(packaged.suite, folder)
    _apt(folder, "update", "-o", "APT::Update::Error-Mode=any")
    _apt(folder, "download", *packaged.names)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
        subprocess.run(["dpkg", "-e", package, folder / "scripts" / package.name.partition("_")[0]], check=True)
    shutil.rmtree(packages)


def _own_apt(suite: str, folder: Path) -> None:
    """Its configuration: the machine's own for downloads (proxies, time limits), and nothing else of the machine's."""
    if platform.machine() != "x86_64" or not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NoDriverError("NVIDIA's drivers of Debian need apt, dpkg and an x86_64 processor")
    (folder / "sources.list").write_text(f"deb [arch=amd64 signed-by={_KEYS}] {_mirror()} {suite} non-free contrib\n")
    for directory in ("lists/partial", "cache/archives/partial", "scripts"):
        (folder / directory).mkdir(parents=True)
    (folder / "status").touch()
    machine = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [line for line in machine if line.startswith("Acquire::") and "::IndexTargets" not in line]
    own = {
        **dict.fromkeys(("Dir::Etc::main", "Dir::Etc::parts", "Dir::Etc::sourceparts"), "/dev/null"),
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
    }
    (folder / "apt.conf").write_text("\n".join([*kept, *(f'{key} "{value}";' for key, value in own.items()), ""]))


def _mirror() -> str:
    """The address from which this machine has its own release of Debian."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), flags=re.MULTILINE))
    wanted = ["--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines():
        suite, component, address = line.split()
        if (suite, component) == (release.get("VERSION_CODENAME"), "main") and release.get("ID") == "debian":
            return address
    raise NoDriverError("NVIDIA's drivers come from Debian's mirror, and this machine's apt names none")


def _apt(folder: Path, *words: str) -> None:
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C"}
    command = ["timeout", "300", "apt-get", "--quiet=2", *words]
    done = subprocess.run(
        command, env=environment, cwd=folder / "packages", capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or ["no answer within 300 s"]
        raise NoDriverError(f"NVIDIA's driver could not be fetched from Debian: {' '.join(said)}")


_SLAVE = re.compile(r"^\t+\$\(add_slave (/\S+) (\S+) (/\S+)\)", flags=re.MULTILINE)
_MULTIARCH = re.compile(
    r'^\t+\$\(add_multiarch_slave (/\S+) "?([^\s"]*)"? (\S+) (/\S+) "?([^\s"]*?)"?(?: "" (\S+))?\)', flags=re.MULTILINE
)


def _alternatives(script: str) -> Iterator[tuple[str, str, str]]:
    """The link, the alternative's name, the file: what a package's script hands to update-alternatives."""
    yield from _SLAVE.findall(script)
    for directory, below, name, source, part, other in _MULTIARCH.findall(script):
        file = f"{source}/x86_64-linux-gnu/{part}{other or name}"
        yield f"{directory}/x86_64-linux-gnu/{below}{name}", f"{name}-x86_64-linux-gnu", file


def _link(root: Path, link: str, name: str, target: str) -> None:
    """LINK -> /etc/alternatives/NAME -> TARGET, as the scripts do: where the file and the link's directory are."""
    at, alternative = root / link.lstrip("/"), root / "etc/alternatives" / name
    if link == target or DriverRoot(root).resolve(target) is None or not at.parent.is_dir():
        return
    alternative.parent.mkdir(parents=True, exist_ok=True)
    alternative.symlink_to(target)
    at.symlink_to(f"/etc/alternatives/{name}")


def _copy(source: str, target: str) -> None:
    """Packages are large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
