"""Workloads that come and go.

In: a client, the folder of static pods, a source of random numbers. Out: workloads created and deleted. Not here:
which ones there are (`workloads`).
Invariant: a workload of whose creation or deletion nobody answered is deleted later.
"""

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.waiting import wait_until
from tests.e2e.scheduling.gangs import GROUPS
from tests.e2e.soak.faults import UNREACHABLE
from tests.e2e.soak.running import running_now
from tests.e2e.soak.workloads import JOBS, LARGE, REPLICA_SETS, STATIC, Workload, make_workload, random_kind

MOST_ALIVE = 14
MOST_PRESENT = 50
CRASHES = 0.04
"""How often, of all steps, a container's first process is killed."""
NOT_FOUND = 404


@dataclass(slots=True)
class Churn:
    """What was made so far, and what is still there."""

    client: Client
    static_pods: Path
    cgroup: str
    rng: Random
    late: Callable[[], frozenset[str]]
    """Names of pods that wait for long: to delete them would hide that they are stuck."""
    present: Callable[[], int]
    """Pods that there are, those that are being deleted too: a slow node must not be given ever more of them."""
    alive: list[Workload] = field(default_factory=list)
    incomplete: list[Workload] = field(default_factory=list)
    """Of whose creation nobody answered: a gang may lack members, and would wait for ever."""
    made: Counter[str] = field(default_factory=Counter)
    pods_made: int = 0
    deleted: int = 0
    killed_containers: int = 0
    unanswered: int = 0

    def step(self) -> None:
        """One thing, now and then killing a container besides."""
        if self.rng.random() < CRASHES:
            self._kill_a_container()
        try:
            self.delete_incomplete()
            if self.present() < MOST_PRESENT and len(self.alive) < MOST_ALIVE + self.rng.randint(-4, 4):
                self._create()
            elif self.alive:
                self._delete_one()
        except UNREACHABLE:
            self.unanswered += 1  # by the API server, which is away, or its webhook, which is

    def delete_incomplete(self) -> None:
        while self.incomplete:
            self._delete(self.incomplete, 0)

    def delete_all(self) -> None:
        """Until nothing is left, of anybody."""
        for file in self.static_pods.glob("soak-*"):
            file.unlink()
        wait_until(self._nothing_left, "every workload is gone", evidence=self._what_is_left)
        self.alive.clear()
        self.incomplete.clear()

    def create(self, workload: Workload) -> None:
        for place, body in workload.objects:
            if place == STATIC:
                (self.static_pods / f"{workload.name}.json").write_text(json.dumps(body))
            else:
                self.client.post(place, body)

    def _create(self) -> None:
        large = not any(each.kind in LARGE for each in self.alive)
        kind = random_kind(self.rng, large=large)
        workload = make_workload(kind, f"soak-{sum(self.made.values()):04}", self.rng)
        self.made[kind] += 1
        self.pods_made += workload.pods
        self.incomplete.append(workload)
        self.create(workload)
        self.alive.append(self.incomplete.pop())

    def _delete_one(self) -> None:
        """More often a young one, so that a few live through many faults."""
        position = int(self.rng.random() ** 0.5 * len(self.alive))
        late = self.late()
        if not any(name.startswith(self.alive[position].name) for name in late):
            self._delete(self.alive, position)

    def _delete(self, workloads: list[Workload], position: int) -> None:
        workload = workloads[position]
        for place, body in reversed(workload.objects):
            self._remove(workload, place, body)
        workloads.pop(position)
        self.deleted += 1

    def _remove(self, workload: Workload, place: str, body: JsonObject) -> None:
        if place == STATIC:
            (self.static_pods / f"{workload.name}.json").unlink(missing_ok=True)
            return
        try:
            self.client.delete(f"{place}/{body['metadata']['name']}?gracePeriodSeconds=1&propagationPolicy=Background")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def _kill_a_container(self) -> None:
        found = running_now(self.cgroup)
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[int(self.rng.random() * len(found))].pid, signal.SIGKILL)
                self.killed_containers += 1

    def _nothing_left(self) -> bool:
        try:
            for place in (REPLICA_SETS, JOBS, pods.PODS, GROUPS):
                self.client.delete(f"{place}?gracePeriodSeconds=1&propagationPolicy=Background")
            return not self._left()
        except UNREACHABLE:
            return False

    def _left(self) -> list[str]:
        items = [item for place in (pods.PODS, GROUPS) for item in self.client.get(place)["items"]]
        return [str(item["metadata"]["name"]) for item in items]

    def _what_is_left(self) -> str:
        return "\n".join(map(str, pods.states(self.client).values()))
