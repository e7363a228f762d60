"""Prepares claims for containers and ends them: grants in the ledger, and everything that a container mounts.

In: references to claims, from kubelet. Out: devices with CDI names; a VcudaError whose sentence kubelet shows on the
pod. A grant belongs to a claim and one of its requests, so several containers and pods may share it. Kubelet does not
call again before a container starts, so all files are ready when `prepare` returns. It repeats a failed call only after
a minute, so what may come right by itself is waited for: the API server, and room on a GPU whose former holder still
ends. A deleted pod waits for its `prepare`, so waiting ends when nobody needs the claim any more.

Invariant: one claim is prepared or ended by one call at a time, and a repeated call writes the same files again. No
claim is prepared before the ledger has all that kubelet has recorded.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol

import msgspec
import structlog

from deviceplugin.errors import (
    CapacityError,
    ClaimError,
    ClaimOutdatedError,
    KubeError,
    KubeNotFoundError,
    VcudaError,
)
from deviceplugin.kubelet.dra.claim_grants import (
    ClaimGrant,
    ClaimsOfCall,
    ClaimUsers,
    PreparedDevice,
    claim_grants,
    container_of,
    names_besides,
    part_here,
    prepared_devices,
    requests_of,
    require_all_read,
    require_one_grant,
)
from deviceplugin.kubelet.dra.slice_publisher import device_name
from deviceplugin.kubelet.dra.state_file import PreparedClaim
from deviceplugin.latest import others_turn, to_its_end
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.ledger import Ledger, new_grant_id, share_for
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.claims import Claim, ClaimRef, ClaimUid
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.dra")
WAIT_S = 40.0
"""Kubelet ends a call after 45 s, and asks again only after a minute."""
_LOOK_S = 2.0
_FIRST_RETRY_S = 0.2
_LEAST_READ_S = 1.0
_FRESH_S = 1.0
"""A grant is decided by a claim that was read so short a time before."""
INCOMPLETE = "the agent has not yet read from the API server which claims were prepared before its journal was lost"


class ClaimFiles(Protocol):
    """What containers see of a grant. `ready` returns the CDI name, when all files are on the disk; ContainerError.

    `container` stands for those that use it, or is None if they differ.
    """

    async def ready(self, grant: Grant, container: PodContainer | None) -> str: ...

    def drop(self, grant: Grant) -> None: ...


class ClaimReport(Protocol):
    """Hears what became of kubelet's calls; nothing waits for it. `seconds` passed since the call."""

    def claim_prepared(
        self, grants: Sequence[Grant], devices: Sequence[PreparedDevice], pods: Sequence[Pod], *, seconds: float
    ) -> None: ...

    def claim_refused(self, error: VcudaError, *, seconds: float) -> None: ...


class _Call(msgspec.Struct, frozen=True):
    """Of kubelet's, for one claim; by the clock of `Claims`."""

    ref: ClaimRef
    began: float
    deadline: float
    claims: ClaimsOfCall


class Claims(msgspec.Struct):
    """`pool` is that of this node's slice. `get_claim` reads the claim of a name if the UID is empty.

    `is_complete`: whether the ledger has all that kubelet has recorded. `clock` is monotonic. `name`: of a GPU as a
    device. `unstartable` hears of each container that only a new claim can start, because the node has changed;
    `ended` of each claim that kubelet ends.
    """

    ledger: Ledger
    inventory: Callable[[], Inventory]
    get_claim: Callable[[ClaimRef], Awaitable[Claim]]
    get_pods: Callable[[Set[PodUid]], Awaitable[Mapping[PodUid, Pod]]]
    files: ClaimFiles
    report: ClaimReport
    driver: str
    pool: str
    wait_s: float = WAIT_S
    look_s: float = _LOOK_S
    is_complete: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    name: Callable[[Gpu], str] = device_name
    unstartable: Callable[[ContainerRef, str], None] = lambda container, why: None
    ended: Callable[[ClaimUid], None] = lambda uid: None
    _locks: dict[ClaimUid, asyncio.Lock] = msgspec.field(default_factory=dict)
    _users: Counter[ClaimUid] = msgspec.field(default_factory=Counter)
    _turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.ledger.subscribe(self._changed.set)

    async def prepare(
        self, ref: ClaimRef, *, waited_s: float = 0.0, claims: ClaimsOfCall | None = None
    ) -> tuple[PreparedDevice, ...]:
        """`waited_s`: how long kubelet's call has waited already; its limit counts from the call.

        `claims`: what was read for the call's other claims.
        """
        began = self.clock() - waited_s
        try:
            async with self.alone(ref.uid):
                return await self._prepare(_Call(ref, began, began + self.wait_s, claims or ClaimsOfCall()))
        except VcudaError as error:
            self.report.claim_refused(error, seconds=self.clock() - began)
            raise

    async def _prepare(self, call: _Call) -> tuple[PreparedDevice, ...]:
        """Nothing is decided by what was read before a wait: kube-scheduler may have given the claim other devices."""
        claim = await self._read(call.ref, call.deadline)
        while True:
            try:
                prepared = await self._prepare_read(claim, call, self.clock())
            except ClaimOutdatedError as error:
                await self._give_back(claim, error)
                raise
            if prepared is not None:
                return prepared
            claim = await self._read(call.ref, call.deadline)
            await self._require_needed(claim)

    async def _prepare_read(self, claim: Claim, call: _Call, read_at: float) -> tuple[PreparedDevice, ...] | None:
        """None if something was waited for."""
        call.claims.add(claim, self.driver)
        wanted = self._grants_of(claim)
        pods = await self._pods(claim, call.deadline)
        await self._require_one_grant(claim, pods, call)
        async with self._turn:
            await others_turn()  # a call may have a hundred claims, and the disk is waited for
            self.is_complete()  # what it adopts may be this claim
            before = self._held(claim.ref, wanted)
            if not before and self.clock() - read_at > _FRESH_S:
                return None
            held = before or self._grant(call, wanted)
        if not held:
            await self._wait_for_room(wanted, call)
            return None
        users = ClaimUsers.of_pods(pods)
        containers = (container_of(claim.ref, each.request_name, users) for each in wanted)
        prepared = prepared_devices(wanted, await self._written(zip(held, containers, strict=True)))
        if not before:
            self.report.claim_prepared(held, prepared, pods, seconds=self.clock() - call.began)
        return prepared

    async def _give_back(self, claim: Claim, error: ClaimOutdatedError) -> None:
        """Kubelet would call again for ever; with its pods the claim ends, or becomes free for another node."""
        for pod in (await self.get_pods(frozenset(map(PodUid, claim.consumers)))).values():
            users = (each.ref for each in pod.containers if any(one.claim == claim.ref.name for one in each.claims))
            for container in users:
                self.unstartable(container, error.message)

    async def unprepare(self, ref: ClaimRef) -> None:
        """By UID alone: the claim may be gone. What is not known has ended already."""
        async with self.alone(ref.uid):
            self.ended(ref.uid)
            await self.release(ref)

    async def release(self, ref: ClaimRef) -> None:
        """By who has `alone`. On the disk when this returns, also if an earlier call ended it and failed then."""
        held = self.ledger.of_pod(PodUid(ref.uid))
        ended = self.ledger.release((each.id for each in held), why="its claim was unprepared", durable=False)
        try:
            await self.ledger.synced()
        finally:  # the ledger does not know them any more
            for grant in ended:
                self.files.drop(grant)
                log.info("claim_unprepared", claim=str(ref), grant=grant.id)

    def adopt(self, prepared: PreparedClaim, claim: Claim) -> tuple[Grant, ...]:
        """What kubelet recorded, by what the API server says the claim was given: the part on GPUs that are here.

        Returns what the ledger did not have. Raises ClaimError if nothing says what was given.
        """
        uuids = self._uuids()
        given = part_here(claim, driver=self.driver, pool=self.pool, uuids=uuids)
        if not given.devices and any(each.driver == self.driver for each in claim.devices or ()):
            return ()
        given = replace(given, consumers=claim.consumers or prepared.pods)
        grants = tuple(
            replace(self._new(claim.ref, each), id=GrantId(name.partition("=")[2]))
            for each in claim_grants(given, driver=self.driver, pool=self.pool, uuids=uuids)
            if (name := prepared.cdi.get(each.request_name)) is not None
        )
        return (*self.ledger.adopt(grants), *self._enlarged(grants))

    def _enlarged(self, grants: Sequence[Grant]) -> tuple[Grant, ...]:
        """Those whose other GPUs have come back."""
        known = ((self.ledger.get(each.id), each) for each in grants)
        more = tuple(
            replace(now, created=then.created)
            for then, now in known
            if then is not None and then.allocation.uuids < now.allocation.uuids
        )
        if more:
            self.ledger.reassign(*more, inventory=self.inventory())
        return more

    def is_all_here(self, claim: Claim) -> bool:
        """Whether this node has all GPUs now that the claim was given."""
        ours = [each for each in claim.devices or () if each.driver == self.driver]
        return ours == [*(part_here(claim, driver=self.driver, pool=self.pool, uuids=self._uuids()).devices or ())]

    async def write(self, claim: Claim) -> None:
        """The files of all its grants, as `prepare` writes them."""
        async with self.alone(claim.ref.uid):
            users = ClaimUsers.of_pods((await self.get_pods(frozenset(map(PodUid, claim.consumers)))).values())
            for grant in self.ledger.of_pod(PodUid(claim.ref.uid)):
                await self._ready(grant, container_of(claim.ref, grant.allocation.owner.name, users))

    async def _written(self, users: Iterable[tuple[Grant, PodContainer | None]]) -> list[str]:
        """The CDI names, when their files and the ledger are on the disk; the one is synced while the other is."""
        names = (self._ready(*each) for each in users)
        done = await asyncio.gather(*names, self.ledger.synced(), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return [each for each in done if isinstance(each, str)]

    async def _ready(self, grant: Grant, container: PodContainer | None) -> str:
        """To its end also if kubelet gave the call up: what a thread still writes would outlive the grant."""
        return await to_its_end(self.files.ready(grant, container))

    def is_here(self, claim: Claim) -> bool:
        """Whether it has a device of this node."""
        return any(each.driver == self.driver and each.pool == self.pool for each in claim.devices or ())

    def is_called(self, uid: ClaimUid) -> bool:
        """Whether somebody has `alone`, or waits for it."""
        return uid in self._locks

    @asynccontextmanager
    async def alone(self, uid: ClaimUid) -> AsyncIterator[None]:
        """No other call prepares or ends the claim meanwhile."""
        lock = self._locks.setdefault(uid, asyncio.Lock())
        self._users[uid] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[uid] -= 1
            if not self._users[uid]:
                del self._users[uid], self._locks[uid]

    def _uuids(self) -> dict[str, GpuUuid]:
        return {self.name(gpu): gpu.uuid for gpu in self.inventory().gpus}

    def _grants_of(self, claim: Claim) -> tuple[ClaimGrant, ...]:
        return claim_grants(claim, driver=self.driver, pool=self.pool, uuids=self._uuids())

    async def _pods(self, claim: Claim, deadline: float) -> tuple[Pod, ...]:
        """Those for which it is reserved. Kubelet calls for one of them, so it is shown soon if it is not yet."""
        uids = frozenset(map(PodUid, claim.consumers))
        while True:
            found = await self.get_pods(uids)
            if found:
                return tuple(found.values())
            if self.clock() >= deadline:
                raise ClaimError(f"no pod for which claim {claim.ref} is reserved is shown on this node")
            await asyncio.sleep(_FIRST_RETRY_S)

    async def _require_one_grant(self, claim: Claim, pods: Sequence[Pod], call: _Call) -> None:
        """What the pods say alone comes first; other claims are read until one of them is too much."""
        require_all_read(pods)
        own = {claim.ref.name: requests_of(claim, self.driver)}
        require_one_grant(own, pods)
        for name in names_besides(claim.ref, pods):
            other = ClaimRef(ClaimUid(""), claim.ref.namespace, name)
            key = (other.namespace, other.name)
            if requests := await call.claims.requests(key, partial(self._requests_of, other, call.deadline)):
                require_one_grant({**own, name: requests}, pods)

    async def _requests_of(self, ref: ClaimRef, deadline: float) -> frozenset[str]:
        if self.clock() >= deadline:
            raise KubeError(f"the API server did not show claim {ref} in time")
        try:
            return requests_of(await self._read(ref, deadline), self.driver)
        except ClaimError:
            return frozenset()  # it is not there, so nothing of it is prepared

    async def _read(self, ref: ClaimRef, deadline: float) -> Claim:
        """Tried again until the deadline: kubelet would wait for a minute."""
        wait = _FIRST_RETRY_S
        while True:
            try:
                async with asyncio.timeout(max(_LEAST_READ_S, deadline - self.clock())):
                    return await self.get_claim(ref)
            except TimeoutError:
                raise KubeError(f"the API server did not show claim {ref} in time") from None
            except KubeNotFoundError as error:
                raise ClaimError(error.message) from None
            except KubeError as error:
                if self.clock() + wait >= deadline:
                    raise
                log.warning("claim_unread", claim=str(ref), error=error.message, retry_in_s=wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, self.look_s)

    def _held(self, ref: ClaimRef, wanted: Sequence[ClaimGrant]) -> tuple[Grant, ...]:
        """The grants of an earlier call, in the order of `wanted`; none if there was none."""
        held = {grant.allocation.owner.name: grant for grant in self.ledger.of_pod(PodUid(ref.uid))}
        if not held:
            return ()
        for each in wanted:
            before = held.get(each.request_name)
            now = None if before is None else (before.allocation.request, before.allocation.uuids)
            if now != (each.request, frozenset(each.uuids)):
                raise ClaimOutdatedError(
                    f"claim {ref}, request {each.request_name}: it was prepared with other devices, which "
                    "kubelet has not ended yet; delete the pods that use the claim"
                )
        return tuple(held[each.request_name] for each in wanted)

    def _grant(self, call: _Call, wanted: Sequence[ClaimGrant]) -> tuple[Grant, ...]:
        """Empty if there is no room yet: the former holder of the GPU may still be ending."""
        grants = tuple(self._new(call.ref, each) for each in wanted)
        try:
            self._require_complete()
            self.ledger.grant_claim(grants, self.inventory())
        except CapacityError as error:
            if self.clock() >= call.deadline:
                raise
            log.info("claim_waits", claim=str(call.ref), error=error.message)
            return ()
        log.info("claim_allocated", claim=str(call.ref), grants=[grant.id for grant in grants])
        return grants

    def _require_complete(self) -> None:
        if not self.is_complete():
            raise CapacityError(INCOMPLETE)

    def _has_room(self, grants: tuple[Grant, ...]) -> bool:
        try:
            self._require_complete()
            self.ledger.require_room(grants, self.inventory())
        except CapacityError:
            return False
        return True

    async def _wait_for_room(self, wanted: Sequence[ClaimGrant], call: _Call) -> None:
        """Until they fit, for a moment. The API server is not asked at each change of the ledger."""
        grants = tuple(self._new(call.ref, each) for each in wanted)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self.look_s, max(0.0, call.deadline - self.clock()))):
                while not self._has_room(grants):
                    self._changed.clear()
                    await self._changed.wait()

    async def _require_needed(self, claim: Claim) -> None:
        """Raises ClaimError if nobody waits for the claim any more."""
        pods = await self.get_pods(frozenset(map(PodUid, claim.consumers)))
        is_needed = any(not (pod.deleting or pod.is_terminal) for pod in pods.values())
        if claim.deleting or claim.devices is None or not is_needed:
            raise ClaimError(f"claim {claim.ref} is not needed any more")

    def _new(self, ref: ClaimRef, wanted: ClaimGrant) -> Grant:
        inventory = self.inventory()
        owner = ContainerRef(PodRef(PodUid(ref.uid), ref.namespace, ref.name), wanted.request_name)
        shares = tuple(share_for(uuid, wanted.request, inventory) for uuid in wanted.uuids)
        return Grant(
            id=new_grant_id(),
            allocation=Allocation(owner, ContainerRole.UNKNOWN, wanted.request, shares),
            answered=frozenset(Resource),
            source=Source.CLAIM,
            proved=True,
            created=time.time(),
        )
