"""The container images, made here because no registry can be reached.

In: Debian's static busybox, a C file, programs with what they need of this machine's C library. Out: docker-archive
tars, as bytes, that `ctr images import` takes. Not here: importing. Invariant: one layer each, and nothing in it that
needs the network.
"""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from sandbox.cluster.processes import run

PAUSE = "docker.io/local/pause:1"
BUSYBOX = "docker.io/local/busybox:1"
NO_FILES: Mapping[str, bytes] = {}
NO_LINKS: Mapping[str, str] = {}
_OF_EVERY_GLIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1")  # what was built for older ones names them


def pause_image() -> bytes:
    with TemporaryDirectory(dir="/tmp") as folder:
        program = Path(folder) / "pause"
        source = Path(__file__).with_name("pause.c")
        run(["gcc", "-Os", "-static", "-s", "-o", str(program), str(source)], doing="compiling the pause program")
        return _archive(PAUSE, _layer({"pause": program.read_bytes()}, links={}), ["/pause"])


def busybox_image() -> bytes:
    return image_with(BUSYBOX, ())


def _busybox() -> tuple[dict[str, bytes], dict[str, str]]:
    """Its files and the links of its applets."""
    program = Path("/bin/busybox")
    applets = run([str(program), "--list"], doing="listing busybox's applets").split()
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    return {"bin/busybox": program.read_bytes(), "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n"}, links


def image_with(
    reference: str,
    programs: Iterable[Path],
    libraries: Iterable[Path] = (),
    *,
    more: Mapping[str, bytes] = NO_FILES,
    links: Mapping[str, str] = NO_LINKS,
) -> bytes:
    """busybox and dynamically linked programs; of what these or the `libraries` need, what this system has."""
    files = {f"bin/{program.name}": program.read_bytes() for program in programs} | dict(more)
    for path in (*programs, *libraries):
        files |= {found.lstrip("/"): Path(found).read_bytes() for found in _system_libraries(path)}
    busybox, applets = _busybox()
    return _archive(
        reference,
        _layer(busybox | files, links=applets | dict(links), folders=("tmp", "dev", "proc", "sys")),
        ["/bin/sh"],
    )


def _system_libraries(path: Path) -> list[str]:
    needed = run(["ldd", str(path)], doing=f"asking what {path.name} needs")
    found: list[str] = re.findall(r"(?:^|\s)(/(?:usr/)?lib\S*)", needed)
    folders = {str(Path(each).parent) for each in found if Path(each).name == "libc.so.6"}
    return [*found, *(f"{folder}/{name}" for folder in folders for name in _OF_EVERY_GLIBC)]


def _layer(files: dict[str, bytes], *, links: dict[str, str], folders: Iterable[str] = ()) -> bytes:
    parents = sorted({parent for name in [*files, *links] if (parent := str(Path(name).parent)) != "."})
    entries = [(_entry(folder, tarfile.DIRTYPE, 0o755), b"") for folder in [*folders, *parents]]
    entries += [(_entry(name, tarfile.REGTYPE, 0o755, size=len(content)), content) for name, content in files.items()]
    entries += [(_entry(name, tarfile.SYMTYPE, 0o777, target=target), b"") for name, target in links.items()]
    return _tar(entries)


def kube_scheduler_image(reference: str, program: Path) -> bytes:
    """As Kubernetes publishes it: the static program, and no shell."""
    layer = _layer({"usr/local/bin/kube-scheduler": program.read_bytes()}, links={})
    return _archive(reference, layer, ["/usr/local/bin/kube-scheduler"], path="/usr/local/bin")


def _archive(reference: str, layer: bytes, entrypoint: list[str], *, path: str = "/bin") -> bytes:
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": [f"PATH={path}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            "history": [{"created_by": "tests/e2e"}],
        }
    ).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]).encode()
    contents = {"layer.tar": layer, name: configuration, "manifest.json": manifest}
    return _tar([(_entry(file, tarfile.REGTYPE, 0o644, size=len(data)), data) for file, data in contents.items()])


def _entry(name: str, kind: bytes, mode: int, *, size: int = 0, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, size, target
    return entry


def _tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry, content in entries:
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
