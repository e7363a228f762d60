"""Reading kubelet's own record of devices, `kubelet_internal_checkpoint`.

In: the file, in any of its three historic forms (NUMA map since 1.20, flat list 1.12-1.19, without wrapper before).
Out: a `Checkpoint` of our two resources, or a ParseError that names the file and the place. Never written: kubelet
drops a file whose checksum does not fit, and with it every allocation of the node. The checksum is over a dump of Go
structs and is not verified here; kubelet replaces the file by rename, so one open file is one whole version.

Entries of other plugins are skipped undecoded. 1.8 MB take some 5 ms, so the agent's loop may call this directly.
"""

import base64
import binascii
from pathlib import Path, PurePosixPath

import msgspec
from google.protobuf.message import DecodeError

from deviceplugin.errors import KubeletError, ParseError
from deviceplugin.kubelet.answer import GRANT_MOUNT
from deviceplugin.ledger.evidence import Checkpoint, CheckpointEntry, RecordedAnswer
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.ids import DeviceId
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.wire import deviceplugin_pb2 as pb

__all__ = ["CHECKPOINT_NAME", "Checkpoint", "parse_checkpoint", "read_checkpoint"]

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: msgspec.Raw = msgspec.field(name="DeviceIDs")
    alloc_resp: msgspec.Raw = msgspec.Raw(b"null")


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data | msgspec.UnsetType = msgspec.UNSET
    pod_device_entries: list[_Entry] | msgspec.UnsetType | None = msgspec.UNSET


def read_checkpoint(path: Path, names: ResourceNames = ResourceNames()) -> Checkpoint:
    """The file as it is now; a missing one is an empty checkpoint, an unreadable one a KubeletError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint(exists=False)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        raise KubeletError(f"kubelet's checkpoint {path} cannot be read: {cause}; run the agent as root") from error
    return parse_checkpoint(data, names, where=str(path))


def parse_checkpoint(
    data: bytes, names: ResourceNames = ResourceNames(), *, where: str = "kubelet's checkpoint"
) -> Checkpoint:
    """Raises ParseError for anything that is not a checkpoint."""
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{where} is not a checkpoint of kubelet: {error}") from error
    ours = {names.of(resource): resource for resource in Resource}
    entries: dict[tuple[str, str, Resource], CheckpointEntry] = {}
    for place, raw in enumerate(_entries(found, where)):
        resource = ours.get(raw.resource_name)
        if resource is not None:
            at = f"{where}, entry {place} ({raw.resource_name} of container {raw.container_name!r})"
            entries[raw.pod_uid, raw.container_name, resource] = _entry(raw, resource, names, at)
    return Checkpoint(tuple(entries.values()))


def _entries(found: _File, where: str) -> list[_Entry]:
    if isinstance(found.data, _Data):
        return found.data.pod_device_entries or []
    if isinstance(found.pod_device_entries, msgspec.UnsetType):
        raise ParseError(f"{where} is not a checkpoint of kubelet: it has neither `Data` nor `PodDeviceEntries`")
    return found.pod_device_entries or []


def _entry(raw: _Entry, resource: Resource, names: ResourceNames, at: str) -> CheckpointEntry:
    return CheckpointEntry(
        pod=PodUid(raw.pod_uid),
        container=raw.container_name,
        resource=resource,
        devices=_devices(raw.device_ids, at),
        answer=_answer(raw, names, at),
    )


def _devices(raw: msgspec.Raw, at: str) -> frozenset[DeviceId]:
    """The union over NUMA nodes: a device that belongs to several is listed under each."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, list[str] | None] | list[str] | None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{at}: DeviceIDs: {error}") from error
    if isinstance(found, dict):
        return frozenset(DeviceId(each) for node in found.values() for each in node or ())
    return frozenset(DeviceId(each) for each in found or ())


def _answer(raw: _Entry, names: ResourceNames, at: str) -> RecordedAnswer | None:
    try:
        text = msgspec.json.decode(raw.alloc_resp, type=str | None)
        message = pb.ContainerAllocateResponse.FromString(base64.b64decode(text or "", validate=True))
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError, DecodeError) as error:
        raise ParseError(f"{at}: AllocResp: {error}") from error
    if not (message.envs or message.mounts or message.devices or message.annotations):
        return None
    return RecordedAnswer(
        grant=_grant(message, raw.pod_uid, at),
        gpus=tuple(GpuUuid(text) for text in message.envs.get(_VISIBLE_DEVICES, "").split(",") if text),
        device_paths=tuple(
            text for text in message.annotations.get(f"{names.domain}/vcuda-device", "").split(",") if text
        ),
        cores=_number(message.annotations.get(names.core), f"{at}: annotation {names.core}"),
        memory_bytes=_number(message.annotations.get(names.memory), f"{at}: annotation {names.memory}"),
    )


def _grant(message: pb.ContainerAllocateResponse, pod_uid: str, at: str) -> GrantId | None:
    """None where gpu-manager answered: it mounts a directory named after the pod."""
    for mount in message.mounts:
        if mount.container_path.rstrip("/") == GRANT_MOUNT:
            name = PurePosixPath(mount.host_path).name
            if name in {"", ".", ".."} or "\0" in name:
                raise ParseError(f"{at}: the mount at {GRANT_MOUNT} names no grant: {mount.host_path[:80]!r}")
            return GrantId(name) if name != pod_uid else None
    return None


def _number(text: str | None, at: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ParseError(f"{at} is not a number: {text[:40]!r}")
    return int(text)
