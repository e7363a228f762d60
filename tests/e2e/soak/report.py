"""The table at the end of a soak.

In: what was counted. Out: lines of text. Not here: counting.
Invariant: every violation stands in it, in full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a soak found out. It passed if nothing was violated and no pod got stuck."""

    minutes: float
    pods_made: Mapping[str, int]
    killed_containers: int
    containers_checked: int
    most_at_once: int
    looks: int
    faults: Mapping[str, int]
    ended_by_themselves: Mapping[str, int]
    unanswered_calls: int
    refused: Mapping[str, int]
    without_devices: int
    forgotten: int
    stuck: Sequence[str] = ()
    violations: Sequence[str] = ()
    left: Sequence[str] = ()
    lives: Sequence[str] = ()
    repeat: str = ""
    errors: Sequence[str] = field(default=())

    @property
    def wrong(self) -> list[str]:
        blind = [] if self.containers_checked else ["the watcher saw no container, so it has proved nothing"]
        return [*self.violations, *self.stuck, *self.left, *self.errors, *blind]

    @property
    def passed(self) -> bool:
        return not self.wrong


def table(found: Findings) -> str:
    rows = [
        ("minutes", f"{found.minutes:.1f}"),
        ("workloads made", str(sum(found.pods_made.values()))),
        *_indented(found.pods_made),
        ("containers killed", str(found.killed_containers)),
        ("containers checked", f"{found.containers_checked} (at most {found.most_at_once} at once)"),
        ("looks", str(found.looks)),
        ("faults", str(sum(found.faults.values()))),
        *_indented(found.faults),
        ("programs that ended by themselves", str(sum(found.ended_by_themselves.values()))),
        *_indented(found.ended_by_themselves),
        ("calls that nobody answered", str(found.unanswered_calls)),
        ("refused pods", str(sum(found.refused.values()))),
        *_indented(found.refused),
        ("started by kubelet without devices", str(found.without_devices)),
        ("pods lost with kubelet's checkpoint", str(found.forgotten)),
        ("violations", str(len(found.violations) + len(found.errors))),
        ("stuck pods", str(len(found.stuck))),
        ("left over", str(len(found.left))),
        *[("memory and descriptors", life) for life in found.lives],
    ]
    width = max(len(name) for name, _ in rows if len(name) < 60)
    lines = [f"{value:>6}  {name}" if name.startswith("  ") else f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([*lines, *(f"- {sentence}" for sentence in found.wrong), f"To repeat: {found.repeat}"])


def _indented(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(f"  {name}", str(count)) for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]
