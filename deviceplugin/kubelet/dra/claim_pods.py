"""The containers that a claim is prepared for: each may hold one grant, and their environment is part of the answer.

In: the pods for which the claim is reserved, other claims that their containers name. Out: a ClaimError for a
container that would hold two grants: of two CDI devices with the same mounts and variables the last wins without a
word, so the container would have the GPUs of both and the limits of one. Pure. A pod that joins two claims which are
prepared already starts all the same, for kubelet does not call then: `joined` finds it afterwards.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from deviceplugin.errors import ClaimError
from deviceplugin.kubelet.dra.claim_users import ClaimUsers
from deviceplugin.model.claims import MOST_CLAIMS, MOST_MENTIONS, Claim, ClaimKey, ClaimRef
from deviceplugin.model.pod import Pod, PodContainer


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
                    f"container {container.ref} would hold {len(held)} parts of GPUs ({', '.join(sorted(held))}), and "
                    "a container holds one; name one request in its resources.claims, or ask for equal parts by `count`"
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


@dataclass(frozen=True, slots=True)
class ClaimsOfCall:
    """The requests with devices of this driver, of the claims that one call of kubelet is about: each is read once."""

    _found: dict[ClaimKey, frozenset[str]] = field(default_factory=dict)
    _locks: defaultdict[ClaimKey, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def add(self, claim: Claim, driver: str) -> None:
        self._found[claim.key] = requests_of(claim, driver)

    async def requests(self, key: ClaimKey, read: Callable[[], Awaitable[frozenset[str]]]) -> frozenset[str]:
        if (known := self._found.get(key)) is not None:
            return known
        async with self._locks[key]:
            if key not in self._found:
                self._found[key] = await read()
            return self._found[key]
