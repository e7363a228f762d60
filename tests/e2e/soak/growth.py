"""Memory and descriptors of agent and scheduler, over the life of each process.

In: the node, at one look after the other. Out: an early and a late sample of each life that was long enough, and a
sentence for each one that grew. Not here: when to look.
Invariant: only samples of one process are compared, the first taken when it had done everything at least once.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.soak.node import Node

SETTLED_S = 60.0
"""After its start a process still imports, fills caches and reads what was there before."""
SHORTEST_S = 120.0
MOST_MIB = 32
MOST_DESCRIPTORS = 24
DESCRIPTORS_OF_A_CONTAINER = 2
"""The agent may listen for each share, and may look at its processes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment; `containers` run beside it."""

    at: float
    rss_mib: float
    descriptors: int
    containers: int


@dataclass(frozen=True, slots=True)
class Life:
    """What a process used early and late."""

    name: str
    pid: int
    early: Sample
    late: Sample

    @property
    def seconds(self) -> float:
        return self.late.at - self.early.at

    @property
    def grew(self) -> str:
        """A sentence, or nothing."""
        more_containers = max(0, self.late.containers - self.early.containers)
        descriptors = self.late.descriptors - self.early.descriptors - DESCRIPTORS_OF_A_CONTAINER * more_containers
        if self.late.rss_mib - self.early.rss_mib <= MOST_MIB and descriptors <= MOST_DESCRIPTORS:
            return ""
        return f"the memory or the descriptors of the {self.name} grew: {self}"

    def __str__(self) -> str:
        rss = f"{self.early.rss_mib:.0f} -> {self.late.rss_mib:.0f} MiB"
        descriptors = f"{self.early.descriptors} -> {self.late.descriptors} descriptors"
        return f"{rss}, {descriptors} in {self.seconds:.0f} s"


@dataclass(slots=True)
class Growth:
    """Samples of the processes that were seen so far, by name and PID."""

    began: dict[tuple[str, int], float] = field(default_factory=dict)
    early: dict[tuple[str, int], Sample] = field(default_factory=dict)
    late: dict[tuple[str, int], Sample] = field(default_factory=dict)

    def look(self, node: Node, containers: int) -> None:
        for name in ("agent", "scheduler"):
            pid = node.programs[name].pid
            sample = read_sample(pid, time.monotonic(), containers)
            if sample is not None:
                self.note(name, pid, sample)

    def note(self, name: str, pid: int, sample: Sample) -> None:
        key = (name, pid)
        if sample.at - self.began.setdefault(key, sample.at) >= SETTLED_S:
            self.early.setdefault(key, sample)
            self.late[key] = sample

    def lives(self) -> Iterator[Life]:
        """Those that lasted long enough, in order."""
        for (name, pid), early in self.early.items():
            life = Life(name, pid, early, self.late[name, pid])
            if life.seconds >= SHORTEST_S:
                yield life


def read_sample(pid: int, at: float, containers: int) -> Sample | None:
    """None if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    rss = re.search(r"VmRSS:\s+(\d+)", status)
    return Sample(at, int(rss[1]) / 1024, descriptors, containers) if rss else None
