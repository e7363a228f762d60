"""ResourceClaims of resource.k8s.io: what was allocated, and for which pods.

In: a reference; without a UID it is whichever claim has the name. Out: `Claim`; KubeNotFoundError also where the name
belongs to another claim now; ParseError.
"""

from deviceplugin.errors import KubeNotFoundError
from deviceplugin.kube.quantity import exact_quantity
from deviceplugin.kube.structs import Json, Object, decode
from deviceplugin.kube.transport import Transport, group_path
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid

GROUP = "resource.k8s.io/v1"


class _Result(Json):
    """status.allocation.devices.results."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None
    consumed_capacity: dict[str, str | int] | None = None


class _Results(Json):
    """status.allocation.devices."""

    results: list[_Result] | None = None


class _Allocation(Json):
    """status.allocation."""

    devices: _Results | None = None


class _Consumer(Json):
    """An entry of status.reservedFor."""

    resource: str = ""
    uid: str = ""


class _Status(Json):
    """status."""

    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _Claim(Object):
    """A ResourceClaim."""

    status: _Status | None = None


async def get_claim(transport: Transport, claim: ClaimRef) -> Claim:
    path = group_path(GROUP, "namespaces", claim.namespace, "resourceclaims", claim.name)
    found = decode_claim(await transport.request("GET", path, what=f"get claim {claim}"))
    if claim.uid and found.ref.uid != claim.uid:
        raise KubeNotFoundError(f"claim {claim} with UID {claim.uid} is gone; another claim has its name", code=404)
    return found


def decode_claim(body: bytes) -> Claim:
    found = decode(_Claim, body, what="a ResourceClaim")
    meta, status = found.metadata, found.status or _Status()
    allocation = status.allocation
    results = None if allocation is None else (allocation.devices or _Results()).results or []
    return Claim(
        ref=ClaimRef(ClaimUid(meta.uid), meta.namespace, meta.name),
        devices=None if results is None else tuple(map(_device, results)),
        consumers=frozenset(each.uid for each in status.reserved_for or () if each.resource == "pods"),
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
    )
