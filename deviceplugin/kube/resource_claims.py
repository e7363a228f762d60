"""ResourceClaims of resource.k8s.io: what was allocated, for which pods, and what a driver says of it in the status.

In: a reference; without a UID it is whichever claim has the name. Out: `Claim`; KubeNotFoundError also where the name
belongs to another claim now; ParseError.
"""

from collections.abc import Sequence

import msgspec

from deviceplugin.errors import KubeNotFoundError
from deviceplugin.kube.quantity import exact_quantity
from deviceplugin.kube.structs import Json, Object, decode
from deviceplugin.kube.transport import MERGE, Transport, group_path
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid, DeviceStatus

GROUP = "resource.k8s.io/v1"


class _Result(Json):
    """status.allocation.devices.results."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int] | None = None
    admin_access: bool | None = None


class _Opaque(Json):
    """The parameters of one driver, in an entry of status.allocation.devices.config."""

    driver: str = ""


class _Config(Json):
    """An entry of status.allocation.devices.config, from the claim or from its class."""

    opaque: _Opaque | None = None


class _Results(Json):
    """status.allocation.devices."""

    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _Allocation(Json):
    """status.allocation."""

    devices: _Results | None = None


class _Consumer(Json):
    """An entry of status.reservedFor."""

    resource: str = ""
    uid: str = ""


class _Status(Json):
    """status. `devices`: what drivers said, as they said it."""

    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None
    devices: list[dict[str, object]] | None = None


class _Claim(Object):
    """A ResourceClaim."""

    status: _Status | None = None


async def get_claim(transport: Transport, claim: ClaimRef) -> Claim:
    return _claim(await _get(transport, claim))


async def show_devices(transport: Transport, claim: ClaimRef, driver: str, shown: Sequence[DeviceStatus]) -> None:
    """Replaces what the driver says in `status.devices`; what others say stays.

    Raises KubeConflictError if the claim changed meanwhile, KubeNotFoundError if it is gone.
    """
    found = await _get(transport, claim)
    before = (found.status.devices if found.status else None) or []
    now = [*(each for each in before if each.get("driver") != driver), *map(_status, shown)]
    if _without_times(now) == _without_times(before):
        return  # the time of the change stays that of the change
    meta = {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version}
    body = msgspec.json.encode({"metadata": meta, "status": {"devices": now}})
    what = f"show the devices of claim {claim}"
    await transport.request("PATCH", f"{_path(claim)}/status", what=what, body=body, content_type=MERGE)


def _without_times(said: object) -> object:
    if isinstance(said, dict):
        return {name: _without_times(value) for name, value in said.items() if name != "lastTransitionTime"}
    return list(map(_without_times, said)) if isinstance(said, list) else said


def _path(claim: ClaimRef) -> str:
    return group_path(GROUP, "namespaces", claim.namespace, "resourceclaims", claim.name)


async def _get(transport: Transport, claim: ClaimRef) -> _Claim:
    body = await transport.request("GET", _path(claim), what=f"get claim {claim}")
    found = decode(_Claim, body, what="a ResourceClaim")
    if claim.uid and found.metadata.uid != claim.uid:
        raise KubeNotFoundError(f"claim {claim} with UID {claim.uid} is gone; another claim has its name", code=404)
    return found


def _claim(found: _Claim) -> Claim:
    meta, status = found.metadata, found.status or _Status()
    allocation = status.allocation
    allocated = _Results() if allocation is None else allocation.devices or _Results()
    results = None if allocation is None else allocated.results or []
    return Claim(
        ref=ClaimRef(ClaimUid(meta.uid), meta.namespace, meta.name),
        devices=None if results is None else tuple(map(_device, results)),
        consumers=frozenset(each.uid for each in status.reserved_for or () if each.resource == "pods"),
        configured=frozenset(each.opaque.driver for each in allocated.config or () if each.opaque is not None),
        deleting=meta.deletion_timestamp is not None,
    )


def _device(result: _Result) -> ClaimedDevice:
    """Of a prioritized list the result names `request/alternative`; containers and drivers use the first part."""
    return ClaimedDevice(
        request=result.request.partition("/")[0],
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id or "",
        consumed={name: exact_quantity(amount) for name, amount in (result.consumed_capacity or {}).items()},
        is_administrative=bool(result.admin_access),
    )


def _status(device: DeviceStatus) -> dict[str, object]:
    """Without a share's id the API server takes two shares of one device for one."""
    condition = {
        "type": "Ready",
        "status": "True" if device.is_ready else "False",
        "reason": device.reason,
        "message": device.message,
        "lastTransitionTime": device.since,
    }
    found: dict[str, object] = {"driver": device.driver, "pool": device.pool, "device": device.device}
    if device.share_id:
        found["shareID"] = device.share_id
    return found | {"conditions": [condition]}
