"""Containers that asked for a GPU and run without anything of ours.

In: those of one look, kubelet's checkpoint, whether the agent has reported each, the time. Out: a sentence for each
broken promise. Not here: looking.
Kubelet admits a pod without any Allocate while it does not know the resource, as after a start with a damaged
checkpoint. Nobody can prevent that: the agent must report it. But what kubelet has devices for must not start without.
Invariant: the agent is given time to report; a container that has ended meanwhile is forgiven.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tests.e2e.soak.kubelet_checkpoint import Owner
from tests.e2e.soak.running import Running

TOLD_WITHIN_S = 90.0
"""The agent compares every second; a busy machine and a fault may keep it from doing so for a while."""
Key = tuple[str, str, str]
"""Pod UID, container, and when its first process began."""


@dataclass(slots=True)
class WithoutDevices:
    """Those that were seen so far, with the time of the first look."""

    since: dict[Key, float] = field(default_factory=dict)
    told: set[Key] = field(default_factory=set)

    def look(
        self,
        found: Sequence[Running],
        entries: Collection[Owner],
        is_told: Callable[[Running], bool],
        now: float,
    ) -> list[str]:
        said = []
        for each in found:
            key = each.key
            self.since.setdefault(key, now)
            if (each.uid, each.container) in entries:
                said.append(f"{each.where} runs without its GPU, for which kubelet has devices")
            elif key not in self.told and is_told(each):
                self.told.add(key)
            elif key not in self.told and now - self.since[key] > TOLD_WITHIN_S:
                said.append(f"{each.where} runs without its GPU, and the agent does not tell it")
        return said
