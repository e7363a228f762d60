"""Kubelet's checkpoint file, written and read in its real forms.

In: the store. Out: `kubelet_internal_checkpoint`, replaced by rename from a name that begins with a dot, fsynced, mode
0600. Forms: `numa` (1.20 and later) and `flat` (1.12 to 1.19). The checksum is over our
JSON: kubelet hashes Go's print of its structs, which no other program can verify.
"""

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any, Literal

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.kubelet.devices import NO_NUMA, DeviceStore, Held, HeldKey

Form = Literal["numa", "flat"]


def write(path: Path, store: DeviceStore, *, form: Form) -> None:
    data = {"PodDeviceEntries": _entries(store, form) or None, "RegisteredDevices": _registered(store)}
    replace_file(path, json.dumps({"Data": data, "Checksum": _checksum(data)}))


def replace_file(path: Path, text: str) -> None:
    """As kubelet writes any of its checkpoints (pkg/kubelet/util/store): nobody reads half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path, store: DeviceStore) -> tuple[str, ...]:
    """Fills `held`; the registered resources. A missing or damaged file gives an empty state, as with kubelet."""
    try:
        document = json.loads(path.read_bytes())
        data = document["Data"]
        if document["Checksum"] != _checksum(data):
            return ()
        for entry in data["PodDeviceEntries"] or ():
            key = HeldKey(entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
            response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            store.held[key] = Held(_by_numa(entry["DeviceIDs"]), response)
    except (OSError, ValueError, KeyError, TypeError):
        store.held.clear()
        return ()
    store.recount()
    return tuple(data["RegisteredDevices"])


def _entries(store: DeviceStore, form: Form) -> list[dict[str, Any]]:
    return [
        {
            "PodUID": key.uid,
            "ContainerName": key.container,
            "ResourceName": key.resource,
            "DeviceIDs": sorted(held.ids)
            if form == "flat"
            else {str(node): sorted(devices) for node, devices in sorted(held.by_numa.items())},
            "AllocResp": base64.b64encode(held.response.SerializeToString()).decode(),
        }
        for key, held in store.held.items()
    ]


def _registered(store: DeviceStore) -> dict[str, list[str]]:
    return {resource: sorted(devices) for resource, devices in store.healthy.items()}


def _by_numa(devices: dict[str, list[str]] | list[str]) -> dict[int, frozenset[str]]:
    if isinstance(devices, list):
        return {NO_NUMA: frozenset(devices)}
    return {int(node): frozenset(ids) for node, ids in devices.items()}


def _checksum(data: dict[str, Any]) -> int:
    """Kubelet's is FNV-32a over a dump of its Go structs, which nobody else can make; this one is only as strict."""
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
