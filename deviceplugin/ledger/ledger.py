"""Which container holds which part of which GPU of this node, and the only way to change it.

In: grants and named transitions on them. Out: queries, and a call to every subscriber. Each transition is one
entry of the journal: a crash leaves all of it or nothing. It is on the disk before memory changes, but for what others
say again after a power cut (`answer`, `prove`, `follow_limits`), and for claims, of which nothing is answered before
`synced`. This is the last check: `grant`, `reassign_to_owner` and `reassign` raise CapacityError if a GPU would hold
more than it has, whatever the caller computed; only `adopt` accepts what is true already. A GPU that is over-committed
already, as found at start, may be relieved or left as it is, never loaded further. A container holds one grant at most.

A grant whose owner was guessed wrong keeps its GPUs and takes the true owner's request: kubelet has recorded its device
nodes and environment in its checkpoint, and starts the container with these. Limits can change, because they are
written at PreStartContainer.

Single-threaded by contract: every call is made on the agent's only asyncio loop, and none awaits, so no caller sees
half a transition. Not here: where to place (`placement`), which container asks (`kubelet`), when to release
(`reconcile`).
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Set

import msgspec
import structlog

from deviceplugin.errors import CapacityError, LedgerError, OwnershipError
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.records import LedgerChange
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, OwnerKey, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.pod import NO_LIMITS, Pod, PodContainer, PodLimits
from deviceplugin.model.pod_request import parts_of
from deviceplugin.model.request import Request, parse_request
from deviceplugin.model.units import Resource, ResourceNames, memory_of, memory_text
from deviceplugin.placement.fit import NOTHING, GpuAmount, demand_of, model_of
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace


class Load(msgspec.Struct, frozen=True):
    """What is held of one GPU and what it has: nothing if the GPU is not in the inventory."""

    uuid: GpuUuid
    held: GpuAmount
    has: GpuAmount

    @property
    def is_over(self) -> bool:
        return not self.has.covers(self.held)

    def is_worse_than(self, before: "Load") -> bool:
        """More is held of what is over-committed now."""
        return not (before.held | self.has).covers(self.held)

    def __str__(self) -> str:
        return (
            f"GPU {self.uuid}: {self.held.cores} of {self.has.cores} cores and "
            f"{memory_of(self.held.blocks, self.has.blocks)} are allocated"
        )


def loads(allocations: Iterable[Allocation], inventory: Inventory) -> dict[GpuUuid, Load]:
    held = occupied(allocations)
    has = {gpu.uuid: model_of(gpu).whole for gpu in inventory.gpus if gpu.uuid in held}
    return {uuid: Load(uuid, part, has.get(uuid, NOTHING)) for uuid, part in held.items()}


def check(
    before: Iterable[Allocation], after: Iterable[Allocation], inventory: Inventory, *, gpus: Set[GpuUuid]
) -> None:
    """Raises CapacityError if `after` over-commits one of these GPUs more than `before` does."""
    over = [load for load in loads(after, inventory).values() if load.is_over and load.uuid in gpus]
    held = loads(before, inventory) if over else {}
    for load in over:
        now = held.get(load.uuid, Load(load.uuid, NOTHING, load.has))
        if load.is_worse_than(now):
            raise CapacityError(_sentence(now, load, inventory))


def _sentence(now: Load, then: Load, inventory: Inventory) -> str:
    gpu = inventory.gpu(then.uuid)
    if gpu is None:
        return f"GPU {then.uuid} is not on this node any more, so nothing of it can be allocated; create the pod again"
    free = now.has - now.held
    more = GpuAmount(then.held.cores - now.held.cores, then.held.blocks - now.held.blocks)
    return (
        f"GPU {gpu.minor} ({then.uuid}) has {free.cores} cores and {memory_text(free.blocks)} free and the request "
        f"needs {more.cores} cores and {memory_text(more.blocks)} more of it; "
        "ask for less, or create the pod again when other pods have ended"
    )


class Claimant(msgspec.Struct, frozen=True):
    """The container that a grant goes to, and what it asked for."""

    owner: ContainerRef
    role: ContainerRole
    request: Request
    limits: PodLimits = NO_LIMITS
    index: int = 0


def owner_named(key: OwnerKey, pod: Pod | None) -> tuple[ContainerRef, ContainerRole, int]:
    """Names, role and index of a container; without its pod only the UID and the container's name are known."""
    owner = ContainerRef(pod.ref if pod is not None else PodRef(key[0], "", ""), key[1])
    known = pod.container(key[1]) if pod is not None else None
    return (owner, known.role, known.index) if known is not None else (owner, ContainerRole.UNKNOWN, 0)


def claimant_proved(
    grant: Grant, key: OwnerKey, counts: tuple[int, int], pod: Pod | None, names: ResourceNames
) -> Claimant:
    """The container that kubelet's checkpoint names for the grant: it has the counts, the pod says over how many GPUs.

    Where the pod is not known, counts as the grant's mean that it is the grant's request. RequestError or ParseError
    for a request that vcuda would not have admitted.
    """
    owner, role, index = owner_named(key, pod)
    request = grant.allocation.request
    if pod is not None:
        parts = parts_of(pod, key[1], names)
        request = parse_request(*counts, parts=parts, names=names)
    elif (request.cores, request.blocks) != counts:
        request = parse_request(*counts, names=names)
    return Claimant(owner, role, request, index=index)


def claimant_of(grant: Grant) -> Claimant:
    allocation = grant.allocation
    return Claimant(allocation.owner, allocation.role, allocation.request, grant.limits, allocation.index)


def moved(grant: Grant, to: Claimant, inventory: Inventory) -> Grant:
    """The grant in the hands of another container, on the same GPUs, sized by that container's request."""
    shares = grant.allocation.shares
    if len(shares) != to.request.gpus:
        raise OwnershipError(
            f"container {to.owner} asked for {to.request.gpus} GPUs and kubelet gave it grant {grant.id}, which has "
            f"{len(shares)}; delete the pod, so that it is admitted again"
        )
    sized = tuple(share_for(share.uuid, to.request, inventory, least=share.blocks) for share in shares)
    allocation = Allocation(to.owner, to.role, to.request, sized, to.index)
    return replace(grant, allocation=allocation, limits=to.limits)


def kept(grant: Grant, to: Claimant) -> Grant:
    """The grant under another container's name and otherwise as it is; that container's start will size it."""
    allocation = replace(grant.allocation, owner=to.owner, role=to.role, index=to.index)
    return replace(grant, allocation=allocation, limits=to.limits, proved=False)


def share_for(uuid: GpuUuid, request: Request, inventory: Inventory, *, least: int = 0) -> GpuShare:
    """What a request takes of a GPU; one that is gone had `least` blocks, and what the request needs."""
    demand, gpu = demand_of(request), inventory.gpu(uuid)
    return GpuShare(uuid, *demand.takes(gpu.blocks if gpu is not None else max(least, demand.amount.blocks)))


log = structlog.get_logger("vcuda.ledger")


def new_grant_id() -> GrantId:
    """Names the directory that the container mounts: short, unguessable, and never used twice."""
    return GrantId(f"g-{secrets.token_hex(8)}")


class Ledger:
    """The grants of one journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._grants = journal.grants
        self._owners: dict[OwnerKey, Grant] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._reindex()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Damage found when the journal was opened, one sentence each."""
        return self._journal.warnings

    def grants(self) -> tuple[Grant, ...]:
        return tuple(self._grants.values())

    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(grant.allocation for grant in self._grants.values())

    def get(self, grant_id: GrantId) -> Grant | None:
        return self._grants.get(grant_id)

    def of_owner(self, key: OwnerKey) -> Grant | None:
        """The grant of one container; if a damaged journal left two, the later one."""
        return self._owners.get(key)

    def owners(self) -> Mapping[OwnerKey, Grant]:
        """The grant of each container as it is now; later changes are not seen in it."""
        return self._owners

    def of_pod(self, uid: PodUid) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._grants.values() if grant.allocation.owner.pod.uid == uid)

    def answered(self, key: OwnerKey, resource: Resource) -> bool:
        """Whether this container's Allocate for this resource has been answered."""
        grant = self.of_owner(key)
        return grant is not None and resource in grant.answered

    def over_commitments(self, inventory: Inventory) -> tuple[Load, ...]:
        """GPUs that hold more than they have; only `adopt` and the loss of a GPU can cause this."""
        return tuple(load for load in loads(self.allocations(), inventory).values() if load.is_over)

    def grant(self, grant: Grant, inventory: Inventory) -> None:
        """Adds the grant of a first Allocate; durable when this returns.

        Raises CapacityError if it does not fit, LedgerError if its owner holds another grant or the disk refuses.
        """
        if grant.id in self._grants:
            raise LedgerError(f"grant {grant.id} exists already; this is a bug of the agent, please report it")
        self._put("grant", (grant,), inventory)

    def grant_claim(self, grants: tuple[Grant, ...], inventory: Inventory) -> None:
        """Adds all grants of a claim in one entry, or none; durable after `synced`.

        Raises CapacityError if they do not fit together, LedgerError if one is there already or the disk refuses.
        """
        self._put("grant_claim", grants, inventory, durable=False)

    async def synced(self) -> None:
        """Every transition before this is durable; raises LedgerError. It is one wait for all who ask together."""
        await self._journal.synced()

    def require_room(self, grants: tuple[Grant, ...], inventory: Inventory) -> None:
        """Raises CapacityError if they do not fit beside the others; changes nothing."""
        new = {grant.id: grant.allocation for grant in grants}
        changed = (grant.allocation for each in new if (grant := self.get(each)) is not None)
        gpus = {share.uuid for each in (*changed, *new.values()) for share in each.shares}
        # Each is looked at, those of other GPUs no further: a node holds hundreds, and kubelet waits.
        before = {
            grant_id: grant.allocation
            for grant_id, grant in self._grants.items()
            for share in grant.allocation.shares
            if share.uuid in gpus
        }
        check(before.values(), {**before, **new}.values(), inventory, gpus=gpus)

    def answer(self, grant_id: GrantId, resource: Resource) -> Grant:
        """The second resource's Allocate was answered. After a power cut kubelet's checkpoint says it (`prove`)."""
        grant = self._require(grant_id)
        return self._update("answer", grant, replace(grant, answered=grant.answered | {resource}), durable=False)

    def repeat(self, grant_id: GrantId, resource: Resource) -> Grant:
        """Kubelet forgot the container and asks again from the start: only this resource is answered now."""
        grant = self._require(grant_id)
        return self._update("repeat", grant, replace(grant, answered=frozenset({resource})))

    def prove(self, grant_id: GrantId, recorded: Set[Resource]) -> Grant:
        """Kubelet's checkpoint confirms the owner, and that these resources were answered.

        It does so again after a power cut, at the first round of a new agent, so nothing here waits for the disk.
        """
        grant = self._require(grant_id)
        confirmed = replace(grant, proved=True, answered=grant.answered | recorded)
        return self._update("prove", grant, confirmed, durable=False)

    def set_limits(self, grant_id: GrantId, limits: PodLimits) -> Grant:
        """What the pod asks for at its start; limits take nothing from other grants."""
        grant = self._require(grant_id)
        return self._update("set_limits", grant, replace(grant, limits=limits))

    def follow_limits(self, changes: Mapping[GrantId, PodLimits]) -> tuple[Grant, ...]:
        """Limits that a running pod's author changed, of all its containers in one entry; returns what has changed.

        The author sets the pace, so nothing here waits for the disk: after a power cut the annotation says it again.
        Subscribers are not called, because no other grant gains or loses anything.
        """
        known = ((grant, limits) for each, limits in changes.items() if (grant := self.get(each)) is not None)
        changed = tuple((grant.id, limits) for grant, limits in known if grant.limits != limits)
        if changed:
            self._journal.append(LedgerChange("follow_limits", limits=changed), durable=False)
            self._reindex()
            self._journal.compact_if_due()
        return tuple(self._require(each) for each, _ in changed)

    def reassign_to_owner(self, grant_id: GrantId, to: Claimant, inventory: Inventory) -> Grant:
        """Gives the grant to the owner in kubelet's checkpoint: on the same GPUs, sized by that container's request.

        If that container was recorded with another grant, the two are exchanged in one entry. Raises OwnershipError if
        the request needs another number of GPUs, CapacityError if it does not fit beside the other grants.
        """
        grant = self._require(grant_id)
        fixed = replace(moved(grant, to, inventory), proved=True)
        displaced = self.of_owner(to.owner.key)
        if displaced is None or displaced.id == grant_id:
            self.reassign(fixed, inventory=inventory, kind="reassign_to_owner")
        else:
            self._exchange(grant, fixed, displaced, inventory)
        return fixed

    def reassign(self, *grants: Grant, inventory: Inventory, kind: str = "reassign") -> None:
        """Changes owners, requests or shares of known grants in one entry; all of them are checked together."""
        for grant in grants:
            self._require(grant.id)
        self._put(kind, grants, inventory)

    def describe(self, grant_id: GrantId, container: PodContainer, inventory: Inventory) -> None:
        """Adds what a rebuilt grant could not know: the pod's names, the container's role and its index.

        These are facts, so they are accepted even if they show that a GPU is over-committed. A grant that belongs to
        another container by now does not change.
        """
        grant = self.get(grant_id)
        if grant is None or grant.allocation.owner.key != container.ref.key:
            return
        before = {load.uuid: load for load in self.over_commitments(inventory)}
        allocation = replace(grant.allocation, owner=container.ref, role=container.role, index=container.index)
        self._update("describe", grant, replace(grant, allocation=allocation))
        for load in self.over_commitments(inventory):
            if load.uuid not in before or load.is_worse_than(before[load.uuid]):
                log.warning("gpu_overcommitted", gpu=load.uuid, grant=grant_id, load=str(load))

    def release(self, ids: Iterable[GrantId], *, why: str, durable: bool = True) -> tuple[Grant, ...]:
        """Removes grants in one entry and returns them. Unknown ids count as released already.

        Without `durable` it is so after `synced`.
        """
        ending = tuple(grant for grant_id in dict.fromkeys(ids) if (grant := self.get(grant_id)) is not None)
        if ending:
            change = LedgerChange("release", removed=tuple(grant.id for grant in ending), why=why)
            self._commit(change, durable=durable)
            self._journal.compact_if_due()  # not at a grant, because kubelet waits for that
        return ending

    def release_ended(self, grants: Iterable[Grant], *, why: str) -> tuple[Grant, ...]:
        """Releases those that still have the given owner: a reassigned grant belongs to another pod now."""
        return self.release((then.id for then in grants if self._is_still_owned(then)), why=why)

    def adopt(self, grants: Iterable[Grant]) -> tuple[Grant, ...]:
        """Adds what kubelet's checkpoint proves to be held, even beyond capacity: it is true already.

        What the ledger has, by grant or by owner, does not change. Returns what was added; call
        `over_commitments` afterwards.
        """
        fresh: dict[OwnerKey, Grant] = {}
        for grant in grants:
            key = grant.allocation.owner.key
            if key not in self._owners and grant.id not in self._grants:
                fresh.setdefault(key, grant)
        if fresh:
            self._commit(LedgerChange("adopt", put=tuple(fresh.values())))
        return tuple(fresh.values())

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        self._subscribers.append(subscriber)

    def close(self) -> None:
        self._journal.close()

    def _exchange(self, grant: Grant, fixed: Grant, displaced: Grant, inventory: Inventory) -> None:
        """The displaced grant goes to the former owner: sized for it if that works, otherwise unchanged."""
        former = claimant_of(grant)
        try:
            other = replace(moved(displaced, former, inventory), proved=False)
            self.reassign(fixed, other, inventory=inventory, kind="exchange")
        except (OwnershipError, CapacityError):
            self.reassign(fixed, kept(displaced, former), inventory=inventory, kind="exchange")

    def _is_still_owned(self, then: Grant) -> bool:
        now = self.get(then.id)
        return now is not None and now.allocation.owner.key == then.allocation.owner.key

    def _require(self, grant_id: GrantId) -> Grant:
        grant = self.get(grant_id)
        if grant is None:
            raise LedgerError(f"grant {grant_id} is not in the ledger; delete the pod, so that it is admitted again")
        return grant

    def _update(self, kind: str, before: Grant, after: Grant, *, durable: bool = True) -> Grant:
        if after != before:
            self._commit(LedgerChange(kind, put=(after,)), durable=durable)
        return after

    def _put(self, kind: str, grants: tuple[Grant, ...], inventory: Inventory, *, durable: bool = True) -> None:
        self._check_owners(grants)
        self.require_room(grants, inventory)
        self._commit(LedgerChange(kind, put=grants), durable=durable)

    def _check_owners(self, grants: tuple[Grant, ...]) -> None:
        # What they held goes first: two grants may exchange their owners in one entry.
        owners = {key: grant.id for key, grant in self._owners.items()}
        for grant in grants:
            if (former := self.get(grant.id)) is not None and owners.get(former.allocation.owner.key) == grant.id:
                del owners[former.allocation.owner.key]
        for grant in grants:
            other = owners.setdefault(grant.allocation.owner.key, grant.id)
            if other != grant.id:
                raise LedgerError(
                    f"{grant.allocation.owner} holds grant {other} and cannot hold {grant.id} as well; "
                    "delete the pod, so that it is admitted again"
                )

    def _commit(self, change: LedgerChange, *, durable: bool = True) -> None:
        self._journal.append(change, durable=durable)
        self._reindex()
        for subscriber in tuple(self._subscribers):
            try:
                subscriber()
            except Exception as error:
                log.error("ledger_subscriber_failed", transition=change.kind, error=repr(error))  # noqa: TRY400 - `error` says it

    def _reindex(self) -> None:
        self._owners = {grant.allocation.owner.key: grant for grant in self._grants.values()}
