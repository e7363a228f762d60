"""What Allocate gives to a container: device nodes, mounts, environment, annotations, CDI names.

In: a grant, its GPUs, and two variables of the container's environment. Out: one frozen `Answer`; for an answer that
kubelet has recorded, why no container may start with it any more. Pure: `exists` says what is on the host. The answer
names the grant, never a pod: kubelet replays it for every restart, so nothing in it can change when the owner is
proved. What it says of device nodes was true when kubelet asked: the driver gives minor numbers in the order in which
it finds the GPUs, so they may change with a boot or when the driver is loaded again.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import msgspec

from deviceplugin.errors import HardwareError
from deviceplugin.ledger.grant import Grant, RecordedAnswer
from deviceplugin.model.allocation import (
    COMPAT,
    DRIVER_MOUNT,
    GRANT_MOUNT,
    Mount,
    libraries_of,
    require_short_library_path,
)
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Gpu
from deviceplugin.model.pod import PodContainer
from deviceplugin.model.units import BLOCK_BYTES, DEFAULT_DOMAIN, ResourceNames

CONTROL_DEVICE = "/dev/nvidiactl"
UVM_DEVICE = "/dev/nvidia-uvm"
_GPU_NODE = re.compile(r"nvidia[0-9]+", re.ASCII)


class Answer(msgspec.Struct, frozen=True):
    """Pairs are (host path, container path) for devices, (name, value) for the others.

    `missing`: extra devices that the node did not have. The container's annotation says so, too: it is what kubelet
    keeps of it.
    """

    devices: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


EMPTY = Answer()


class HostLayout(msgspec.Struct, frozen=True):
    """Paths on the host. `device_root` is `/` except in tests; `extra_devices` come from --extra-config."""

    grants: PurePosixPath
    driver_mirror: PurePosixPath
    device_root: PurePosixPath = PurePosixPath("/")
    extra_devices: tuple[str, ...] = ()
    names: ResourceNames = ResourceNames(DEFAULT_DOMAIN)
    cdi: bool = False

    def mirror_for(self, *, whole: bool) -> PurePosixPath:
        """What is mounted with the driver."""
        return self.driver_mirror / ("origin" if whole else "nvidia")

    def host_device(self, path: str) -> str:
        return str(self.device_root / path.lstrip("/"))


def answer_for(
    grant: Grant, gpus: Sequence[Gpu], container: PodContainer, layout: HostLayout, *, exists: Callable[[str], bool]
) -> Answer:
    """The full answer; raises HardwareError if a device node that the container needs is missing.

    The only text of the pod in it is its library path, of bounded length (RequestError).
    """
    devices = _devices(gpus, layout, exists)
    there = {path for _, path in devices}
    missing = tuple(path for path in dict.fromkeys(layout.extra_devices) if path not in there)
    whole = not grant.is_share
    mirror = layout.mirror_for(whole=whole)
    return Answer(
        devices=devices,
        mounts=(
            Mount(f"{layout.grants}/{grant.id}", GRANT_MOUNT),
            *(() if whole else _shared_state(grant, gpus, layout)),
            Mount(str(mirror), DRIVER_MOUNT),
            *(() if whole or container.has_volume_over_compat else (Mount(f"{mirror}/lib64", COMPAT),)),
        ),
        env=(
            ("LD_LIBRARY_PATH", library_path(container)),
            ("NVIDIA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in gpus)),
        ),
        annotations=_annotations(grant, gpus, missing, layout.names),
        cdi_devices=(f"{layout.names.domain}/vcuda={grant.id}",) if layout.cdi else (),
        missing=missing,
    )


def library_path(container: PodContainer) -> str:
    """vcuda's directory first, then the pod's own; `compat32=true` selects the 32-bit one, as in gpu-manager."""
    directory = libraries_of(container.env.get("compat32", ""))
    own = container.env.get("LD_LIBRARY_PATH", "")
    require_short_library_path(own, f"container {container.ref.name}")
    return f"{directory}:{own}" if own else directory


def _devices(gpus: Sequence[Gpu], layout: HostLayout, exists: Callable[[str], bool]) -> tuple[tuple[str, str], ...]:
    needed = [*(gpu.device_path for gpu in gpus), CONTROL_DEVICE, UVM_DEVICE]
    hosts = {path: layout.host_device(path) for path in (*needed, *layout.extra_devices)}
    there = [path for path, host in hosts.items() if exists(host)]
    for path in needed:
        if path not in there:
            raise HardwareError(
                f"device node {path} is missing on the node, so no container can use the GPU; "
                "run `nvidia-modprobe -u -c 0` there, or check that the driver is loaded"
            )
    return tuple((hosts[path], path) for path in there)


def why_outdated(
    recorded: RecordedAnswer, gpus: Sequence[Gpu], layout: HostLayout, *, exists: Callable[[str], bool]
) -> str:
    """Why a container that starts with this answer would not have what it was promised; empty if it would.

    `gpus` are those of its grant as they are now. Raises HardwareError if a device node may come back.
    """
    names = {PurePosixPath(each).name: each for each in recorded.devices}
    had = {name for name in names if _GPU_NODE.fullmatch(name)}
    now = {PurePosixPath(gpu.device_path).name: gpu.uuid for gpu in gpus}
    for name in sorted(now.keys() - had):
        shown = ", ".join(f"/dev/{each}" for each in sorted(had)) or "no device node"
        return f"its GPU {now[name]} is /dev/{name} now, and kubelet recorded {shown} for it"
    for name in sorted(had - now.keys()):
        return f"kubelet recorded /dev/{name} for it, which is another GPU now"
    for path in (CONTROL_DEVICE, UVM_DEVICE, *recorded.missing):
        if PurePosixPath(path).name not in names and exists(layout.host_device(path)):
            return f"device node {path} was missing on the node when it was admitted, and is there now"
    for path in recorded.devices:
        if not exists(path):
            raise HardwareError(
                f"device node {path}, which kubelet recorded for the container, is missing on the node; make it there "
                "(`nvidia-modprobe -u -c 0` makes NVIDIA's), or check that the driver is loaded; kubelet tries again"
            )
    return ""


def _shared_state(grant: Grant, gpus: Sequence[Gpu], layout: HostLayout) -> list[Mount]:
    """The container's own files, each writable, and its GPUs' read-only tables, as `container.shared_state` makes them.

    The grant's directory is mounted first and read-only, so each of these needs a path in that directory.
    """
    own = f"{layout.grants}/{grant.id}/state"
    mounts = [Mount(f"{own}/region", f"{GRANT_MOUNT}/state/region", read_only=False)]
    for gpu in gpus:
        row = f"{gpu.uuid}.activity"
        mounts.append(Mount(f"{own}/{row}", f"{GRANT_MOUNT}/state/{row}", read_only=False))
        mounts.append(Mount(f"{layout.grants}/gpus/{gpu.uuid}", f"{GRANT_MOUNT}/gpus/{gpu.uuid}"))
    return mounts


def _annotations(
    grant: Grant, gpus: Sequence[Gpu], missing: Sequence[str], names: ResourceNames
) -> tuple[tuple[str, str], ...]:
    """In the forms of gpu-manager, on the container as the runtime sees it."""
    own, request = annotation_names(names.domain), grant.allocation.request
    return (
        (own.container_core, str(request.cores)),
        (own.container_memory, str(request.blocks * BLOCK_BYTES)),
        (own.container_device, ",".join(f"/dev/nvidia{gpu.minor}" for gpu in gpus)),
        *(((own.container_missing, ",".join(missing)),) if missing else ()),
    )
