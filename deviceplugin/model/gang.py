"""Pods that start together or not at all, under the names that their schedulers use.

In: what a pod says of its group: annotations, labels, or fields of its spec. Out: a `Gang`, or None. Not here: how many
members it needs, which stands in objects that only their scheduler reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_NAMES = (
    "scheduling.volcano.sh/group-name",
    "scheduling.k8s.io/group-name",
    "gang.scheduling.koordinator.sh/name",
    "scheduling.x-k8s.io/pod-group",
)


@dataclass(frozen=True, slots=True)
class Gang:
    """`waits`: members that have a node are held at Permit until all have one, for minutes.

    Kubernetes' own pod groups (`spec.schedulingGroup`) are placed as a whole in one cycle, and none of them waits.
    """

    namespace: str
    name: str
    waits: bool = True

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(
    namespace: str,
    *,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    group: str = "",
    workload: tuple[str, str, str] = ("", "", ""),
) -> Gang | None:
    """`group` is spec.schedulingGroup's (1.36); `workload` spec.workloadRef's name, group and replica (1.35)."""
    if group:
        return Gang(namespace, group, waits=False)
    if workload[0]:
        return Gang(namespace, "/".join(part for part in workload if part))
    for texts in (annotations, labels):
        for name in _NAMES:
            if found := texts.get(name):
                return Gang(namespace, found)
    return None
