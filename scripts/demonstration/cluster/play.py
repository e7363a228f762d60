"""What the acts of the cluster's half have in common: the stage, pods that come and go, and what was found so far.

In: a stage and a narrator. Out: pods submitted through the webhook, waited for and looked at; promises kept.
`DemoError` only where going on makes no sense.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from sandbox.admission import DeniedError, create_pod
from scripts.demonstration.cluster import seen
from scripts.demonstration.cluster.cast import NAMESPACE, Json
from scripts.demonstration.cluster.findings import Cluster, Placed
from scripts.demonstration.cluster.stage import Stage
from scripts.demonstration.cluster.tables import Tables
from scripts.demonstration.document import Promise
from scripts.demonstration.failure import DemoError

RUN_S = 15.0


@dataclass(slots=True)
class Play:
    """One performance."""

    stage: Stage
    show: Tables
    kept: list[Promise] = field(default_factory=list)
    found: Cluster = field(default_factory=Cluster)
    moments: list[tuple[Placed, ...]] = field(default_factory=list)

    async def submit(self, pod: Json) -> Json:
        """What `kubectl create` does: through the webhook into the store."""
        try:
            return (await create_pod(self.stage.server, self.stage.scheduler, pod)).stored
        except DeniedError as error:
            raise DemoError(f"pod {pod['metadata']['name']} was refused by the webhook: {error}") from error

    async def running(self, *names: str) -> None:
        """Until their containers have started."""

        def all_run() -> bool:
            return all(seen.phase(self.stage, name) == "Running" for name in names)

        await self.until(all_run, lambda: self._trouble(names))

    async def until(self, holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        try:
            await self.stage.server.until(holds, seconds=RUN_S)
        except TimeoutError as error:
            raise DemoError(f"after {RUN_S:g} s {otherwise()}") from error

    async def look(self, names: Iterable[str]) -> tuple[Placed, ...]:
        """Each look is a moment of which the promises about GPUs must hold."""
        self.moments.append(tuple([each for name in names for each in await seen.placed(self.stage, name)]))
        return self.moments[-1]

    async def clear(self) -> None:
        """All pods go, in the end from the scheduler's books too."""
        for name in seen.names(self.stage):
            self.stage.server.store.delete("pods", name, namespace=NAMESPACE)
        await self.until(lambda: not seen.names(self.stage), lambda: f"{seen.names(self.stage)} are not gone")
        await self.stage.scheduler.wait_figure("pods", 0, what="the scheduler has forgotten the pods that are gone")

    def note(self, **findings: object) -> None:
        """Fields of `Cluster`."""
        self.found = msgspec.structs.replace(self.found, **findings)

    def keep(self, *promises: Promise) -> None:
        self.kept += promises

    def _trouble(self, names: Iterable[str]) -> str:
        lines = []
        for name in names:
            raw = seen.stored(self.stage, name)
            if raw["status"].get("phase") != "Running":
                why = raw["status"].get("message") or seen.condition(self.stage, name)
                lines.append(f"pod {name} on node {raw['spec'].get('nodeName') or 'none'} does not run: {why}")
        return "; ".join(lines)
