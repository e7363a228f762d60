"""What a claim gives and to whom: a grant for each of its requests, held by the containers that name the request.

In: a claim as the API server has it, the devices that this node published, the node's pods. Out: `ClaimGrant`s, which
are requests to the ledger, and the containers of each; or an error that says why the claim cannot be prepared here.
Pure. Amounts are those that were consumed, not those that were requested: the scheduler rounds up, and fills in what a
request leaves out.

The claim itself knows its pods only, so the containers are found by what their pods say. A claim is named by its pods,
not identified: the next claim of a name belongs to the next pods, so pods that have ended do not count.

A container may hold one grant, and its environment is part of the answer. One that would hold two is a ClaimError: of
two CDI devices with the same mounts and variables the last wins without a word, so the container would have the GPUs of
both and the limits of one. A pod that joins two claims which are prepared already starts all the same, for kubelet does
not call then: `joined` finds it afterwards.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from deviceplugin.errors import ClaimError, ClaimOutdatedError, RequestError
from deviceplugin.model.claims import MOST_CLAIMS, MOST_MENTIONS, Claim, ClaimedDevice, ClaimKey, ClaimRef
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU
from deviceplugin.structs import replace

CORES, MEMORY = "cores", "memory"
_MOST_GPUS = 16  # the capacity of the limits file (library/abi/limits.h)


class ClaimGrant(msgspec.Struct, frozen=True):
    """Of one request. `devices` and `uuids` are in the same order."""

    request_name: str
    request: Request
    devices: tuple[ClaimedDevice, ...]
    uuids: tuple[GpuUuid, ...]


class PreparedDevice(msgspec.Struct, frozen=True):
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
        raise ClaimError(f"{what}: it has two parts of one GPU; a container can have only one")
    if len(held) > _MOST_GPUS:
        raise ClaimError(f"{what}: it has {len(held)} GPUs; a container can have at most {_MOST_GPUS}")
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


_ClaimName = tuple[str, str]


class ClaimUsers(msgspec.Struct, frozen=True):
    """The containers of the node by the claims that they name: namespace and name."""

    by_claim: Mapping[_ClaimName, tuple[tuple[str, PodContainer], ...]] = msgspec.field(default_factory=dict)

    @classmethod
    def of_pods(cls, pods: Iterable[Pod]) -> "ClaimUsers":
        found: dict[_ClaimName, list[tuple[str, PodContainer]]] = {}
        for pod in pods:
            if pod.is_terminal:
                continue
            for container in pod.containers:
                for each in container.claims:
                    found.setdefault((pod.ref.namespace, each.claim), []).append((each.request, container))
        return cls({name: tuple(users) for name, users in found.items()})

    def of(self, namespace: str, claim: str, request: str) -> tuple[PodContainer, ...]:
        """Those that name this request, or all of the claim."""
        users = self.by_claim.get((namespace, claim), ())
        return tuple(container for named, container in users if named in ("", request))


def names_besides(ref: ClaimRef, pods: Iterable[Pod]) -> frozenset[str]:
    """Claims that containers name beside this one."""
    return frozenset(
        each.claim
        for pod in pods
        for container in pod.containers
        if any(one.claim == ref.name for one in container.claims)
        for each in container.claims
        if each.claim != ref.name
    )


def require_all_read(pods: Iterable[Pod]) -> None:
    """What a container names beyond the bounds could be a second grant."""
    for pod in pods:
        if pod.has_unread_claims:
            raise ClaimError(
                f"pod {pod.ref} has more than {MOST_CLAIMS} claims, or its containers name them more than "
                f"{MOST_MENTIONS:,} times; with so many it gets no GPU"
            )


def require_one_grant(requests_by_claim: Mapping[str, Collection[str]], pods: Iterable[Pod]) -> None:
    """`requests_by_claim`: the requests of each claim, by its name, that have devices of this driver."""
    for pod in pods:
        for container in pod.containers:
            held = grants_of(container, requests_by_claim)
            if len(held) > 1:
                raise ClaimError(
                    f"container {container.ref} would have {len(held)} parts of GPUs ({', '.join(sorted(held))}), "
                    "and a container may have one; name one request in its resources.claims, or ask for equal "
                    "parts by `count`"
                )


def joined(
    requests_by_claim: Mapping[tuple[str, str], Collection[str]], pods: Iterable[Pod]
) -> Iterator[tuple[PodContainer, Pod, frozenset[str]]]:
    """Containers that hold several of the prepared requests, which are given by the claim's namespace and name."""
    near_by_namespace: defaultdict[str, dict[str, Collection[str]]] = defaultdict(dict)
    for (namespace, name), found in requests_by_claim.items():
        near_by_namespace[namespace][name] = found
    for pod in pods:
        near = near_by_namespace.get(pod.ref.namespace)
        if pod.is_terminal or not near:
            continue
        for container in pod.containers:
            held = grants_of(container, near)
            if len(held) > 1:
                yield container, pod, held


def grants_of(container: PodContainer, requests_by_claim: Mapping[str, Collection[str]]) -> frozenset[str]:
    """`CLAIM/REQUEST` for each grant that the container uses."""
    return frozenset(
        f"{each.claim}/{request}"
        for each in set(container.claims)
        for request in requests_by_claim.get(each.claim, ())
        if each.request in ("", request)
    )


def requests_of(claim: Claim, driver: str) -> frozenset[str]:
    return frozenset(each.request for each in claim.devices or () if each.driver == driver)


def container_of(ref: ClaimRef, request: str, users: ClaimUsers) -> PodContainer | None:
    """Stands for all that use the request, if they say the same of their libraries; None if they differ."""
    found = users.of(ref.namespace, ref.name, request)
    kinds = {(frozenset(each.env.items()), each.has_volume_over_compat) for each in found}
    return found[0] if len(kinds) == 1 else None


class ClaimsOfCall(msgspec.Struct, frozen=True):
    """The requests with devices of this driver, of the claims that one call of kubelet is about: each is read once."""

    _found: dict[ClaimKey, frozenset[str]] = msgspec.field(default_factory=dict)
    _locks: defaultdict[ClaimKey, asyncio.Lock] = msgspec.field(default_factory=lambda: defaultdict(asyncio.Lock))

    def add(self, claim: Claim, driver: str) -> None:
        self._found[claim.key] = requests_of(claim, driver)

    async def requests(self, key: ClaimKey, read: Callable[[], Awaitable[frozenset[str]]]) -> frozenset[str]:
        if (known := self._found.get(key)) is not None:
            return known
        async with self._locks[key]:
            if key not in self._found:
                self._found[key] = await read()
            return self._found[key]
