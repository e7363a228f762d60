"""The containers that a claim is prepared for: each may hold one grant, and their environment is part of the answer.

In: the pods for which the claim is reserved, other claims that their containers name. Out: a ClaimError for a
container that would hold two grants: of two CDI devices with the same mounts and variables the last wins without a
word, so the container would have the GPUs of both and the limits of one. Pure. A pod that joins two claims which are
prepared already starts all the same, for kubelet does not call then: `joined` finds it afterwards.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from deviceplugin.errors import ClaimError
from deviceplugin.kubelet.dra.claim_users import ClaimUsers
from deviceplugin.model.claims import Claim, ClaimRef
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
    for pod in pods:
        if pod.is_terminal:
            continue
        near = {name: found for (namespace, name), found in requests_by_claim.items() if namespace == pod.ref.namespace}
        for container in pod.containers:
            held = grants_of(container, near)
            if len(held) > 1:
                yield container, pod, held


def grants_of(container: PodContainer, requests_by_claim: Mapping[str, Collection[str]]) -> frozenset[str]:
    """`CLAIM/REQUEST` for each grant that the container uses."""
    return frozenset(
        f"{each.claim}/{request}"
        for each in container.claims
        for request in requests_by_claim.get(each.claim, ())
        if each.request in ("", request)
    )


def requests_of(claim: Claim, driver: str) -> frozenset[str]:
    return frozenset(each.request for each in claim.devices or () if each.driver == driver)


def container_of(ref: ClaimRef, request: str, pods: Iterable[Pod]) -> PodContainer | None:
    """Stands for all that use the request, if they say the same of their libraries; None if they differ."""
    users = ClaimUsers.of_pods(pods).of(ref.namespace, ref.name, request)
    kinds = {(frozenset(each.env.items()), each.has_volume_over_compat) for each in users}
    return users[0] if len(kinds) == 1 else None
