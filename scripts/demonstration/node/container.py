"""The container runtime's part: what Allocate mounts is laid out for a process that runs beside the demo, without root.

In: a container as the stand-in kubelet started it. Out: the environment in which a program finds the files of its grant
and its driver, each where the answer's mounts lead. Links stand in for mounts, VCUDA_DIR for /etc/vcuda, and
CUDA_VISIBLE_DEVICES for the device nodes. Invariant: nothing is taken from anywhere but the answer.
"""

from collections.abc import Mapping
from pathlib import Path

from sandbox.kubelet import ContainerView
from scripts.demonstration.failure import DemoError

GRANT = Path("/etc/vcuda")
LIMITS = "limits"


def lay_out(view: ContainerView, folder: Path, emulator: Mapping[str, str]) -> dict[str, str]:
    """`emulator` says which emulated machine it is; a real container has the kernel for that."""
    if GRANT.exists():
        raise DemoError(f"{GRANT} exists on this machine, and every program keeps to the limits in there; move it away")
    base = folder / "vcuda"
    base.mkdir(parents=True)
    mounts = {Path(mount.container_path): Path(mount.host_path) for mount in view.mounts}
    for path in sorted(path for path in mounts if path != GRANT and path.is_relative_to(GRANT)):
        place = base / path.relative_to(GRANT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if mounts[path].is_dir():
            place.symlink_to(mounts[path])
        else:
            place.hardlink_to(mounts[path])  # as with a mount of one file there is nothing to follow
    for entry in mounts[GRANT].iterdir():
        if not (base / entry.name).exists():
            (base / entry.name).symlink_to(entry)
    return {
        **emulator,
        "VCUDA_DIR": str(base),
        "CUDA_VISIBLE_DEVICES": view.env["NVIDIA_VISIBLE_DEVICES"],
        "LD_LIBRARY_PATH": ":".join(str(view.host_path(path)) for path in view.env["LD_LIBRARY_PATH"].split(":")),
    }


def limits_file(environment: Mapping[str, str]) -> Path:
    """As the program itself finds it."""
    return Path(environment["VCUDA_DIR"]) / LIMITS
