"""Which containers use a claim: by what their pods say, because the claim itself knows its pods only.

In: the node's pods. Out: for a claim and each of its requests, the containers that name it. Pure. A claim is named by
its pods, not identified: the next claim of a name belongs to the next pods, so pods that have ended do not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deviceplugin.model.pod import Pod, PodContainer

_ClaimName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ClaimUsers:
    """The containers of the node by the claims that they name: namespace and name."""

    by_claim: Mapping[_ClaimName, tuple[tuple[str, PodContainer], ...]] = field(default_factory=dict)

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
