"""One entry of kubelet's checkpoint: the devices of one resource of one container, and our answer as kubelet keeps it.

In: the entry's JSON. Out: a `CheckpointEntry`, None where it is another plugin's, or a ParseError that names the key.
Entries of other plugins are not decoded beyond their resource name.
"""

import base64
import binascii
import itertools
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from deviceplugin.errors import ParseError
from deviceplugin.ledger.evidence import CheckpointEntry, RecordedAnswer
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.ids import DeviceId
from deviceplugin.model.mount import GRANT_MOUNT
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.wire import deviceplugin_pb2 as pb

NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: msgspec.Raw = msgspec.field(name="DeviceIDs")
    alloc_resp: msgspec.Raw = msgspec.Raw(b"null")


_ENTRY = msgspec.json.Decoder(_Entry)
_DEVICE_IDS = msgspec.json.Decoder(dict[str, list[DeviceId] | None] | list[DeviceId] | None)
_TEXT = msgspec.json.Decoder(str | None)


class EntryParser:
    """Knows which resources are ours."""

    def __init__(self, names: ResourceNames) -> None:
        self._ours = {names.of(resource): resource for resource in Resource}
        self._names = names
        self._device_key = f"{names.domain}/vcuda-device"

    def parse(self, raw: bytes | msgspec.Raw) -> CheckpointEntry | None:
        try:
            found = _ENTRY.decode(raw)
        except NOT_JSON as error:
            raise ParseError(str(error)) from error
        resource = self._ours.get(found.resource_name)
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
            device_paths=tuple(text for text in annotations.get(self._device_key, "").split(",") if text),
            cores=_number(annotations.get(self._names.core), self._names.core),
            memory_bytes=_number(annotations.get(self._names.memory), self._names.memory),
        )


def _devices(raw: msgspec.Raw) -> frozenset[DeviceId]:
    """The union over NUMA nodes: a device that belongs to several is listed under each."""
    try:
        found = _DEVICE_IDS.decode(raw)
    except NOT_JSON as error:
        raise ParseError(f"DeviceIDs: {error}") from error
    if isinstance(found, dict):
        return frozenset(itertools.chain.from_iterable(node or () for node in found.values()))
    return frozenset(found or ())


def _message(raw: msgspec.Raw) -> Any:  # noqa: ANN401 - a generated message has no type that mypy may read
    """The decoded ContainerAllocateResponse; None where the entry keeps none."""
    try:
        text = _TEXT.decode(raw)
        return pb.ContainerAllocateResponse.FromString(base64.b64decode(text, validate=True)) if text else None
    except (*NOT_JSON, binascii.Error, ValueError, DecodeError) as error:
        raise ParseError(f"AllocResp: {error}") from error


def _grant(message: Any, pod_uid: str) -> GrantId | None:  # noqa: ANN401 - as above
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
