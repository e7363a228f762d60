"""Reads kubelet's own record of devices, `kubelet_internal_checkpoint`.

In: the file, in the form of kubelet 1.20 and later (device IDs by NUMA node). Out: a `Checkpoint` of the two vcuda
resources, or a ParseError that names the file, the entry and the key. Entries of other plugins are not decoded beyond
their resource name. The file is never written: kubelet drops a file with a wrong checksum, and with it every allocation
of the node. The checksum covers a dump of Go structs and is not verified here; kubelet replaces the file by rename, so
one open file is one complete version.

Measured: 1.8 MB take 5 ms; 200 pods take 5 ms the first time, under 1 ms when a reader has seen most of them and
0.05 ms when nothing has changed, so the agent's loop may call this directly.
"""

import base64
import binascii
import errno
import itertools
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from deviceplugin.errors import KubeletError, ParseError
from deviceplugin.ledger.durable_files import cause, read_within
from deviceplugin.ledger.grant import Checkpoint, CheckpointEntry, GrantId, RecordedAnswer
from deviceplugin.model.allocation import DRIVER_MOUNT, GRANT_MOUNT, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import DeviceId, GpuUuid
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.wire import deviceplugin_pb2 as pb

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
MOST_BYTES = 32 << 20
"""1,600 shares, two resources each: 10 KiB for an entry, where one has about 5."""

_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[msgspec.Raw] | None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: msgspec.Raw = msgspec.field(name="DeviceIDs")
    alloc_resp: msgspec.Raw = msgspec.Raw(b"null")


_FILE = msgspec.json.Decoder(_File)
_ENTRY = msgspec.json.Decoder(_Entry)
_DEVICE_IDS = msgspec.json.Decoder(dict[str, list[DeviceId] | None] | None)
_TEXT = msgspec.json.Decoder(str | None)


class CheckpointReader:
    """Reads one file again and again; what has not changed is not decoded twice, neither the file nor an entry."""

    def __init__(self, path: Path, names: ResourceNames = ResourceNames()) -> None:
        self.path = path
        self._names = names
        self._missing = annotation_names(names.domain).container_missing
        self._resources = {names.of(resource): resource for resource in Resource}
        self._known: dict[bytes, CheckpointEntry | None] = {}
        self._last: tuple[bytes, Checkpoint] | None = None

    def read(self) -> Checkpoint:
        """The file as it is now; a missing one is an empty checkpoint, an unreadable one a KubeletError."""
        try:
            data = read_within(self.path, MOST_BYTES)
        except FileNotFoundError:
            return Checkpoint(exists=False)
        except OSError as error:
            finding = f"kubelet's checkpoint {self.path} cannot be read: {cause(error)}"
            raise KubeletError(finding, advice=_remedy(error)) from error
        # By content: two writes may fall into one tick of the file system's clock.
        if self._last is None or self._last[0] != data:
            self._last = (data, self.parse(data, where=str(self.path)))
        return self._last[1]

    def parse(self, data: bytes, *, where: str) -> Checkpoint:
        """Raises ParseError for anything that is not a checkpoint."""
        seen: dict[bytes, CheckpointEntry | None] = {}
        entries: dict[tuple[str, str, Resource], CheckpointEntry] = {}
        for place, raw in enumerate(_raw_entries(data, where)):
            text = bytes(raw)
            try:
                entry = self._known[text] if text in self._known else self._entry(text)
            except ParseError as error:
                raise ParseError(f"{where}, entry {place}: {error.message}") from error
            seen[text] = entry
            if entry is not None:
                entries[entry.pod, entry.container, entry.resource] = entry
        self._known = seen  # of this version alone, so that entries of ended pods do not add up
        return Checkpoint(tuple(entries.values()))

    def _entry(self, raw: bytes) -> CheckpointEntry | None:
        try:
            found = _ENTRY.decode(raw)
        except _NOT_JSON as error:
            raise ParseError(str(error)) from error
        resource = self._resources.get(found.resource_name)
        if resource is None:
            return None
        try:
            devices, answer = _devices(found.device_ids), self._answer(found)
        except ParseError as error:
            at = f"{found.resource_name} of container {found.container_name!r}"
            raise ParseError(f"{at}: {error.message}") from error
        return CheckpointEntry(PodUid(found.pod_uid), found.container_name, resource, devices, answer)

    def _answer(self, entry: _Entry) -> RecordedAnswer | None:
        message = _message(entry.alloc_resp)
        if message is None or not (message.envs or message.mounts or message.devices or message.annotations):
            return None
        annotations = message.annotations
        return RecordedAnswer(
            grant=_grant(message, entry.pod_uid),
            gpus=tuple(GpuUuid(text) for text in message.envs.get(_VISIBLE_DEVICES, "").split(",") if text),
            cores=_number(annotations.get(self._names.core), self._names.core),
            memory_bytes=_number(annotations.get(self._names.memory), self._names.memory),
            directory=_mounted_at(message, GRANT_MOUNT),
            driver=_mounted_at(message, DRIVER_MOUNT),
            mounts=tuple(str(each.host_path) for each in message.mounts),
            devices=tuple(str(each.host_path) for each in message.devices),
            missing=tuple(text for text in annotations.get(self._missing, "").split(",") if text),
        )


def _remedy(error: OSError) -> str:
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "raise the limit of open files"
    if error.errno == errno.EFBIG:
        return f"it has more than {MOST_BYTES >> 20} MiB, so drain the node, remove it and restart kubelet"
    return "check the disk, and run the agent as root"


def _raw_entries(data: bytes, where: str) -> list[msgspec.Raw]:
    try:
        return _FILE.decode(data).data.pod_device_entries or []
    except _NOT_JSON as error:
        raise ParseError(f"{where} is not a checkpoint of kubelet: {error}") from error


def _devices(raw: msgspec.Raw) -> frozenset[DeviceId]:
    """The union over NUMA nodes: a device that belongs to several is listed under each."""
    try:
        found = _DEVICE_IDS.decode(raw)
    except _NOT_JSON as error:
        raise ParseError(f"DeviceIDs: {error}") from error
    return frozenset(itertools.chain.from_iterable(node or () for node in (found or {}).values()))


def _message(raw: msgspec.Raw) -> Any:  # noqa: ANN401 - a generated message has no type that mypy may read
    """The decoded ContainerAllocateResponse; None if the entry keeps none."""
    try:
        text = _TEXT.decode(raw)
        return pb.ContainerAllocateResponse.FromString(base64.b64decode(text, validate=True)) if text else None
    except (*_NOT_JSON, binascii.Error, ValueError, DecodeError) as error:
        raise ParseError(f"AllocResp: {error}") from error


def _grant(message: Any, pod_uid: str) -> GrantId | None:  # noqa: ANN401 - as above
    """None if gpu-manager answered: it mounts a directory named after the pod."""
    if all(mount.container_path.rstrip("/") != GRANT_MOUNT for mount in message.mounts):
        return None
    path = _mounted_at(message, GRANT_MOUNT)
    name = path.rpartition("/")[2]
    if name in {"", ".", ".."} or "\0" in name:
        raise ParseError(f"AllocResp: the mount at {GRANT_MOUNT} names no grant: {path[:80]!r}")
    return GrantId(name) if name != pod_uid else None


def _mounted_at(message: Any, place: str) -> str:  # noqa: ANN401 - as above
    """The path on the node, without a slash at its end."""
    found = (mount.host_path for mount in message.mounts if mount.container_path.rstrip("/") == place)
    return str(next(found, "")).rstrip("/")


def _number(text: str | None, key: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ParseError(f"AllocResp: annotation {key} is not a number: {text[:40]!r}")
    return int(text)
