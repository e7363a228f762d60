"""What a claim was given, as requests to the ledger: one grant for each request of the claim.

In: a claim as the API server has it, the devices that this node published. Out: `ClaimGrant`s, or an error that says
why the claim cannot be prepared here. Pure. Amounts are those that were consumed, not those that were requested: the
scheduler rounds up, and fills in what a request leaves out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from deviceplugin.errors import ClaimError, ClaimOutdatedError, RequestError
from deviceplugin.model.claims import Claim, ClaimedDevice
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU

CORES, MEMORY = "cores", "memory"
_MOST_GPUS = 16  # the capacity of the limits file (library/abi/limits.h)


@dataclass(frozen=True, slots=True)
class ClaimGrant:
    """Of one request. `devices` and `uuids` are in the same order."""

    request_name: str
    request: Request
    devices: tuple[ClaimedDevice, ...]
    uuids: tuple[GpuUuid, ...]


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of one request. `cdi` is empty but for the first of a request: the name stands for all its GPUs."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi: str


def prepared_devices(grants: Sequence[ClaimGrant], names: Sequence[str]) -> tuple[PreparedDevice, ...]:
    """`names`: the CDI name of each."""
    return tuple(
        PreparedDevice(each.request_name, device.pool, device.device, device.share_id, "" if at else name)
        for each, name in zip(grants, names, strict=True)
        for at, device in enumerate(each.devices)
    )


def part_here(claim: Claim, *, driver: str, pool: str, uuids: Mapping[str, GpuUuid]) -> Claim:
    """With those of its devices that `claim_grants` accepts: of this driver, on GPUs that are here."""
    if claim.devices is None:
        return claim
    here = (each for each in claim.devices if each.driver == driver and each.pool == pool and each.device in uuids)
    return replace(claim, devices=tuple(here))


def claim_grants(claim: Claim, *, driver: str, pool: str, uuids: Mapping[str, GpuUuid]) -> tuple[ClaimGrant, ...]:
    """`uuids`: the GPU behind each device that was published, by its name. Raises ClaimError."""
    if claim.devices is None:
        raise ClaimError(f"claim {claim.ref} has no devices: nothing is allocated for it")
    if not claim.consumers:
        raise ClaimError(f"claim {claim.ref} is reserved for no pod")
    ours = [each for each in claim.devices if each.driver == driver]
    if not ours:
        raise ClaimError(f"claim {claim.ref} has no device of {driver}")
    if driver in claim.configured:
        raise ClaimError(
            f"claim {claim.ref} has parameters for {driver}, which knows none; leave out `config` in claim and class"
        )
    by_request: dict[str, list[ClaimedDevice]] = {}
    for each in ours:
        by_request.setdefault(each.request, []).append(each)
    return tuple(_grant(claim, name, tuple(devices), pool, uuids) for name, devices in by_request.items())


def _grant(
    claim: Claim, name: str, devices: tuple[ClaimedDevice, ...], pool: str, uuids: Mapping[str, GpuUuid]
) -> ClaimGrant:
    what = f"claim {claim.ref}, request {name}"
    for each in devices:
        if each.is_administrative:
            raise ClaimError(f"{what}: there is no administrative access to a GPU; leave out adminAccess")
        if each.pool != pool or each.device not in uuids:
            raise ClaimOutdatedError(
                f"{what}: this node has no device {each.device} in pool {each.pool}; delete its pods"
            )
    held = tuple(uuids[each.device] for each in devices)
    if len(set(held)) != len(held):
        raise ClaimError(f"{what}: it has two parts of one GPU; a container holds one part of a GPU")
    if len(held) > _MOST_GPUS:
        raise ClaimError(f"{what}: it has {len(held)} GPUs; a container holds at most {_MOST_GPUS}")
    amounts = {(_whole(each, CORES, 1, what), _whole(each, MEMORY, BLOCK_BYTES, what)) for each in devices}
    if len(amounts) != 1:
        raise ClaimError(f"{what}: its GPUs do not have equal parts")
    return ClaimGrant(name, _request(*amounts.pop(), len(held), what), devices, held)


def _request(cores: int, blocks: int, gpus: int, what: str) -> Request:
    """100 cores are the whole GPU: nobody else can have anything of it."""
    try:
        if cores == CORES_PER_GPU:
            return parse_request(cores * gpus, 0)
        return parse_request(cores * gpus, blocks * gpus, parts=gpus)
    except RequestError as error:
        raise ClaimError(f"{what}: {error.message}") from None


def _whole(device: ClaimedDevice, capacity: str, unit: int, what: str) -> int:
    """ClaimError for an amount that was not published so: it cannot be enforced exactly."""
    amount = device.consumed.get(capacity, Fraction(0)) / unit
    if amount.denominator != 1 or amount <= 0:
        raise ClaimError(f"{what}: {amount * unit} {capacity} of {device.device} cannot be given")
    return int(amount)
