"""Reading kubelet's own record of devices, `kubelet_internal_checkpoint`.

In: the file, in any of its three historic forms (NUMA map since 1.20, flat list 1.12-1.19, without wrapper before).
Out: a `Checkpoint` of our two resources, or a ParseError that names the file and the place. Never written: kubelet
drops a file whose checksum does not fit, and with it every allocation of the node. The checksum is over a dump of Go
structs and is not verified here; kubelet replaces the file by rename, so one open file is one whole version.

Entries of other plugins are skipped undecoded. 1.8 MB take some 5 ms, so the agent's loop may call this directly.
"""

import base64
import binascii
import itertools
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class _AnswerKeys:
    """The annotations of an answer."""

    core: str
    memory: str
    device: str


_DEVICE_IDS = msgspec.json.Decoder(dict[str, list[DeviceId] | None] | list[DeviceId] | None)
_TEXT = msgspec.json.Decoder(str | None)
_FILE = msgspec.json.Decoder(_File)
_NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
        found = _FILE.decode(data)
    except _NOT_JSON as error:
        raise ParseError(f"{where} is not a checkpoint of kubelet: {error}") from error
    ours = {names.of(resource): resource for resource in Resource}
    keys = _AnswerKeys(names.core, names.memory, f"{names.domain}/vcuda-device")
    entries: dict[tuple[str, str, Resource], CheckpointEntry] = {}
    for place, raw in enumerate(_entries(found, where)):
        resource = ours.get(raw.resource_name)
        if resource is None:
            continue
        try:
            entries[raw.pod_uid, raw.container_name, resource] = _entry(raw, resource, keys)
        except ParseError as error:
            at = f"{where}, entry {place} ({raw.resource_name} of container {raw.container_name!r})"
            raise ParseError(f"{at}: {error.message}") from error
    return Checkpoint(tuple(entries.values()))


def _entries(found: _File, where: str) -> list[_Entry]:
    if isinstance(found.data, _Data):
        return found.data.pod_device_entries or []
    if isinstance(found.pod_device_entries, msgspec.UnsetType):
        raise ParseError(f"{where} is not a checkpoint of kubelet: it has neither `Data` nor `PodDeviceEntries`")
    return found.pod_device_entries or []


def _entry(raw: _Entry, resource: Resource, keys: _AnswerKeys) -> CheckpointEntry:
    return CheckpointEntry(
        pod=PodUid(raw.pod_uid),
        container=raw.container_name,
        resource=resource,
        devices=_devices(raw.device_ids),
        answer=_answer(raw, keys),
    )


def _devices(raw: msgspec.Raw) -> frozenset[DeviceId]:
    """The union over NUMA nodes: a device that belongs to several is listed under each."""
    try:
        found = _DEVICE_IDS.decode(raw)
    except _NOT_JSON as error:
        raise ParseError(f"DeviceIDs: {error}") from error
    if isinstance(found, dict):
        return frozenset(itertools.chain.from_iterable(node or () for node in found.values()))
    return frozenset(found or ())


def _answer(raw: _Entry, keys: _AnswerKeys) -> RecordedAnswer | None:
    try:
        text = _TEXT.decode(raw.alloc_resp)
        if not text:
            return None
        message = pb.ContainerAllocateResponse.FromString(base64.b64decode(text, validate=True))
    except (*_NOT_JSON, binascii.Error, ValueError, DecodeError) as error:
        raise ParseError(f"AllocResp: {error}") from error
    envs, annotations = message.envs, message.annotations
    if not (envs or message.mounts or message.devices or annotations):
        return None
    return RecordedAnswer(
        grant=_grant(message, raw.pod_uid),
        gpus=tuple(GpuUuid(text) for text in envs.get(_VISIBLE_DEVICES, "").split(",") if text),
        device_paths=tuple(text for text in annotations.get(keys.device, "").split(",") if text),
        cores=_number(annotations.get(keys.core), keys.core),
        memory_bytes=_number(annotations.get(keys.memory), keys.memory),
    )


def _grant(message: pb.ContainerAllocateResponse, pod_uid: str) -> GrantId | None:
    """None where gpu-manager answered: it mounts a directory named after the pod."""
    for mount in message.mounts:
        if mount.container_path.rstrip("/") == GRANT_MOUNT:
            name = mount.host_path.rstrip("/").rpartition("/")[2]
            if name in {"", ".", ".."} or "\0" in name:
                raise ParseError(f"AllocResp: the mount at {GRANT_MOUNT} names no grant: {mount.host_path[:80]!r}")
            return GrantId(name) if name != pod_uid else None
    return None


def _number(text: str | None, key: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ParseError(f"AllocResp: annotation {key} is not a number: {text[:40]!r}")
    return int(text)
