"""Looks at the node from outside every two seconds, and remembers what must not be.

In: the node. Out: violations, each once. Not here: the rules (`violations`, `without_devices`, `waiting_pods`). The
API server, which may not answer for a while, is asked in a thread of its own.
Invariant: what one look finds wrong counts only if the next one, a moment later, finds the same: a process that just
ends has no files any more.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sandbox.cluster import pods
from tests.e2e.soak.faults import UNREACHABLE
from tests.e2e.soak.growth import Growth
from tests.e2e.soak.kubelet_checkpoint import recorded
from tests.e2e.soak.node import Node
from tests.e2e.soak.running import Running, running_now
from tests.e2e.soak.violations import Key, WithoutDevices, violations
from tests.e2e.soak.waiting_pods import WaitingPods

PERIOD_S = 2.0
MOMENT_S = 0.4


@dataclass(slots=True)
class Watcher:
    """What was seen so far. `say` prints a line."""

    node: Node
    blocks_of: Mapping[str, int]
    say: Callable[[str], None]
    waiting: WaitingPods = field(default_factory=WaitingPods)
    growth: Growth = field(default_factory=Growth)
    violations: list[str] = field(default_factory=list)
    looks: int = 0
    checked: set[Key] = field(default_factory=set)
    most_at_once: int = 0
    without_devices: WithoutDevices = field(default_factory=WithoutDevices)

    def watch_containers(self, over: threading.Event) -> None:
        while not over.wait(PERIOD_S):
            self.look_at_containers()

    def watch_pods(self, over: threading.Event) -> None:
        while not over.wait(PERIOD_S):
            self.look_at_pods()

    def look_at_containers(self) -> None:
        found = self._running()
        self.looks += 1
        self.checked |= {each.key for each in found}
        self.most_at_once = max(self.most_at_once, len(found))
        self._judge(found)
        self.growth.look(self.node, len(found))

    def look_at_pods(self) -> None:
        try:
            items = self.node.cluster.admin.get(pods.PODS)["items"]
        except UNREACHABLE:
            return
        for sentence in self.waiting.look(items, time.monotonic()):
            self.say(f"STUCK: {sentence}")
        for words in self.waiting.refused.values():
            if "Traceback" in words:
                self.add(f"a pod was refused with a traceback: {words}")

    def add(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)
            self.say(f"VIOLATION: {sentence}")

    def _running(self) -> list[Running]:
        return running_now(self.node.cluster.layout.name)

    def _judge(self, found: Sequence[Running]) -> None:
        wrong = self._wrong(found)
        if wrong:
            time.sleep(MOMENT_S)
            still = self._wrong(self._running())
            for sentence in wrong:
                if sentence in still:
                    self.add(sentence)

    def _wrong(self, found: Sequence[Running]) -> list[str]:
        entries = recorded(self.node.kubelet_checkpoint) or {}
        bare = [each for each in found if each.has_nothing]
        return [
            *violations([each for each in found if not each.has_nothing], self.blocks_of),
            *self.without_devices.look(bare, entries, self._is_told, time.monotonic()),
        ]

    def _is_told(self, each: Running) -> bool:
        lines = self.node.agent.log().splitlines()
        return any("container_without_gpu" in line and each.pod in line for line in lines)
