"""Control groups by their names: which container a process is in, and where a container's group lies. Pure.

In: the bytes of /proc/PID/cgroup; a pod's UID and a container's id. Out: frozen values. Kubelet's names:

    cgroupfs   kubepods/[burstable|besteffort]/pod<UID>/<id>                              cri-o: crio-<id>
    systemd    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID with _>.slice/<runtime>-<id>.scope

                                                                      ... where the runtime does not use systemd:
             [<the runtime's service>/]kubepods-burstable-pod<UID with _>.slice:<runtime>:<id>

below any root (kind, --cgroup-root), in one hierarchy (v2) or many (v1). A container may make groups below its own
and name them freely, so the outermost pod in a path counts. Other ways of naming exist (`cgroupsPerQOS: false`), so a
name that is not understood proves nothing: whether a container runs is proved by what it has mounted (`processes`),
and where it is, by its id (`group_with`). No input makes these functions raise.
"""

import enum
import re
from dataclasses import dataclass

from deviceplugin.model.allocation import PodUid


class Naming(enum.Enum):
    """Kubelet's --cgroup-driver."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class ContainerGroup:
    """A container's group: whose it is, and its path from the root of the hierarchy."""

    pod: PodUid
    container_id: str
    path: str


_MOST_BYTES = 64 << 10
_MOST_LINES = 64
_UID = r"(?P<uid>[0-9a-zA-Z][0-9a-zA-Z_-]{3,127})"
_CGROUPFS_POD = re.compile(rf"pod{_UID}")
_SYSTEMD_POD = re.compile(rf"(?:[\w.-]+-)?kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice")
_ID = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)-)?(?P<id>[0-9a-zA-Z][0-9a-zA-Z_.-]{7,127}?)(?:\.scope)?")
_SYSTEMD_BY_RUNTIME = re.compile(r"(?P<slice>[^:]+):[\w-]+:(?P<id>[0-9a-zA-Z][0-9a-zA-Z_.-]{7,127})")
_SHORTEST_ID = 12
_QOS = ("", "burstable", "besteffort")
_RUNTIMES = ("cri-containerd", "crio", "docker")


def parse_memberships(data: bytes) -> tuple[str, ...]:
    """The paths; a name with a newline cannot exist, one that is no UTF-8 is kept as it is."""
    found = []
    for line in data[:_MOST_BYTES].split(b"\n")[:_MOST_LINES]:
        number, _, rest = line.partition(b":")
        _controllers, _, path = rest.partition(b":")
        if number.isdigit() and path.startswith(b"/"):
            found.append(path.decode(errors="surrogateescape"))
    return tuple(found)


def container_of(paths: tuple[str, ...]) -> ContainerGroup | None:
    """The container that a process in these groups is in; None for one that is in no pod's container."""
    return next((found for path in paths if (found := container_in(path)) is not None), None)


def container_in(path: str) -> ContainerGroup | None:
    """The container whose group, or a group below, has this path."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if (found := _SYSTEMD_BY_RUNTIME.fullmatch(part)) and (pod := _SYSTEMD_POD.fullmatch(found["slice"])):
            return ContainerGroup(PodUid(pod["uid"].replace("_", "-")), found["id"], "/".join(parts[: index + 1]))
        if index + 1 == len(parts):
            break
        uid = _pod(part, below=parts[max(0, index - 2) : index])
        if uid is None:
            continue
        container = _ID.fullmatch(parts[index + 1])
        if container is None or parts[index + 1].endswith(".slice"):
            return None
        return ContainerGroup(uid, container["id"], "/".join(parts[: index + 2]))
    return None


def group_with(paths: tuple[str, ...], container_id: str) -> str:
    """The path of the outermost group that has this id in its name, as every runtime gives it; empty if none has."""
    if len(container_id) < _SHORTEST_ID:
        return ""
    for path in paths:
        parts = path.split("/")
        for index, part in enumerate(parts):
            if container_id in part:
                return "/".join(parts[: index + 1])
    return ""


def paths_of(pod: PodUid, container_id: str, naming: Naming | None = None) -> tuple[str, ...]:
    """Where kubelet may have put a container's group, from the root of a hierarchy; None: by either way of naming."""
    found: list[str] = []
    if naming is not Naming.CGROUPFS:
        found += [_systemd_path(pod, qos, f"{runtime}-{container_id}") for qos in _QOS for runtime in _RUNTIMES]
    if naming is not Naming.SYSTEMD:
        pods = ["/".join(filter(None, ("/kubepods", qos, f"pod{pod}"))) for qos in _QOS]
        found += [f"{each}/{prefix}{container_id}" for each in pods for prefix in ("", "crio-")]
    return tuple(found)


def root_of(path: str) -> str:
    """What lies before kubelet's own part of a pod's path: empty, or the nested root of this node."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part == "kubepods" or part == "kubepods.slice" or part.endswith("-kubepods.slice"):
            return "/".join(parts[:index])
    return ""


def _pod(part: str, *, below: list[str]) -> PodUid | None:
    if found := _SYSTEMD_POD.fullmatch(part):
        return PodUid(found["uid"].replace("_", "-"))
    found = _CGROUPFS_POD.fullmatch(part)
    if found and below and (below[-1] == "kubepods" or (below[-1] in _QOS and below[-2:-1] == ["kubepods"])):
        return PodUid(found["uid"])
    return None


def _systemd_path(pod: PodUid, qos: str, scope: str) -> str:
    slices = ["kubepods"] + ([f"kubepods-{qos}"] if qos else [])
    slices.append(f"{slices[-1]}-pod{pod.replace('-', '_')}")
    return "/" + "/".join([*(f"{name}.slice" for name in slices), f"{scope}.scope"])
