"""What the acts of the node's half have in common: the node, its pods, and what was found so far.

In: a node and a narrator. Out: pods submitted and looked at, promises kept. `DemoError` only where going on makes no
sense.
"""

import time
from dataclasses import dataclass, field

from sandbox.apiserver import ApiError
from sandbox.gpunode import GpuNode
from scripts.demonstration.document import GreedyContainer, Ledgers, Promise, SeenPod
from scripts.demonstration.failure import DemoError
from scripts.demonstration.node import seen
from scripts.demonstration.node.cast import NAMESPACE, Role
from scripts.demonstration.node.stage import NODE
from scripts.demonstration.node.tables import Tables

READY_S = 20.0
RUN_S = 15.0
EMPTY_S = 20.0


@dataclass(slots=True)
class Play:
    """One performance."""

    stage: GpuNode
    show: Tables
    pods: dict[str, SeenPod] = field(default_factory=dict)
    refused: dict[str, SeenPod] = field(default_factory=dict)
    kept: list[Promise] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    ledgers: Ledgers | None = None
    slices: tuple[GreedyContainer, ...] = ()

    async def start_agent(self) -> float:
        """Seconds until kubelet offers its devices."""
        began = time.monotonic()
        await self.stage.start_agent(deadline_s=READY_S)
        return round(time.monotonic() - began, 3)

    async def run(self, role: Role) -> SeenPod:
        """Until it runs or is refused."""
        self.submit(role)
        await self.settled(role.name)
        return self.look(role.name)

    def submit(self, role: Role) -> None:
        """What a user and a scheduler do."""
        self.stage.server.store.create("pods", role.manifest(), namespace=NAMESPACE)
        self.stage.server.store.bind(role.name, NODE, namespace=NAMESPACE)

    async def settled(self, name: str) -> None:
        def done() -> bool:
            return self._phase(name) in ("Running", "Failed")

        try:
            await self.stage.server.until(done, seconds=RUN_S)
        except TimeoutError as error:
            why = seen.waiting(self.stage, name)
            raise DemoError(f"pod {name} neither runs nor is refused after {RUN_S:g} s: {why}") from error

    def look(self, name: str) -> SeenPod:
        self.pods[name] = seen.pod(self.stage, name)
        return self.pods[name]

    def refuse(self, name: str) -> SeenPod:
        """Moves it to those that did not get in."""
        self.refused[name] = self.pods.pop(name)
        return self.refused[name]

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.stage.server.store.objects("pods", namespace=NAMESPACE)]

    def delete(self, name: str) -> None:
        try:
            self.stage.server.store.delete("pods", name, namespace=NAMESPACE)
        except ApiError:
            return  # the agent has removed it, as it does with failed pods that a controller owns

    def keep(self, *promises: Promise) -> None:
        self.kept += promises

    def _phase(self, name: str) -> str:
        phase: str = self.stage.server.store.get("pods", name, namespace=NAMESPACE)["status"]["phase"]
        return phase
