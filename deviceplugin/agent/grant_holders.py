"""Which containers hold a grant: its owner, or for a claim those that use it.

In: the node's pods, looked at once and only where a grant of a claim is asked for. Out: containers, and a grant as
views show it: a claim with one container is shown as that container, one that several share, or none yet, by its own
name and the name of its request. Values of one moment: make it again to look again.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property

from deviceplugin.kubelet.dra.claim_users import ClaimUsers
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.model.allocation import OwnerKey
from deviceplugin.model.pod import Pod, PodContainer


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
