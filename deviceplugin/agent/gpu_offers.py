"""Which GPUs are offered by which way to ask, the device plugin or ResourceClaims; and which containers hold a grant.

In: what the operator chose, the grants, the node's pods. Out of `GpuOffers`: the inventory for the device plugin and
the extender, and the amounts for the ResourceSlice. A GPU is offered in one way, because two schedulers would decide
about it without each other. A GPU that was offered in the other way before keeps its grants: what they leave is offered
to claims, and the device plugin has it as unhealthy, so that kubelet knows the devices that its containers still hold.
Pure but for the ledger's state.

Out of `GrantHolders`: the containers of a grant, which are its owner or those that use a claim, and the grant as views
show it. A claim with one container is shown as that container, one that several share, or none yet, by its own name and
the name of its request. Pods are looked at once, and only if a grant of a claim is asked for; make it again to look
again.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from functools import cached_property

import msgspec

from deviceplugin.errors import ConfigError
from deviceplugin.kubelet.dra.claim_grants import ClaimUsers
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.model.allocation import Allocation, OwnerKey
from deviceplugin.model.gpu import Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace

_TO_CLAIMS = "offered to ResourceClaims"
_HELD_BY_CLAIMS = "allocated to ResourceClaims, and offered to the device plugin when they have ended"


class GpuOffers(msgspec.Struct, frozen=True):
    """`chosen`: GPUs for claims by UUID or minor, empty for all."""

    enabled: bool
    chosen: frozenset[str]
    grants: Callable[[], Iterable[Grant]]

    def check(self, inventory: Inventory) -> None:
        """Raises ConfigError for a GPU that this node does not have."""
        known = {name for gpu in inventory.gpus for name in _names(gpu)}
        if unknown := sorted(self.chosen - known):
            raise ConfigError(
                f"--dra-gpus names {', '.join(unknown)}, and this node has "
                f"{', '.join(f'{gpu.minor} ({gpu.uuid})' for gpu in inventory.gpus)}; correct it"
            )

    def is_for_claims(self, gpu: Gpu) -> bool:
        return self.enabled and (not self.chosen or not self.chosen.isdisjoint(_names(gpu)))

    def for_plugin(self, inventory: Inventory) -> Inventory:
        """Also for kube-scheduler's extender, through the node's annotation."""
        by_plugin, by_claims = self._gpus_held(claims=False), self._gpus_held(claims=True)
        gpus = tuple(each for each in inventory.gpus if not self.is_for_claims(each) or each.uuid in by_plugin)
        closed = {gpu.uuid: Health(healthy=False, reason=_TO_CLAIMS) for gpu in gpus if self.is_for_claims(gpu)}
        closed |= {gpu.uuid: Health(healthy=False, reason=_HELD_BY_CLAIMS) for gpu in gpus if gpu.uuid in by_claims}
        return replace(inventory, gpus=gpus, health=closed | inventory.health)

    def for_claims(self, inventory: Inventory) -> Inventory:
        return replace(inventory, gpus=tuple(filter(self.is_for_claims, inventory.gpus)))

    def held_by_plugin(self) -> Mapping[GpuUuid, GpuAmount]:
        return occupied(self._held(claims=False))

    def _held(self, *, claims: bool) -> Iterable[Allocation]:
        return (each.allocation for each in self.grants() if (each.source is Source.CLAIM) is claims)

    def _gpus_held(self, *, claims: bool) -> Set[GpuUuid]:
        return {share.uuid for each in self._held(claims=claims) for share in each.shares}


def _names(gpu: Gpu) -> tuple[str, str]:
    return gpu.uuid, str(gpu.minor)


class GrantHolders:
    """Of one moment."""

    def __init__(self, pods: Callable[[], Iterable[Pod]]) -> None:
        self._pods = pods

    @cached_property
    def _users(self) -> ClaimUsers:
        return ClaimUsers.of_pods(self._pods())

    def containers(self, grant: Grant) -> tuple[PodContainer, ...]:
        """Of a claim."""
        claim = grant.allocation.owner
        return self._users.of(claim.pod.namespace, claim.pod.name, claim.name)

    def keys(self, grant: Grant) -> frozenset[OwnerKey]:
        if grant.source is not Source.CLAIM:
            return frozenset({grant.allocation.owner.key})
        return frozenset(each.ref.key for each in self.containers(grant))

    def shown(self, grant: Grant) -> Grant:
        users = self.containers(grant) if grant.source is Source.CLAIM else ()
        if len(users) != 1:
            return grant
        (user,) = users
        allocation = replace(grant.allocation, owner=user.ref, role=user.role, index=user.index)
        return replace(grant, allocation=allocation)
